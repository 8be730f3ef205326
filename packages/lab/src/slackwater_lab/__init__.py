"""Tests that need no case written by hand: random seeds, random faults, and the workloads they run on."""

__version__ = "0.1.0"
