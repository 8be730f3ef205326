"""Evaluates the parts of a stage: turns events and a bucket's contents into changes and results.

There are two ways to evaluate a rows part. ``latest`` evaluates keys as they are after the batch, and
compares digests of their documents. ``every_commit`` evaluates keys before the batch and after each commit,
or after all commits, and emits the differences. ``groups`` and ``multiset`` maintain aggregates without their
rows, so the cost of a batch depends on its changes. All are pure: the same input gives the same output.
"""
