"""Receivers that are killed at each of their steps, and who judges what is left."""
