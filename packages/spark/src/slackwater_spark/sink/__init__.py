"""Sinks: where a pipeline's batches become visible."""

from slackwater_spark.sink.contract import Sink, WriteReport
from slackwater_spark.sink.errors import (
    OutputRefusedError,
    OutputTopicError,
    OutputUnavailableError,
    PipelineNameTakenError,
    ProducerFencedError,
    ProgressMismatchError,
    SinkError,
)
from slackwater_spark.sink.kafka import KafkaSink
from slackwater_spark.sink.probe import SinkProbe, SinkStep
from slackwater_spark.sink.progress import check_owner
from slackwater_spark.sink.settings import REQUEST_TIMEOUT, Emit, KafkaSinkSettings, OutputTopic
from slackwater_spark.sink.topics import existing_topics

__all__ = [
    "REQUEST_TIMEOUT",
    "Emit",
    "KafkaSink",
    "KafkaSinkSettings",
    "OutputRefusedError",
    "OutputTopic",
    "OutputTopicError",
    "OutputUnavailableError",
    "PipelineNameTakenError",
    "ProducerFencedError",
    "ProgressMismatchError",
    "Sink",
    "SinkError",
    "SinkProbe",
    "SinkStep",
    "WriteReport",
    "check_owner",
    "existing_topics",
]
