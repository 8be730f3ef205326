"""Debezium-shaped topics without a database or a connector."""

from slackwater_testing.generator.debezium_records import ConnectorIdentity
from slackwater_testing.generator.fill import Filled, HoldBack, TopicFiller

__all__ = ["ConnectorIdentity", "Filled", "HoldBack", "TopicFiller"]
