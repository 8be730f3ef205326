"""Judges the output of any stream processor against the committed states of its source."""
