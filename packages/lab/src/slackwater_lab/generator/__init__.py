"""Debezium-shaped topics without a database or a connector."""

from slackwater_lab.generator.debezium_records import ConnectorIdentity
from slackwater_lab.generator.fill import Filled, HoldBack, TopicFiller

__all__ = ["ConnectorIdentity", "Filled", "HoldBack", "TopicFiller"]
