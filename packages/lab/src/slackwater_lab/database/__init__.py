"""Executes workloads in PostgreSQL."""
