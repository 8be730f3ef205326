"""The exactly-once Kafka sink."""

from slackwater_spark.sink.kafka.settings import KafkaSinkSettings, OutputTable, OutputTopic
from slackwater_spark.sink.kafka.sink import KafkaSink

__all__ = ["KafkaSink", "KafkaSinkSettings", "OutputTable", "OutputTopic"]
