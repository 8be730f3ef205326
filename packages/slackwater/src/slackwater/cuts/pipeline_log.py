"""The topic of pipelines: the registrations and reports that runs publish to the whole cluster."""

import logging
from typing import Protocol

from slackwater.protocol import (
    MalformedRecordError,
    PipelineEntry,
    PipelineRegistration,
    PipelineReport,
    UnsupportedVersionError,
    decode_pipeline_record,
    pipeline_record_key,
)
from slackwater.protocol.keys import PIPELINES_TOPIC

_log = logging.getLogger(__name__)


class PipelineLog(Protocol):
    """The registration and the newest report of each run of each pipeline.

    Written by runs, read by anybody. Methods raise nothing but
    :class:`~slackwater.cuts.errors.CompactedTopicUnavailableError`. Not thread-safe, except for
    :meth:`report`, which one other thread may call at the same time.
    """

    def ensure(self) -> None:
        """Makes the topic if it does not exist, and prepares to write. Blocks for the time-out at most."""
        ...

    def read(self) -> list[PipelineEntry]:
        """Returns all entries that were readable at the time of the call, oldest first.

        None if there is no topic. What is not Slackwater's, or of a newer version, is passed over and logged.
        Blocks for the time-out at most; a second call reads only what is new.
        """
        ...

    def register(self, registration: PipelineRegistration) -> int:
        """Writes a registration and returns its offset when it is acknowledged; :meth:`read` then has it."""
        ...

    def report(self, report: PipelineReport) -> None:
        """Writes a report some time soon, without waiting; never raises.

        A report that cannot be written is lost. The first of them is logged, and the first after one that
        could be written.
        """
        ...

    def forget(self, pipeline: str, run: str) -> None:
        """Removes registration and report of a run; returns when that is acknowledged."""
        ...

    def close(self) -> None:
        """Gives reports that wait two seconds to be written, then frees connections."""
        ...


def decoded_entry(value: bytes, offset: int, written_ms: int, key: bytes) -> PipelineEntry | None:
    """Returns a record with its place; None, and a line in the log, if it is none of ours."""
    try:
        record = decode_pipeline_record(value)
    except (MalformedRecordError, UnsupportedVersionError) as error:
        reason = str(error)
    else:
        if pipeline_record_key(record) == key:
            return PipelineEntry(record, offset, written_ms)
        reason = f"unknown key {key!r}"
    _log.warning("skipping the record at offset %d of %s: %s", offset, PIPELINES_TOPIC, reason)
    return None
