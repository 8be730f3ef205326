"""Sending: six ways to write to a database and send messages."""
