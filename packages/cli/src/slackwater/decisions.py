"""Decisions about a source: checked against the facts before they are recorded, and put into words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from slackwater.doctor.facts import SourceFacts
from slackwater.errors import CommandInputError
from slackwater.output import aligned
from slackwater_markers import CutLog, CutLogDamagedError, FrontierStatus, PipelineStatus, RegressionNotice
from slackwater_protocol import (
    SNAPSHOT_XID,
    OpenTransaction,
    PassDecision,
    PublishedCut,
    SkipDecision,
    TimelineDecision,
    format_position,
)
from slackwater_sidecar import describe_open

Decision = SkipDecision | TimelineDecision | PassDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipPlan:
    """Describes the effect that a skip would have."""

    timeline: int
    to_lsn: int
    passed: tuple[OpenTransaction, ...]
    """Open transactions that pass as they are, those without END included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePlan:
    """Describes a new timeline as it would begin."""

    timeline: int
    regression: RegressionNotice


def damage_at(log: CutLog, log_offset: int) -> CutLogDamagedError:
    """Reads a record of the cut log that is damaged, and says how.

    Raises:
        CommandInputError: nothing is, or it is not the first one that holds readers up.
        slackwater_markers.CutLogError: the log cannot be read.
    """
    try:
        if 0 <= log_offset < log.end():
            log.records(log_offset - 1, limit=1)
    except CutLogDamagedError as error:
        if error.log_offset == log_offset:
            return error
    raise _refused(
        f"at offset {log_offset} of the cut log there is no damaged record",
        "name the offset that the message of the sidecar or the pipeline has",
    )


def plan_skip(facts: SourceFacts, to_lsn: int) -> SkipPlan:
    """Works out what skipping to a commit LSN would let pass.

    Raises:
        CommandInputError: nothing would pass, or more than has been seen.
    """
    _require_knowledge(facts)
    timeline = _timeline(facts)
    if facts.cut is not None and to_lsn <= facts.cut.lsn:
        raise _refused(
            f"the frontier is at {format_position(facts.cut.lsn)}, not below {format_position(to_lsn)}",
            "nothing waits there; `slackwater doctor` shows what waits",
        )
    newest = _newest_end(facts)
    if newest is None or to_lsn > newest:
        seen = "no END was seen" if newest is None else f"the newest END seen is {format_position(newest)}"
        raise _refused(
            f"{seen}, {format_position(to_lsn)} is above it",
            "transactions nobody has seen cannot be skipped; name the commit LSN of an open one",
        )
    passed = tuple(
        t for t in facts.open if t.xid != SNAPSHOT_XID and (t.commit_lsn is None or t.commit_lsn <= to_lsn)
    )
    if not any(t.commit_lsn is not None or _is_named(t) for t in passed):
        raise _refused(
            f"no transaction up to {format_position(to_lsn)} has been open for long",
            "wait until the sidecar names one (sidecar.open_after); `slackwater doctor` shows it",
        )
    return SkipPlan(timeline=timeline, to_lsn=to_lsn, passed=passed)


def plan_timeline(facts: SourceFacts, decided: Sequence[Decision], *, without_snapshot: bool) -> TimelinePlan:
    """Works out the timeline that would begin where LSNs went back.

    Args:
        facts: Of the source.
        decided: What its cut log holds.
        without_snapshot: Begin although no snapshot was seen behind that place.

    Raises:
        CommandInputError: LSNs did not go back, it is decided already, or there is no snapshot.
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
            f"timeline {max(newer)} is decided already",
            "its sidecar obeys within a second when it runs; `slackwater doctor` says whether it does",
        )
    if not status.regression.has_snapshot and not without_snapshot:
        raise _refused(
            "no snapshot was seen behind the place where LSNs went back",
            "rows that changed meanwhile would be missed: have the connector take a new snapshot "
            "(snapshot.mode=always, or delete its offsets), or say --without-snapshot",
        )
    return TimelinePlan(timeline=timeline + 1, regression=status.regression)


def show_lines(
    source: str, newest: PublishedCut | None, status: FrontierStatus | None, decided: Sequence[Decision]
) -> Iterator[str]:
    """Writes the newest cut, the state and the decisions of a source."""
    rows = [("source", source)]
    if status is not None:
        detail = f": {status.detail}" if status.detail else ""
        rows.append(("state", f"{status.state}{detail}"))
    if newest is None:
        rows.append(("newest cut", "none yet"))
    else:
        cut = newest.cut
        rows.append(("newest cut", f"{format_position(cut.lsn)} on timeline {cut.timeline}"))
        rows.append(("in the cut log", f"at offset {newest.log_offset}"))
    yield from aligned(rows)
    if not decided:
        yield "decisions: none"
        return
    yield ""
    table = [("decided", "by", "what", "reason")]
    yield from aligned(table + [(_time(d.wall_ms), d.decided_by, _what(d), d.reason or "-") for d in decided])


def skip_lines(source: str, plan: SkipPlan) -> Iterator[str]:
    """Writes what would be let pass."""
    yield f"source {source}, timeline {plan.timeline}: up to commit {format_position(plan.to_lsn)} would pass"
    for transaction in plan.passed:
        yield f"  {describe_open(transaction)}"
    yield "What was not read of these transactions will be missing from every pipeline."


def timeline_lines(source: str, plan: TimelinePlan) -> Iterator[str]:
    """Writes where the new timeline would begin."""
    found = plan.regression
    yield f"source {source}: timeline {plan.timeline} would begin where LSNs went back"
    what = f"transaction {found.xid}" if found.xid else "an initial snapshot"
    yield f"  {what} at {format_position(found.commit_lsn)}, after {format_position(found.newest_lsn)}"
    yield f"  offset {found.transaction_offset} of the transaction topic; data topics from the newest cut"
    seen = "a new snapshot was seen behind it" if found.has_snapshot else "NO new snapshot was seen behind it"
    yield f"  {seen}"


def pipeline_lines(source: str, timeline: int, pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    """Writes what has to be done with the pipelines of a source."""
    yield f"Pipelines of {source} end at the last cut of the old timeline. For each of them:"
    yield "  1. stop it"
    yield f"  2. set timeline = {timeline} in slackwater.toml (or SLACKWATER_TIMELINE={timeline})"
    yield "  3. start it with a new --checkpoint, and a new output topic (a new revision) if readers must"
    yield "     not see documents of the old database until they are replaced"
    names = sorted(p.name for p in pipelines if p.source == source)
    yield f"Registered: {', '.join(names) or 'none'}"


def _refused(reason: str, hint: str) -> CommandInputError:
    return CommandInputError(f"nothing was decided: {reason}", hint)


def _require_knowledge(facts: SourceFacts) -> None:
    error = facts.redis_error or facts.kafka_error
    if error is not None:
        raise _refused(error, "decide when Redis and Kafka can be asked")


def _timeline(facts: SourceFacts) -> int:
    known = [facts.cut.timeline] if facts.cut else []
    if facts.status is not None and facts.status.timeline is not None:
        known.append(facts.status.timeline)
    if not known:
        raise _refused(f"nothing is known of {facts.source}", "start its sidecar first")
    return max(known)


def _newest_end(facts: SourceFacts) -> int | None:
    seen = [t.commit_lsn for t in facts.open if t.commit_lsn is not None and t.xid != SNAPSHOT_XID]
    if facts.newest_end is not None:
        seen.append(facts.newest_end.commit_lsn)
    return max(seen, default=None)


def _is_named(transaction: OpenTransaction) -> bool:
    """Says if a transaction without END has rows: it is given up when a later one is skipped to."""
    return bool(transaction.received)


def _what(decision: Decision) -> str:
    if isinstance(decision, SkipDecision):
        return f"skip to {format_position(decision.to_lsn)} on timeline {decision.timeline}"
    if isinstance(decision, PassDecision):
        return f"read on past offset {decision.log_offset} of the cut log"
    return f"begin timeline {decision.timeline} at transaction offset {decision.transaction_offset}"


def _time(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
