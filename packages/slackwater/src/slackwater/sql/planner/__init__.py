"""Cuts trees of relations into stages."""
