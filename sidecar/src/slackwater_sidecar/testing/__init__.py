"""Offers tests with a real broker a source without database and connector."""

from slackwater_sidecar.testing.source import SyntheticSource

__all__ = ["SyntheticSource"]
