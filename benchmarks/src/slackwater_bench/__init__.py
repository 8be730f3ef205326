"""Measures Slackwater, which it treats as a black box."""
