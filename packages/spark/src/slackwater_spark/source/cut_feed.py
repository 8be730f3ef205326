"""Cuts for the driver, from the cut log; Redis only says that there is news."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slackwater_markers import CutLog, CutLogTruncatedError, LoggedRecord, MarkerStore, cuts_of
from slackwater_protocol import AheadMarkers, Cut, PublishedCut, TimelineDecision
from slackwater_protocol.keys import cut_log_topic
from slackwater_spark.source.admission import connected
from slackwater_spark.source.errors import MissingCutsError
from slackwater_spark.source.log_watch import LogWatch
from slackwater_spark.source.offset import SourceOffset

_PAGE = 50
"""Records asked for at once; a cut has up to 10,000 transactions."""
_WIDENING = (64, 1024, 16 * 1024, 256 * 1024)
"""How far below a range the cut log is searched, step by step, for the cut of another sidecar."""


@dataclass(frozen=True, slots=True)
class FeedKey:
    """What a feed follows."""

    source: str
    timeline: int
    may_start_anywhere: bool = False
    """Whether the beginning of everything may be missing."""


def end_of_earlier_timelines(key: FeedKey, log: CutLog) -> Mapping[str, tuple[int, ...]]:
    """Where a timeline begins in the data topics: at the newest cut before it, by topic and partition.

    What stands below is of another history, with transactions of the same xids. Sidecars begin there, too.

    Raises:
        CutLogTruncatedError: the log has lost what came before the timeline.
        CutLogError: the log cannot be read.
    """
    newest: Cut | None = None
    position = earliest = 0
    while key.timeline > 1 and (page := log.records(position - 1, limit=_PAGE)):
        earliest = earliest if position else page[0].log_offset
        position = page[-1].log_offset + 1
        for record in (logged.record for logged in page):
            if isinstance(record, Cut | AheadMarkers | TimelineDecision) and record.timeline == key.timeline:
                position = log.end()
                break
            if isinstance(record, Cut) and record.timeline < key.timeline:
                newest = record if newest is None else max(newest, record, key=lambda cut: cut.position)
    if newest is None and earliest and not key.may_start_anywhere:
        raise CutLogTruncatedError(cut_log_topic(key.source), 0, earliest)
    return {} if newest is None else newest.end_offsets


class CutFeed:
    """Finds the cuts above a position. Redis gone, behind or wrong: slower, never wrong and never stuck.

    Keeps what it read and nobody used yet. That is a cache: it is filled anew when it is asked for another
    position. Not thread-safe; all methods may block for the time-outs of store and log.

    Args:
        key: What to follow.
        store: Asked whether there is news; None where there is no Redis.
        log: Has every cut.
        monotonic: Seconds that never go back.
    """

    def __init__(
        self, key: FeedKey, *, store: MarkerStore | None, log: CutLog, monotonic: Callable[[], float]
    ) -> None:
        self._key = key
        self._log = log
        self._watch = LogWatch(key.source, store=store, log=log, monotonic=monotonic)
        self._start_lsn = -1
        self._cuts: list[PublishedCut] = []
        self._covered = 0
        self._log_position = 0

    @property
    def log_id(self) -> str:
        """What tells the log that is read from every other; empty while there is none."""
        return self._watch.log_id

    def after(self, start: SourceOffset, *, max_events: int | None) -> list[PublishedCut]:
        """Connected cuts above ``start``, ascending; empty only when there is nothing new.

        Args:
            start: Exclusive.
            max_events: Enough cuts to go beyond this many change events do; None: all there are.

        Raises:
            MissingCutsError: there are newer cuts, but none that connects.
            CutLogReplacedError: ``start`` was planned from another log.
            CutLogError: Kafka is needed and does not answer.
        """
        self._watch.check(start.log_id)
        self._move_to(start)
        may_be_more = True
        while may_be_more and not self._goes_beyond(start, max_events):
            may_be_more = self._extend_from_log()
        return list(self._cuts)

    def between(self, start: SourceOffset, end: SourceOffset) -> list[PublishedCut]:
        """The connected cuts of a planned batch: from memory, or from the cut log.

        Raises:
            MissingCutsError: the log does not list every transaction in between.
            CutLogError: Kafka does not answer, or has lost part of the log, or all of it.
        """
        self._watch.check(end.log_id)
        if self._start_lsn == start.lsn and self._covered >= end.lsn:
            return [c for c in self._cuts if c.cut.lsn <= end.lsn]
        low, high = min(start.log, end.log), max(start.log, end.log)
        return self._search(start.lsn, end.lsn, low, high)

    def beginning(self) -> Mapping[str, tuple[int, ...]]:
        """Where the timeline begins in the data topics; a topic that is not there begins at 0.

        Raises:
            CutLogError: Kafka does not answer, or has lost part of the log.
        """
        return end_of_earlier_timelines(self._key, self._log)

    def newest(self) -> PublishedCut | None:
        """The newest cut in the log."""
        self._watch.check("")
        newest = self._log.newest()
        return newest if newest is not None and newest.cut.timeline == self._key.timeline else None

    def close(self) -> None:
        """Frees connections."""
        self._log.close()
        self._watch.close()

    def _move_to(self, start: SourceOffset) -> None:
        if start.lsn == self._start_lsn:
            return
        if any(c.cut.lsn == start.lsn for c in self._cuts):
            self._cuts = [c for c in self._cuts if c.cut.lsn > start.lsn]
        else:
            self._cuts, self._covered = [], start.lsn
            self._log_position = max(0, start.log - _WIDENING[0])
        self._start_lsn = start.lsn

    def _goes_beyond(self, start: SourceOffset, max_events: int | None) -> bool:
        if max_events is None or not self._cuts:
            return False
        return self._cuts[-1].cut.event_count - start.event_count > max_events

    def _extend_from_log(self) -> bool:
        """Whether there may be more to read at once."""
        if not self._watch.has_news(self._log_position):
            return False
        page = self._log.records(self._log_position - 1, limit=_PAGE)
        is_end = len(page) < _PAGE
        if page:
            self._take(page)
        if is_end:
            self._watch.note_end(found=bool(page))
        return not is_end

    def _take(self, page: Sequence[LoggedRecord]) -> None:
        first, self._log_position = page[0].log_offset, page[-1].log_offset + 1
        cuts = cuts_of(page)
        above = [c.cut.lsn for c in self._of_timeline(cuts) if c.cut.lsn > self._covered]
        if above and not (self._extend(cuts) and self._covered >= max(above)):
            self._extend(self._search(self._covered, max(above), first, self._log_position))

    def _search(self, after_lsn: int, up_to_lsn: int, low: int, high: int) -> list[PublishedCut]:
        """Cuts that lead from one LSN to another, in the log range and, if needed, below it."""
        covered = after_lsn
        for widening in (0, *_WIDENING):
            cuts = self._of_timeline(self._read_log(low - widening, low, high))
            chain = self._connect(after_lsn, (c for c in cuts if c.cut.lsn <= up_to_lsn))
            covered = chain[-1].cut.lsn if chain else after_lsn
            if covered >= up_to_lsn:
                return chain
            if widening >= low:
                break
        raise MissingCutsError(self._key.source, self._key.timeline, covered, up_to_lsn)

    def _read_log(self, from_offset: int, needed_from: int, to_offset: int) -> list[PublishedCut]:
        try:
            return self._log.read_range(max(0, from_offset), to_offset)
        except CutLogTruncatedError as error:
            if error.earliest_offset > needed_from and not self._key.may_start_anywhere:
                raise
            return self._log.read_range(error.earliest_offset, to_offset)

    def _extend(self, candidates: Iterable[PublishedCut]) -> bool:
        """Whether at least one candidate connects."""
        chain = self._connect(self._covered, self._of_timeline(candidates))
        if not chain:
            return False
        self._cuts += chain
        self._covered = chain[-1].cut.lsn
        self._log_position = max(self._log_position, *(c.log_offset + 1 for c in chain))
        return True

    def _connect(self, after_lsn: int, candidates: Iterable[PublishedCut]) -> list[PublishedCut]:
        return connected(after_lsn, candidates, may_start_anywhere=self._key.may_start_anywhere)

    def _of_timeline(self, cuts: Iterable[PublishedCut]) -> list[PublishedCut]:
        return [c for c in cuts if c.cut.timeline == self._key.timeline]
