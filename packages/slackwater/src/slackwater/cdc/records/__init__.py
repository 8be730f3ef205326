"""Finds the changes of a batch among the records of topics.

A batch is divided into tasks; repetitions are dropped, rows of snapshots placed, and bad records refused with
their place.
"""
