"""Processes the batches of one bucket of a stage: its state is read, changed and logged once for each.

A batch may be repeated at any point; in scope ``aggregate`` each key's rows come from one partition.
"""
