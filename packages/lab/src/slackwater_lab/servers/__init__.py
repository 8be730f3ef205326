"""Servers that only tests start, beside the development stack's own, and fixtures for all of them."""
