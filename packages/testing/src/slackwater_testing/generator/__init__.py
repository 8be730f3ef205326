"""Debezium-shaped topics without a database or a connector."""

from slackwater_testing.generator.debezium_records import ConnectorIdentity
from slackwater_testing.generator.fill import Filled, TopicFiller
from slackwater_testing.generator.output import HoldBack

__all__ = ["ConnectorIdentity", "Filled", "HoldBack", "TopicFiller"]
