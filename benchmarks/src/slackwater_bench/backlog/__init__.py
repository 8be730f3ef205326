"""Backlogs to be worked off, and traffic at intended times."""
