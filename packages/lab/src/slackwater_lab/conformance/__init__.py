"""Recorded topics with the transactions that every reader of docs/specification.md must find in them."""
