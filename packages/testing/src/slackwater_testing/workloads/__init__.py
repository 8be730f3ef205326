"""Workloads: what the database is asked to do."""
