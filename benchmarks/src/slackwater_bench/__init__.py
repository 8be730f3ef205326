"""Measures Slackwater, which it treats as a black box."""

__version__ = "0.1.0"
