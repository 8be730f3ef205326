"""Sinks: where a pipeline's batches become visible."""

from slackwater_spark.sink.batch import DocumentBatch, document_batch
from slackwater_spark.sink.errors import (
    MalformedBatchError,
    OutputRefusedError,
    OutputTopicError,
    OutputUnavailableError,
    PipelineNameTakenError,
    ProducerFencedError,
    ProgressMismatchError,
    SinkError,
)
from slackwater_spark.sink.kafka import KafkaSink, WriteReport
from slackwater_spark.sink.probe import SinkProbe, SinkStep
from slackwater_spark.sink.progress import check_owner
from slackwater_spark.sink.reading import read_progress
from slackwater_spark.sink.settings import Emit, KafkaSinkSettings, OutputTopic
from slackwater_spark.sink.topics import existing_topics

__all__ = [
    "DocumentBatch",
    "Emit",
    "KafkaSink",
    "KafkaSinkSettings",
    "MalformedBatchError",
    "OutputRefusedError",
    "OutputTopic",
    "OutputTopicError",
    "OutputUnavailableError",
    "PipelineNameTakenError",
    "ProducerFencedError",
    "ProgressMismatchError",
    "SinkError",
    "SinkProbe",
    "SinkStep",
    "WriteReport",
    "check_owner",
    "document_batch",
    "existing_topics",
    "read_progress",
]
