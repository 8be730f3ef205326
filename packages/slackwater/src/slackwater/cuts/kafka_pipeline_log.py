"""The topic of pipelines in Kafka."""

from collections.abc import Mapping
from datetime import timedelta

from slackwater.cuts.compacted_topic import CompactedTopic
from slackwater.cuts.pipeline_log import decoded_entry
from slackwater.protocol import (
    PipelineEntry,
    PipelineRegistration,
    PipelineReport,
    encode_pipeline_record,
    pipeline_record_key,
)
from slackwater.protocol.keys import PIPELINES_TOPIC, registration_key, report_key


class KafkaPipelineLog:
    """Implements :class:`~slackwater.cuts.pipeline_log.PipelineLog`; one topic for a cluster.

    Args:
        bootstrap: Kafka's ``bootstrap.servers``.
        kafka: Further librdkafka settings, e.g. for security; override the ones chosen here.
        timeout: How long one request may block, including transient errors.
        replication_factor: Used if the topic has to be created; -1 for the broker's default.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        kafka: Mapping[str, str] | None = None,
        timeout: timedelta = timedelta(seconds=5),
        replication_factor: int = -1,
    ) -> None:
        self._topic = CompactedTopic(
            PIPELINES_TOPIC,
            decoded_entry,
            bootstrap,
            kafka=kafka,
            timeout=timeout,
            replication_factor=replication_factor,
        )

    def ensure(self) -> None:
        """See the protocol."""
        self._topic.ensure()

    def read(self) -> list[PipelineEntry]:
        """See the protocol."""
        return self._topic.read()

    def register(self, registration: PipelineRegistration) -> int:
        """See the protocol."""
        record = {pipeline_record_key(registration): encode_pipeline_record(registration)}
        return self._topic.write("registration", record)

    def report(self, report: PipelineReport) -> None:
        """See the protocol."""
        self._topic.send(pipeline_record_key(report), encode_pipeline_record(report))

    def forget(self, pipeline: str, run: str) -> None:
        """See the protocol."""
        keys = registration_key(pipeline, run), report_key(pipeline, run)
        self._topic.write("removal", {key.encode(): None for key in keys})

    def close(self) -> None:
        """See the protocol."""
        self._topic.close()
