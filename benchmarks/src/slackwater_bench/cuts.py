"""Cuts that a sidecar publishes: waiting for one, and when each was published."""

from dataclasses import dataclass

from slackwater_bench.bed import SOURCE, Bed
from slackwater_markers import KafkaCutLog
from slackwater_protocol import Clock, Cut, PublishedCut, decode_cut
from slackwater_protocol.keys import cut_log_topic
from slackwater_testing.errors import RunFailedError
from slackwater_testing.topics import read_to_end


def wait_for_cut(bed: Bed, lsn: int, seconds: float, clock: Clock) -> PublishedCut:
    """Waits for the first cut at or above an LSN.

    Raises:
        RunFailedError: there is none in time.
        ProgramEndedError: something does not run any more.
    """
    log, deadline, position = KafkaCutLog(SOURCE, bed.bootstrap), clock.monotonic() + seconds, -1
    try:
        while clock.monotonic() < deadline:
            bed.check()
            for published in log.tail(position):
                position = published.log_offset
                if published.cut.lsn >= lsn:
                    return published
    finally:
        log.close()
    raise RunFailedError("the sidecar", f"published no cut at {lsn} within {seconds:g} s")


def count_cuts(bootstrap: str) -> int:
    """Counts the cuts in the log."""
    log = KafkaCutLog(SOURCE, bootstrap)
    try:
        newest = log.newest()
        return 0 if newest is None else newest.log_offset + 1
    finally:
        log.close()


@dataclass(frozen=True, slots=True)
class TimedCut:
    """A cut and when the sidecar handed it to Kafka."""

    cut: Cut
    at_ms: int
    """Wall clock, milliseconds since the epoch."""


def timed_cuts(bootstrap: str, source: str) -> list[TimedCut]:
    """All cuts that are in the log now, ascending."""
    return [
        TimedCut(decode_cut(message.value() or b""), message.timestamp()[1])
        for message in read_to_end(bootstrap, cut_log_topic(source))
    ]
