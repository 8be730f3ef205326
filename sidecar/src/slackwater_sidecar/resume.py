"""Where a sidecar goes on: the newest cut of the log decides."""

from slackwater_cdc import Frontier
from slackwater_markers import CutLog
from slackwater_protocol import CommittedTransaction, Cut, PublishedCut
from slackwater_protocol.keys import transaction_topic
from slackwater_sidecar.errors import TimelineError
from slackwater_sidecar.reader import Starts
from slackwater_sidecar.settings import SidecarSettings

_REMEMBERED = 500_000
_STEP = 100
_MAX_CUTS = 5_000


def resumed_frontier(settings: SidecarSettings, log: CutLog, newest: PublishedCut | None) -> Frontier:
    """A frontier that goes on from a cut, or begins.

    Raises:
        TimelineError: the cut belongs to a newer timeline than the settings.
        CutLogError: the log cannot be read.
    """
    if newest is not None and newest.cut.timeline > settings.timeline:
        raise TimelineError(settings.source, settings.timeline, newest.cut.timeline)
    if newest is None or newest.cut.timeline < settings.timeline:
        return Frontier(settings.source, tables=settings.tables, timeline=settings.timeline)
    done = recent_transactions(log, newest)
    return Frontier(settings.source, tables=settings.tables, start=newest.cut, done=done)


def starts_of(source: str, cut: Cut | None) -> Starts:
    """The offsets from which to read after a cut: notifications always from their beginning."""

    def start(topic: str, partition: int) -> int | None:
        if cut is None:
            return None
        if topic == transaction_topic(source):
            return cut.transaction_offset or None
        offsets = cut.end_offsets.get(topic, ())
        return offsets[partition] if partition < len(offsets) else None

    return start


def recent_transactions(log: CutLog, newest: PublishedCut) -> list[CommittedTransaction]:
    """The transactions of the last cuts, oldest first: replays of their rows must be recognised."""
    found: list[tuple[CommittedTransaction, ...]] = []
    count, end = 0, newest.log_offset + 1
    lowest = max(0, end - _MAX_CUTS)
    while count < _REMEMBERED and end > lowest:
        begin = max(lowest, end - _STEP)
        for published in reversed([c for c in log.tail(begin - 1, limit=end - begin) if c.log_offset < end]):
            if published.cut.timeline == newest.cut.timeline:
                found.append(published.cut.transactions)
                count += len(published.cut.transactions)
        end = begin
    return [t for transactions in reversed(found) for t in transactions]
