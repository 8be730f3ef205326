"""Finds the changes of a batch among the records of topics."""
