"""Keeps aggregates as exact numbers and ordered multisets instead of rows.

The cost of a batch follows the number of its changes, whatever the size of the groups.
"""
