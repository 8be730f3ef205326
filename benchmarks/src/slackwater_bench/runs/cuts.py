"""Waiting for what a sidecar publishes."""

from slackwater_bench.errors import RunFailedError
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_markers import KafkaCutLog
from slackwater_protocol import Clock


def wait_for_cut(bed: Bed, lsn: int, seconds: float, clock: Clock) -> None:
    """Returns when the cut log has a cut at or above an LSN.

    Raises:
        RunFailedError: it has none in time.
        ProcessEndedError: something does not run any more.
    """
    log, deadline, position = KafkaCutLog(SOURCE, bed.bootstrap), clock.monotonic() + seconds, -1
    try:
        while clock.monotonic() < deadline:
            bed.check()
            for published in log.tail(position):
                position = published.log_offset
                if published.cut.lsn >= lsn:
                    return
    finally:
        log.close()
    raise RunFailedError("the sidecar", f"published no cut at {lsn} within {seconds:g} s")
