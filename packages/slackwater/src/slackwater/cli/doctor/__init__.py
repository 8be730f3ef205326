"""Diagnoses what is wrong with a source, why, and which command helps."""
