"""Debezium-shaped topics without a database or a connector."""

from slackwater_testing.generator.debezium_records import Connector
from slackwater_testing.generator.fill import Filled, TopicFiller
from slackwater_testing.generator.output import DeliveryError, HoldBack
from slackwater_testing.generator.share import ShareError

__all__ = ["Connector", "DeliveryError", "Filled", "HoldBack", "ShareError", "TopicFiller"]
