"""Workloads and benchmarks; treats Slackwater as a black box."""
