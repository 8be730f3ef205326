"""Cuts for the driver: from Redis while it is right, from the cut log whenever it is not."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slackwater_markers import (
    CutLog,
    CutLogTruncatedError,
    MarkerStore,
    MarkerStoreUnavailableError,
    cuts_of,
)
from slackwater_protocol import PublishedCut
from slackwater_spark.source.admission import connected
from slackwater_spark.source.errors import MissingCutsError
from slackwater_spark.source.offset import SourceOffset

_PAGE = 50
"""Cuts asked for at once; each has up to 10,000 transactions."""
_LOG_CHECK_SECONDS = 0.25
"""How often the cut log is asked while Redis answers but has nothing new: it may be empty or have stopped."""
_LOG_CHECK_SECONDS_WITHOUT_STORE = 0.05
_STORE_RETRY_SECONDS = 5.0
"""How long Redis is left alone after it failed; each attempt may cost its time-out."""
_WIDENING = (64, 1024, 16 * 1024, 256 * 1024)
"""How far below a range the cut log is searched, step by step, for the cut of another sidecar."""


@dataclass(frozen=True, slots=True)
class FeedKey:
    """What a feed follows."""

    source: str
    timeline: int
    may_start_anywhere: bool = False
    """Whether the beginning of everything may be missing."""


class CutFeed:
    """Finds the cuts above a position. Redis gone, empty or behind: slower, never wrong and never stuck.

    Keeps what it read and nobody used yet. That is a cache: it is filled anew when it is asked for another
    position. Not thread-safe; all methods may block for the time-outs of store and log.

    Args:
        key: What to follow.
        store: Asked first; None where there is no Redis.
        log: Has every cut, since a cut is published only after the log acknowledged it.
        monotonic: Seconds that never go back.
    """

    def __init__(
        self, key: FeedKey, *, store: MarkerStore | None, log: CutLog, monotonic: Callable[[], float]
    ) -> None:
        self._key = key
        self._store = store
        self._log = log
        self._monotonic = monotonic
        self._start_lsn = -1
        self._cuts: list[PublishedCut] = []
        self._covered = 0
        self._log_position = 0
        self._is_store_bound = False
        self._store_retry_at = float("-inf")
        self._log_check_at = float("-inf")

    def after(self, start: SourceOffset, *, max_events: int | None) -> list[PublishedCut]:
        """Connected cuts above ``start``, ascending; empty only when there is nothing new.

        With a limit it ends as soon as Redis has told all it has, if that is anything: the log is asked when
        that is used up. Under steady traffic there is always one more cut in the log, and each look there
        costs a round trip or two.

        Args:
            start: Exclusive.
            max_events: Enough cuts to go beyond this many change events do; None: all there are.

        Raises:
            MissingCutsError: there are newer cuts, but none that connects.
            CutLogError: Kafka is needed and does not answer.
        """
        self._move_to(start)
        while not self._goes_beyond(start, max_events):
            if self._extend_from_store():
                continue
            is_enough = max_events is not None and bool(self._cuts)
            if is_enough or not self._extend_from_log():
                break
        return list(self._cuts)

    def between(self, start: SourceOffset, end: SourceOffset) -> list[PublishedCut]:
        """The connected cuts of a planned batch: from memory, or from the cut log.

        Raises:
            MissingCutsError: the log does not list every transaction in between.
            CutLogError: Kafka does not answer, or has lost part of the log.
        """
        if self._start_lsn == start.lsn and self._covered >= end.lsn:
            return [c for c in self._cuts if c.cut.lsn <= end.lsn]
        low, high = min(start.log, end.log), max(start.log, end.log)
        return self._search(start.lsn, end.lsn, low, high)

    def newest(self) -> PublishedCut | None:
        """The newest cut that Redis or the log knows."""
        found = [self._log.newest()]
        if (store := self._usable_store()) is not None:
            try:
                found.append(store.newest(self._key.source, self._key.timeline))
            except MarkerStoreUnavailableError:
                self._leave_store_alone()
        cuts = self._of_timeline(c for c in found if c is not None)
        return max(cuts, key=lambda c: c.cut.lsn, default=None)

    def close(self) -> None:
        """Frees connections."""
        self._log.close()
        if self._store is not None:
            self._store.close()

    def _move_to(self, start: SourceOffset) -> None:
        if start.lsn == self._start_lsn:
            return
        if any(c.cut.lsn == start.lsn for c in self._cuts):
            self._cuts = [c for c in self._cuts if c.cut.lsn > start.lsn]
        else:
            self._cuts, self._covered, self._log_position = [], start.lsn, start.log
        self._start_lsn = start.lsn

    def _goes_beyond(self, start: SourceOffset, max_events: int | None) -> bool:
        if max_events is None or not self._cuts:
            return False
        return self._cuts[-1].cut.event_count - start.event_count > max_events

    def _extend_from_store(self) -> bool:
        """Whether Redis had newer cuts; what is missing before them comes from the log."""
        store = self._usable_store()
        if store is None:
            return False
        try:
            page = store.cuts_after(self._key.source, self._key.timeline, self._covered, limit=_PAGE)
        except MarkerStoreUnavailableError:
            self._leave_store_alone()
            return False
        if not page or self._extend(page):
            return bool(page)
        return self._fill_hole_below(page[0])

    def _fill_hole_below(self, cut: PublishedCut) -> bool:
        """Reads on in the log; at its end, looks for what other sidecars wrote before the place we know."""
        self._log_check_at = float("-inf")
        if self._extend_from_log():
            return True
        offset = cut.log_offset
        return self._extend(self._search(self._covered, cut.cut.lsn, offset, offset + 1))

    def _extend_from_log(self) -> bool:
        """Whether the log had anything new, useful or not."""
        now = self._monotonic()
        if now < self._log_check_at:
            return False
        page = self._log.records(self._log_position - 1, limit=_PAGE)
        if not page:
            pause = _LOG_CHECK_SECONDS if self._usable_store() else _LOG_CHECK_SECONDS_WITHOUT_STORE
            self._log_check_at = now + pause
            return False
        first, self._log_position = page[0].log_offset, page[-1].log_offset + 1
        cuts = cuts_of(page)
        above = [c.cut.lsn for c in self._of_timeline(cuts) if c.cut.lsn > self._covered]
        if above and not (self._extend(cuts) and self._covered >= max(above)):
            self._extend(self._search(self._covered, max(above), first, self._log_position))
        return True

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

    def _usable_store(self) -> MarkerStore | None:
        """The store while it answers; only for what it has of this very log: it may be a copy of another."""
        if self._store is None or self._monotonic() < self._store_retry_at:
            return None
        if not self._is_store_bound:
            log_id = self._log.identity()
            if log_id is None:
                self._leave_store_alone()
                return None
            self._store.bind(log_id)
            self._is_store_bound = True
        return self._store

    def _leave_store_alone(self) -> None:
        self._store_retry_at = self._monotonic() + _STORE_RETRY_SECONDS
