"""Aggregates that are kept as numbers and multisets instead of rows."""
