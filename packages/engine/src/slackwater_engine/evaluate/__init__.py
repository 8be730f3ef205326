"""Evaluates a stage: takes a batch's events and a bucket's contents, gives changes and what is handed on.

``stage`` is the evaluation as a bucket runs it. Its rows part goes one of two ways: ``latest`` evaluates keys
as they are after the batch and compares digests of their documents; ``every_commit`` evaluates them before
the batch and after each commit, or after all, and hands on the differences. ``lone_rows`` is the short cut
of the second way for rows that meet no others. All is pure: the same input gives the same output.
"""
