"""Debezium-shaped topics without a database or a connector."""

from slackwater_bench.generator.debezium_records import Connector
from slackwater_bench.generator.fill import Filled, TopicFiller
from slackwater_bench.generator.output import DeliveryError, HoldBack
from slackwater_bench.generator.process import ShareError

__all__ = ["Connector", "DeliveryError", "Filled", "HoldBack", "ShareError", "TopicFiller"]
