"""Decisions about a source, which are checked against the facts before they are recorded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from slackwater.cli.doctor.facts import SourceFacts
from slackwater.cuts import CutLog, CutLogDamagedError, FrontierState
from slackwater.protocol import (
    SNAPSHOT_XID,
    InputError,
    LogRecord,
    OpenTransaction,
    PassDecision,
    Refusal,
    SkipDecision,
    TimelineDecision,
    format_position,
)
from slackwater_sidecar import describe_open

Decision = SkipDecision | TimelineDecision | PassDecision
DecisionT = TypeVar("DecisionT", bound=Decision, covariant=True)

LOOKED_BACK = 20_000
"""The number of the newest records of the cut log that are searched for decisions and refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[DecisionT]):
    """A decision that can be taken, and what it would do."""

    decision: DecisionT
    """As the facts demand it; nobody has taken it."""
    lines: tuple[str, ...]
    """What it would do, for people."""

    def taken(self, wall_ms: int, decided_by: str, reason: str) -> DecisionT:
        """Returns the record that sidecars obey."""
        return replace(self.decision, wall_ms=wall_ms, decided_by=decided_by, reason=reason)


def decisions_in(log: CutLog) -> list[Decision]:
    """Returns the newest decisions in a cut log, oldest first.

    Raises:
        TopicUnavailableError, StateError: the log cannot be read.
    """
    logged = log.records(max(-1, log.end() - LOOKED_BACK), with_cuts=False)
    return [r.record for r in logged if isinstance(r.record, SkipDecision | TimelineDecision | PassDecision)]


def refusal_in(log: CutLog) -> Refusal | None:
    """Returns the refusal of the source that is in force, according to its cut log.

    Raises:
        TopicUnavailableError, StateError: the log cannot be read.
    """
    return refusal_in_force(r.record for r in log.records(max(-1, log.end() - LOOKED_BACK), with_cuts=False))


def refusal_in_force(records: Iterable[LogRecord]) -> Refusal | None:
    """Returns the newest refusal among records, oldest first, that no decision has lifted."""
    newest: Refusal | None = None
    for record in records:
        if isinstance(record, Refusal) and (newest is None or _reaches(record) >= _reaches(newest)):
            newest = record
        elif newest is not None and _lifts(record, newest):
            newest = None
    return newest


def plan_pass(source: str, log: CutLog, log_offset: int) -> Plan[PassDecision]:
    """Determines how a record of the cut log is damaged, which would be passed.

    Raises:
        InputError: nothing is, or it is not the first one that holds readers up.
        TopicUnavailableError, StateError: the log cannot be read.
    """
    try:
        if 0 <= log_offset < log.end():
            log.records(log_offset - 1, limit=1)
    except CutLogDamagedError as error:
        if error.log_offset == log_offset:
            passed = PassDecision(source=source, log_offset=log_offset, wall_ms=0, decided_by="")
            return Plan(decision=passed, lines=(f"damaged: {error.reason}",))
    raise _refused(
        f"there is no damaged record at offset {log_offset} of the cut log",
        "use the offset in the message of the sidecar or the pipeline",
    )


def plan_skip(facts: SourceFacts, to_lsn: int, refusal: Refusal | None) -> Plan[SkipDecision]:
    """Determines which transactions a skip to a commit LSN would let through.

    Args:
        facts: Of the source.
        to_lsn: The last commit that would pass.
        refusal: The one in force, according to its cut log.

    Raises:
        InputError: it would skip nothing although the source is not refused, or more than was seen, or
            less than was read with a fault.
    """
    _require_knowledge(facts)
    timeline = _timeline(facts)
    reason = _refused_for(facts, refusal)
    if refusal is not None and refusal.timeline == timeline and to_lsn < refusal.newest_lsn:
        raise _below(refusal, to_lsn)
    if not reason and facts.cut is not None and to_lsn <= facts.cut.lsn:
        raise _refused(
            f"the frontier is at {format_position(facts.cut.lsn)}, not below {format_position(to_lsn)}",
            "nothing is waiting there; `slackwater doctor` shows what is waiting",
        )
    newest = _newest_end(facts)
    if reason:
        read_lsn = refusal.newest_lsn if refusal else 0
        newest = max(newest or 0, facts.cut.lsn if facts.cut else 0, read_lsn)
    if newest is None or to_lsn > newest:
        seen = "no END was seen" if newest is None else f"the newest END seen is {format_position(newest)}"
        raise _refused(
            f"{seen}, {format_position(to_lsn)} is above it",
            "only transactions that were seen can be skipped; use the commit LSN of an open one",
        )
    passed = tuple(
        t for t in facts.open if t.xid != SNAPSHOT_XID and (t.commit_lsn is None or t.commit_lsn <= to_lsn)
    )
    if not reason and not any(t.commit_lsn is not None or _is_named(t) for t in passed):
        raise _refused(
            f"no transaction up to {format_position(to_lsn)} has been open for long",
            "wait until the sidecar reports one (sidecar.open_after); `slackwater doctor` shows it",
        )
    decision = SkipDecision(source=facts.source, timeline=timeline, to_lsn=to_lsn, wall_ms=0, decided_by="")
    return Plan(decision=decision, lines=tuple(_skip_lines(decision, passed, reason)))


def _skip_lines(decision: SkipDecision, passed: Sequence[OpenTransaction], refused_for: str) -> Iterator[str]:
    """Writes which transactions would be skipped, those without END included."""
    where, to = f"source {decision.source}, timeline {decision.timeline}", format_position(decision.to_lsn)
    yield f"{where}: everything up to commit {to} would be skipped"
    for transaction in passed:
        yield f"  {describe_open(transaction)}"
    if passed:
        yield "Rows of these transactions that were not read will be missing from every pipeline."
    if refused_for:
        yield f"The source is refused: {refused_for}"
        yield "With this decision you say that all values up to this commit are right."


def plan_timeline(
    facts: SourceFacts, decided: Sequence[Decision], *, without_snapshot: bool
) -> Plan[TimelineDecision]:
    """Determines the timeline that would begin where LSNs went back.

    Args:
        facts: Of the source.
        decided: What its cut log holds.
        without_snapshot: Begin although no snapshot was seen behind that place.

    Raises:
        InputError: LSNs did not go back, it is decided already, or there is no snapshot.
    """
    _require_knowledge(facts)
    status = facts.status
    if status is None or status.regression is None:
        state = status.state if status else "unknown"
        raise _refused(
            f"the state of {facts.source} is {state}, not regressed",
            "a new timeline begins only where LSNs went back",
        )
    timeline = _timeline(facts)
    newer = [d.timeline for d in decided if isinstance(d, TimelineDecision) and d.timeline > timeline]
    if newer:
        raise _refused(
            f"timeline {max(newer)} has already been decided",
            "a running sidecar applies it within a second; `slackwater doctor` shows whether one is running",
        )
    if not status.regression.has_snapshot and not without_snapshot:
        raise _refused(
            "no snapshot was seen after the point where LSNs went back",
            "rows that changed in the meantime would be missed: let the connector take a new snapshot "
            "(snapshot.mode=always, or delete its offsets), or use --without-snapshot",
        )
    found = status.regression
    decision = TimelineDecision(
        source=facts.source,
        timeline=timeline + 1,
        transaction_offset=found.transaction_offset,
        wall_ms=0,
        decided_by="",
    )
    what = f"transaction {found.xid}" if found.xid else "an initial snapshot"
    seen = "a new" if found.has_snapshot else "NO new"
    lines = (
        f"source {facts.source}: timeline {decision.timeline} would begin where LSNs went back",
        f"  {what} at {format_position(found.commit_lsn)}, after {format_position(found.newest_lsn)}",
        f"  offset {found.transaction_offset} of the transaction topic; data topics from the newest cut",
        f"  {seen} snapshot was seen after it",
    )
    return Plan(decision=decision, lines=lines)


def _refused(reason: str, hint: str) -> InputError:
    return InputError(f"nothing was decided: {reason}", hint)


def _below(refusal: Refusal, to_lsn: int) -> InputError:
    """Returns the error for a skip that would let pass only a part of what was read with a fault."""
    needed, since = format_position(refusal.newest_lsn), refusal.since_lsn
    which = (
        f"commits after {format_position(since)}, up to {needed}," if since else f"all commits up to {needed}"
    )
    return _refused(
        f"{which} of source {refusal.source} were read while the connector had a fault ({refusal.reason}), "
        f"and {format_position(to_lsn)} is below {needed}",
        f"let the connector take a new snapshot, and start the sidecars with "
        f"timeline {refusal.timeline + 1}; or, if you know that all of these values are right, use "
        f"--to {needed}, or a newer commit that precedes the correction",
    )


def _refused_for(facts: SourceFacts, refusal: Refusal | None) -> str:
    """Returns why the source is refused, as its sidecar says now or as the cut log says; empty: it is not."""
    status = facts.status
    if status is not None and status.state is FrontierState.MISCONFIGURED:
        return status.detail
    return refusal.reason if refusal is not None and refusal.timeline == _timeline(facts) else ""


def _reaches(refusal: Refusal) -> tuple[int, int]:
    return refusal.timeline, refusal.newest_lsn


def _lifts(record: LogRecord, refusal: Refusal) -> bool:
    if isinstance(record, SkipDecision):
        return record.timeline == refusal.timeline and record.to_lsn >= refusal.newest_lsn
    return isinstance(record, TimelineDecision) and record.timeline > refusal.timeline


def _require_knowledge(facts: SourceFacts) -> None:
    error = facts.redis_error or facts.kafka_error
    if error is not None:
        raise _refused(error, "try again when Redis and Kafka are reachable")


def _timeline(facts: SourceFacts) -> int:
    known = [facts.cut.timeline] if facts.cut else []
    if facts.status is not None and facts.status.timeline is not None:
        known.append(facts.status.timeline)
    if not known:
        raise _refused(f"nothing is known about {facts.source}", "start its sidecar first")
    return max(known)


def _newest_end(facts: SourceFacts) -> int | None:
    seen = [t.commit_lsn for t in facts.open if t.commit_lsn is not None and t.xid != SNAPSHOT_XID]
    if facts.newest_end is not None:
        seen.append(facts.newest_end.commit_lsn)
    return max(seen, default=None)


def _is_named(transaction: OpenTransaction) -> bool:
    """Returns whether a transaction without END has rows: it is given up when a later one is skipped to."""
    return bool(transaction.received)
