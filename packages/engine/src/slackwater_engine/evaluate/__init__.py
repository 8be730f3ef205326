"""Evaluates a stage's rows part: takes events and a bucket's contents, gives changes and what is handed on.

A part goes one of two ways: ``latest`` evaluates keys as they are after the batch and compares digests of
their documents; ``every_commit`` evaluates them before the batch and after each commit, or after all, and
hands on the differences. All is pure: the same input gives the same output.
"""
