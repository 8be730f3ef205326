"""``slackwater source``: decisions about a source, checked against the facts before they are recorded."""

import getpass
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import click

from slackwater.cli.examination import SourceFacts, Sources, examine, open_sources
from slackwater.cli.main import settings_group
from slackwater.command.boundary import options
from slackwater.command.invocation import YES, lsn_of, required, setting
from slackwater.command.output import Output, aligned, utc
from slackwater.control import known_pipelines
from slackwater.cuts import CutLog, CutLogDamagedError, FrontierState, FrontierStatus, TopicUnavailableError
from slackwater.protocol import (
    SNAPSHOT_XID,
    InputError,
    LogRecord,
    OpenTransaction,
    PassDecision,
    PublishedCut,
    Refusal,
    SkipDecision,
    TimelineDecision,
    epoch_ms,
    format_position,
)
from slackwater.settings.model import Settings
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

    def record(self, sources: Sources, decided_by: str, reason: str) -> int:
        """Takes it: sidecars obey the record. Returns its offset in the cut log."""
        now_ms = epoch_ms(sources.clock.now())
        taken = replace(self.decision, wall_ms=now_ms, decided_by=decided_by, reason=reason)
        (offset,) = sources.log.append_records([taken])
        return offset


def decisions_in(log: CutLog) -> list[Decision]:
    """Returns the newest decisions in a cut log, oldest first.

    Raises:
        TopicUnavailableError, StateError: the log cannot be read.
    """
    return [each for each in _newest_in(log) if isinstance(each, Decision)]


def refusal_in(log: CutLog) -> Refusal | None:
    """Returns the refusal of the source that is in force, according to its cut log.

    Raises:
        TopicUnavailableError, StateError: the log cannot be read.
    """
    return refusal_in_force(_newest_in(log))


def _newest_in(log: CutLog) -> Iterator[LogRecord]:
    return (each.record for each in log.records(max(-1, log.end() - LOOKED_BACK), with_cuts=False))


def refusal_in_force(records: Iterable[LogRecord]) -> Refusal | None:
    """Returns the newest refusal among records, oldest first, that no decision has lifted."""
    newest: Refusal | None = None
    for record in records:
        if isinstance(record, Refusal):
            newest = max(record, newest or record, key=lambda each: (each.timeline, each.newest_lsn))
        elif newest is not None and _lifts(record, newest):
            newest = None
    return newest


def _plan_pass(source: str, log: CutLog, log_offset: int) -> Plan[PassDecision]:
    """Determines how a record of the cut log is damaged, which would be passed."""
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

    The refusal is the one in force, according to the cut log.

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
    # Without END, a transaction with rows is given up when a later one is skipped to.
    if not reason and not any(t.commit_lsn is not None or t.received for t in passed):
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

    It needs a snapshot behind that place, unless it begins without one.

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
    after = f"commits after {format_position(since)}, up to {needed},"
    which = after if since else f"all commits up to {needed}"
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


@settings_group()
def source() -> None:
    """Make a decision for a source: skip a transaction, begin a timeline, skip a damaged record.

    These are decisions that no sidecar may make by itself. `slackwater doctor` tells you when one is needed.
    Decisions are records in the source's cut log. Every sidecar applies them, within a second or when it
    starts, and every pipeline sees their effect. They cannot be undone.

    \b
    Example:
      slackwater source show --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379

    For details see the sections open-transaction, regressed and cut-log of docs/runbooks.md.
    """


_of_a_source = options(
    setting("source", "The connector's topic.prefix."),
    setting("kafka.bootstrap", "The brokers that Debezium writes to."),
    setting("redis.url", "redis://host:port, where the sidecar publishes."),
)
_decides = options(
    click.option("--reason", default="", metavar="TEXT", help="Stored with the decision."), YES
)


@source.command()
@_of_a_source
def show(settings: Settings) -> None:
    """Show the newest cut, the state and all decisions of a source.

    \b
    Example:
      slackwater source show --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379
    """
    with _opened(settings) as sources:
        name = sources.topics.source
        status = sources.store.status(name)
        Output().lines(_show_lines(name, sources.log.newest(), status, decisions_in(sources.log)))


@source.command()
@_of_a_source
@click.option(
    "--to", "to_lsn", required=True, metavar="LSN", help="Commit LSN, such as 0/153D218, or decimal."
)
@_decides
def skip(settings: Settings, to_lsn: str, reason: str, yes: bool) -> None:
    """Skip all incomplete transactions up to a commit LSN.

    Use this for transactions whose rows will never arrive. `slackwater doctor` shows which ones and why. In
    every pipeline, rows of these transactions that were read become visible, and missing rows stay missing.
    The cut and the commit records of all pipelines list the skipped transactions.

    While the state is `misconfigured` it also says that all values up to that LSN are right, although the
    connector had a wrong setting: use it only if you know that.

    The command is refused if the LSN is above every END record that was read, if it is below a commit that
    was read while the connector had a wrong setting, or if no transaction is open up to that LSN and the
    state is not `misconfigured`.

    \b
    Example:
      slackwater source skip --source inv --to 0/153D218 --reason "rows dropped by a transform, ticket 17"
    """
    lsn = lsn_of(to_lsn, "--to")
    with _opened(settings) as sources:
        plan = plan_skip(examine(sources), lsn, refusal_in(sources.log))
        _take(sources, plan, "Skip them?", reason=reason, yes=yes)


@source.command(name="new-timeline")
@_of_a_source
@click.option("--without-snapshot", is_flag=True, help="Proceed although no new snapshot was seen.")
@_decides
def new_timeline(settings: Settings, without_snapshot: bool, reason: str, yes: bool) -> None:
    """Begin a new timeline after LSNs went back: after a failover, a restore, a move to another database.

    The command is refused unless the state is `regressed`. The connector must have started a new snapshot
    after that point, because the data in the pipelines is that of the old database. If there is no new
    snapshot, use --without-snapshot, but only if both databases had the same content at that point.

    Prints what you have to do with the pipelines: they start over.

    \b
    Example:
      slackwater source new-timeline --source inv --reason "restored from backup of Monday"
    """
    with _opened(settings) as sources:
        decided = decisions_in(sources.log)
        plan = plan_timeline(examine(sources), decided, without_snapshot=without_snapshot)
        begun = plan.decision.timeline
        _take(sources, plan, f"Begin timeline {begun}?", reason=reason, yes=yes)
        Output().lines(_pipeline_lines(sources.topics.source, begun, _registered(sources)))


@source.command(name="pass-record")
@_of_a_source
@click.option("--offset", required=True, type=int, metavar="N", help="Offset of the record in the cut log.")
@_decides
def pass_record(settings: Settings, offset: int, reason: str, yes: bool) -> None:
    """Skip a damaged record of the cut log. Its content is lost for all sidecars and pipelines.

    If the record was a cut, and no other cut lists its transactions, pipelines that have not read past it
    fail with an error that lists the missing commits. The command is refused if the record is readable.

    \b
    Example:
      slackwater source pass-record --source inv --offset 4711 --reason "written by hand, ticket 18"
    """
    with _opened(settings) as sources:
        plan = _plan_pass(sources.topics.source, sources.log, offset)
        _take(sources, plan, "Skip it?", reason=reason, yes=yes)


@contextmanager
def _opened(settings: Settings) -> Iterator[Sources]:
    name = required(settings.source, "source", "which source")
    with open_sources(settings, name) as sources:
        yield sources


def _take(sources: Sources, plan: Plan[Decision], question: str, *, reason: str, yes: bool) -> None:
    """Says what a decision would do, and records it if the user agrees."""
    output = Output()
    output.lines(plan.lines)
    if not yes:
        click.confirm(question, abort=True)
    offset = plan.record(sources, f"{getpass.getuser()}@{socket.gethostname()}", reason)
    output.line(f"decided; recorded in the cut log at offset {offset}. Sidecars apply it within a second.")


def _show_lines(
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
    yield from aligned(table + [(utc(d.wall_ms), d.decided_by, _what(d), d.reason or "-") for d in decided])


def _registered(sources: Sources) -> str:
    """Returns the names of the source's pipelines, for people."""
    try:
        found = known_pipelines(sources.pipelines.read(), epoch_ms(sources.clock.now()))
    except TopicUnavailableError as error:
        return f"not known: {error}"
    names = [p.registration.pipeline for p in found if p.registration.source == sources.topics.source]
    return ", ".join(names) or "none"


def _pipeline_lines(source: str, timeline: int, registered: str) -> Iterator[str]:
    """Writes what has to be done with the pipelines of a source."""
    yield f"Pipelines of {source} end at the last cut of the old timeline. For each of them:"
    yield "  1. stop it"
    yield f"  2. set timeline = {timeline} in slackwater.toml (or SLACKWATER_TIMELINE={timeline})"
    yield "  3. start it with a new --checkpoint, and a new output topic (a new revision) if readers must"
    yield "     not see documents of the old database until they are replaced"
    yield f"Registered: {registered}"


def _what(decision: Decision) -> str:
    if isinstance(decision, SkipDecision):
        return f"skip to {format_position(decision.to_lsn)} on timeline {decision.timeline}"
    if isinstance(decision, PassDecision):
        return f"read on past offset {decision.log_offset} of the cut log"
    return f"begin timeline {decision.timeline} at transaction offset {decision.transaction_offset}"
