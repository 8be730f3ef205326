"""The topic of pipelines: the registrations and reports that runs publish to the whole cluster."""

import logging
from typing import Protocol

from slackwater.protocol import (
    InputError,
    PipelineEntry,
    PipelineRegistration,
    PipelineReport,
    decode_pipeline_record,
    pipeline_record_key,
)
from slackwater.protocol.keys import PIPELINES_TOPIC

_log = logging.getLogger(__name__)


class PipelineLog(Protocol):
    """The registration and the newest report of each run of each pipeline.

    Written by runs, read by all. Methods raise only
    :class:`~slackwater.cuts.errors.CompactedTopicUnavailableError`. Not thread-safe, except for
    :meth:`report`, which one other thread may call at the same time.
    """

    def ensure(self) -> None:
        """Creates the topic if it does not exist, and prepares to write. Blocks for at most the time-out."""
        ...

    def read(self) -> list[PipelineEntry]:
        """Returns all entries that were readable at the time of the call, oldest first.

        None if there is no topic. Records of others, or of a newer version, are skipped and logged. Blocks
        for at most the time-out; a second call reads only what is new.
        """
        ...

    def register(self, registration: PipelineRegistration) -> int:
        """Writes a registration, which :meth:`read` then returns; returns its acknowledged offset."""
        ...

    def report(self, report: PipelineReport) -> None:
        """Queues a report to be written soon, without waiting; never raises.

        A report that cannot be written is lost. The first failure is logged, and so is the first success
        after it.
        """
        ...

    def forget(self, pipeline: str, run: str) -> None:
        """Removes registration and report of a run; returns when that is acknowledged."""
        ...

    def close(self) -> None:
        """Waits two seconds at most for queued reports to be written, then frees connections."""
        ...


def decoded_entry(value: bytes, offset: int, written_ms: int, key: bytes) -> PipelineEntry | None:
    """Returns a record with its place; None, after logging it, if it is not ours."""
    try:
        record = decode_pipeline_record(value)
    except InputError as error:
        reason = str(error)
    else:
        if pipeline_record_key(record) == key:
            return PipelineEntry(record, offset, written_ms)
        reason = f"unknown key {key!r}"
    _log.warning("skipping the record at offset %d of %s: %s", offset, PIPELINES_TOPIC, reason)
    return None
