"""Reads from the cut log where a sidecar continues, and which decisions were made in the meantime."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slackwater.cdc import Frontier
from slackwater.cuts import CutLog, CutLogReplacedError, cuts_of
from slackwater.protocol import (
    CommittedTransaction,
    Cut,
    PublishedCut,
    Refusal,
    SkipDecision,
    SourceTopics,
    TimelineDecision,
    format_position,
)
from slackwater.protocol.keys import cut_log_topic
from slackwater_sidecar.reader import Starts
from slackwater_sidecar.settings import SidecarSettings

Decision = SkipDecision | TimelineDecision | Refusal
"""What all sidecars obey: decisions of operators, and refusals that one of them has recorded."""

_LOOK_BACK = 5_000
"""How many offsets before the newest cut are read again: a decision there may not be carried out in full."""
_REMEMBERED = 500_000
"""How many transactions are remembered; the connector repeats at most what it wrote since it last stored its
offsets."""
_MAX_RECORDS = 10_000
"""How far back the log is read."""
_STEP = 1_000


class LoggedDecisions:
    """Finds new decisions about one timeline. Used by one thread.

    ``newest_offset`` is where the newest cut is; -1 when there is none.
    """

    def __init__(self, log: CutLog, timeline: int, newest_offset: int) -> None:
        self._log = log
        self._timeline = timeline
        self._newest_offset = newest_offset
        self._read_to = max(0, newest_offset - _LOOK_BACK)

    def new(self) -> list[Decision]:
        """Returns decisions since the last call, in order, about this timeline or to begin a newer one.

        The first call also returns what was decided shortly before the newest cut.

        Raises:
            TopicUnavailableError, StateError: the log cannot be read.
        """
        end = self._log.end()
        if end <= self._read_to:
            return []
        found = self._log.records(self._read_to - 1, with_cuts=False)
        self._read_to = max(end, found[-1].log_offset + 1 if found else 0)
        decisions = [(r.log_offset, r.record) for r in found if isinstance(r.record, Decision)]
        concerns = [(offset, decision) for offset, decision in decisions if self._concerns(decision)]
        obeyed = [
            (o, d.to_lsn) for o, d in concerns if isinstance(d, SkipDecision) and o < self._newest_offset
        ]
        return [decision for offset, decision in concerns if not _is_over(decision, offset, obeyed)]

    def _concerns(self, decision: Decision) -> bool:
        if isinstance(decision, SkipDecision | Refusal):
            return decision.timeline == self._timeline
        return decision.timeline > self._timeline


def _is_over(decision: Decision, offset: int, obeyed: Sequence[tuple[int, int]]) -> bool:
    """Returns whether a refusal was followed by a skip that ended it, and that by a cut."""
    if not isinstance(decision, Refusal):
        return False
    return any(skipped > offset and lsn >= decision.newest_lsn for skipped, lsn in obeyed)


@dataclass(frozen=True, slots=True)
class Resumption:
    """Says from where a timeline is followed."""

    timeline: int
    """The newest of the log's cuts, of an operator's decisions, and of the settings."""
    newest: PublishedCut | None
    """The cut to continue from; None at the beginning of a timeline."""
    read_from: Cut | None
    """Data topics are read from its end offsets; of the timeline before at the beginning of a timeline; None:
    from the beginning."""
    transaction_offset: int | None
    """From where the transaction topic is read; None: from the beginning."""
    done: tuple[CommittedTransaction, ...]
    """What was published last on this timeline, in commit order: replays of it must be recognised."""
    partition_counts: Mapping[str, int]
    """By topic, the fewest partitions in the last cuts. A topic that has more has grown, and rows above the
    newest cut may have been written before, though that cut counts the added partitions already."""
    log_offset: int
    """Where the log has its newest cut, of any timeline; -1: there is none."""

    def frontier(self, settings: SidecarSettings) -> Frontier:
        """Returns a frontier that continues from here."""
        frontier = Frontier(
            settings.source,
            tables=settings.tables,
            timeline=self.timeline,
            start=self.newest.cut if self.newest else None,
            done=self.done,
            partition_counts=self.partition_counts,
            topics=settings.source_topics,
            evidence=settings.evidence,
            barrier_interval_ms=int(settings.barrier_interval.total_seconds() * 1000),
            complete_tables=settings.complete_tables,
        )
        if self.newest is None and self.transaction_offset is not None:
            frontier.skip_transactions_to(self.transaction_offset)
        if self.newest is None and self.read_from is not None:
            frontier.skip_announcements_to(self.read_from.commit_ts_ms)
        return frontier

    def starts(self, topics: SourceTopics) -> Starts:
        """Returns the offsets from which to read; notifications always from their beginning."""
        ends = {} if self.read_from is None else self.read_from.end_offsets

        def start(topic: str, partition: int) -> int | None:
            if topic == topics.transactions:
                return self.transaction_offset
            offsets = ends.get(topic, ())
            return offsets[partition] if partition < len(offsets) else None

        return start


def resume(log: CutLog, timeline: int) -> Resumption:
    """Finds where to continue.

    All sidecars of a source begin a timeline at the same place, however late they learn of it: data topics at
    the newest cut before the decision in the log, the transaction topic where the decision says. Cuts that a
    sidecar of the earlier timeline wrote behind the decision are ignored.

    ``timeline`` is the least one; one that is newer than everything in the log begins at its newest cut.

    Raises:
        RecordsGoneError: the log has lost all of its cuts.
        CutLogReplacedError: it begins in the middle.
        TopicUnavailableError, StateError: the log cannot be read.
    """
    newest = _highest(log)
    if newest is not None:
        _check_beginning(log, newest.cut.source)
    end = newest.log_offset if newest else -1
    decision, offset = _newest_decision(log, end) or (None, -1)
    if decision is not None and (newest is None or decision.timeline > newest.cut.timeline):
        begun = [c for c in log.tail(offset) if c.cut.timeline == decision.timeline]
        if not begun:
            return _beginning(log, decision, offset, max(timeline, decision.timeline), end)
        newest = _highest_of(begun)
    if newest is None:
        return Resumption(timeline, None, None, None, (), {}, end)
    begin = newest.cut.transaction_offset
    done, counts = _known_from(log, newest)
    if newest.cut.timeline < timeline:
        return Resumption(timeline, None, newest.cut, begin, (), counts, end)
    return Resumption(newest.cut.timeline, newest, newest.cut, begin, done, counts, end)


def _highest(log: CutLog) -> PublishedCut | None:
    """Returns the highest among the last cuts of the log."""
    last = log.newest()
    if last is None:
        return None
    begin = max(0, last.log_offset + 1 - _STEP)
    found = cuts_of(log.records(begin - 1, limit=last.log_offset + 1 - begin))
    return _highest_of([last, *found])


def _highest_of(cuts: list[PublishedCut]) -> PublishedCut:
    """Returns the highest of some cuts: another sidecar may have appended lower ones behind it.

    From a lower one, rows of commits up to the highest would be taken for replays, and cuts would pass them.
    """
    return max(cuts, key=lambda c: (c.cut.position, c.log_offset))


def _check_beginning(log: CutLog, source: str) -> None:
    """Refuses a log that was recreated under a sidecar: its first cut follows one that it does not have.

    What was deleted from the beginning, by retention or by hand, only pipelines that begin there miss.
    """
    first = log.tail(-1, limit=1)
    if log.begin() == 0 and first and first[0].cut.previous_lsn > 0:
        evidence = f"its first cut continues from {format_position(first[0].cut.previous_lsn)}"
        raise CutLogReplacedError(cut_log_topic(source), evidence)


def _known_from(log: CutLog, newest: PublishedCut) -> tuple[tuple[CommittedTransaction, ...], dict[str, int]]:
    """Returns what the last cuts say of rows that come again.

    Returns:
        The transactions of the newest one's timeline, oldest first: replays of their rows must be recognised.
        And by topic the fewest partitions, on any timeline.
    """
    found: list[tuple[CommittedTransaction, ...]] = []
    counts: dict[str, int] = {}
    count, end = 0, newest.log_offset + 1
    lowest = max(0, end - _MAX_RECORDS)
    while count < _REMEMBERED and end > lowest:
        begin = max(lowest, end - _STEP)
        cuts = _cuts_between(log, begin, end)
        counts = _fewest_partitions(cuts, counts)
        for cut in reversed(cuts):
            if cut.timeline == newest.cut.timeline:
                found.append(cut.transactions)
                count += len(cut.transactions)
        end = begin
    return tuple(t for transactions in reversed(found) for t in transactions), counts


def _fewest_partitions(cuts: Iterable[Cut], known: Mapping[str, int]) -> dict[str, int]:
    """Returns by topic the smallest of what is known and the numbers of partitions in cuts."""
    fewest = dict(known)
    for cut in cuts:
        for topic, offsets in cut.end_offsets.items():
            fewest[topic] = min(fewest.get(topic, len(offsets)), len(offsets))
    return fewest


def _newest_decision(log: CutLog, newest_offset: int) -> tuple[TimelineDecision, int] | None:
    """Returns the first decision for the newest timeline that was decided lately, and its offset."""
    others = log.records(max(-1, newest_offset - _MAX_RECORDS), with_cuts=False)
    found = [(r.record, r.log_offset) for r in others if isinstance(r.record, TimelineDecision)]
    return max(found, key=lambda decided: decided[0].timeline, default=None)


def _beginning(
    log: CutLog, decision: TimelineDecision, end: int, timeline: int, newest_offset: int
) -> Resumption:
    before = _cuts_between(log, max(0, end - _MAX_RECORDS), end)
    read_from = max(before, key=lambda cut: cut.position, default=None)
    known = 0 if read_from is None else read_from.transaction_offset
    offset = max(decision.transaction_offset, known)  # the sidecar that named it may have been behind
    return Resumption(
        timeline, None, read_from, offset or None, (), _fewest_partitions(before, {}), newest_offset
    )


def _cuts_between(log: CutLog, begin: int, end: int) -> list[Cut]:
    """Returns the cuts at offsets in ``[begin, end)``, as far as the log still has them."""
    logged = log.records(begin - 1, limit=end - begin)
    return [r.record for r in logged if r.log_offset < end and isinstance(r.record, Cut)]
