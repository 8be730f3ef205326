"""The exactly-once Kafka sink."""

from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTable, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink

__all__ = ["KafkaSink", "KafkaSinkSettings", "OutputTable", "OutputTopic"]
