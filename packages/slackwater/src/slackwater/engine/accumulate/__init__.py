"""Maintains aggregates as exact numbers and ordered multisets, without storing rows.

The cost of a batch depends on the number of its changes, not on the size of the groups.
"""
