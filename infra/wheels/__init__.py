"""Wheels of the members."""
