"""``slackwater status`` and ``slackwater doctor``: how a source is, and what is wrong with it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

import click
import msgspec

from slackwater.cdc.connector import unknown_properties
from slackwater.cli.diagnosis import Finding, diagnose
from slackwater.cli.examination import SourceFacts, examine, open_sources
from slackwater.cli.main import settings_command
from slackwater.cli.pipelines import (
    cause_lines,
    open_marker_store,
    pipeline_table,
    read_topology,
    reported_status,
)
from slackwater.command.invocation import required, setting, sources_of, start_command
from slackwater.command.output import Output, ago, aligned, json_option, utc
from slackwater.control import (
    ComponentKind,
    DelayCause,
    PipelineNode,
    SourceSigns,
    fault_of_run,
    faults_of_source,
)
from slackwater.cuts import FrontierState, FrontierStatus, RedisMarkerStore
from slackwater.protocol import (
    Cut,
    OpenTransaction,
    SystemClock,
    UnavailableError,
    epoch_ms,
    format_position,
    from_epoch_ms,
)
from slackwater.settings.errors import unknown
from slackwater.settings.model import Settings


@settings_command()
@setting("source", "The connector's topic.prefix.")
@setting("redis.url", "redis://host:port, where the sidecar publishes.")
@setting("kafka.bootstrap", "The brokers; omit to hide pipelines.")
@setting("timeline", "Timeline of the source.  [default: 1]")
@json_option("one JSON object")
def status(settings: Settings, as_json: bool) -> int:
    """Show the status of a source: frontier, state, delay, open transactions, pipelines.

    The status of the source is the one that the sidecar has published in Redis; `slackwater doctor` compares
    it with the cut log. `open transactions` lists what the frontier is waiting for: each transaction, how
    many of its change events have been read per table, and since when it is open. The pipelines are those
    registered in Kafka; `slackwater topology` shows more about them.

    What has stopped is named at the end, with the evidence and a remedy: sidecar, connector, Kafka,
    Kafka Connect, database or pipeline. The exit code is 0 if the frontier advances and nothing has stopped,
    and 1 otherwise.

    \b
    Examples:
      slackwater status --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379
      slackwater status --source inv --json | jq .delay_ms

    docs/glossary.md explains the terms, and docs/sidecar.md how the frontier advances.
    """
    source = required(settings.source, "source", "which source to show")
    now = SystemClock().now()
    with open_marker_store(settings, "where the sidecar publishes") as store:
        is_known = (reported_status(store, source) or store.newest(source, settings.timeline)) is not None
        pipelines, problem = _pipelines(settings, source, is_known=is_known)
        found = source_status(store, source, settings.timeline, epoch_ms(now), pipelines, problem)
        lines = [] if as_json else status_lines(store, source, settings.timeline, now)
    why = f"not known: {problem}" if problem else "not shown, because --bootstrap is not set"
    shown = [f"pipelines: {why}"] if pipelines is None else pipeline_table(pipelines, epoch_ms(now))
    blamed = ["", *cause_lines(found.causes)] if found.causes else []
    text = msgspec.json.format(msgspec.json.encode(found), indent=1).decode()
    Output().report(text, (*lines, "", *shown, *blamed), as_json=as_json)
    return 0 if found.is_well else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """What is known of a source, for programs."""

    source: str
    timeline: int
    is_well: bool
    """The frontier moves, and no component is known to have stopped."""
    state: str | None
    """As the sidecar says; None: none has said anything."""
    detail: str
    """What a person needs beyond the state; empty when all is well."""
    sidecar: str | None
    heard_ms: int | None
    """The sidecar's newest word, milliseconds since the epoch."""
    frontier: str | None
    """Commit LSN of the newest cut, as PostgreSQL writes it; None: there is none."""
    delay_ms: int | None
    """By how much the newest cut's commit is older than now."""
    event_count: int | None
    open_transactions: tuple[OpenTransaction, ...]
    pipelines: tuple[PipelineNode, ...] | None
    """Those that read the source; None: not known."""
    causes: tuple[DelayCause, ...] = ()
    """The components that have stopped, each with its evidence; empty if none is known."""


def source_status(
    store: RedisMarkerStore,
    source: str,
    timeline: int,
    now_ms: int,
    pipelines: Sequence[PipelineNode] | None,
    kafka_error: str = "",
) -> SourceStatus:
    """Returns what Redis has of the source, beside its pipelines; see :func:`status_lines`.

    The timeline is the least one to look at. No pipelines: they are not known, and the error says why, if
    Kafka was asked.

    Raises:
        MarkerStoreUnavailableError: the store is away.
    """
    said, timeline = _status(store, source, timeline)
    newest = store.newest(source, timeline)
    moves = said is not None and said.state is FrontierState.RUNNING
    signs = SourceSigns(source=source, status=said)
    causes = [*faults_of_source(signs, now_ms)]
    if kafka_error and not any(each.kind is ComponentKind.KAFKA for each in causes):
        advice = "check the brokers, --bootstrap and the rights; docs/runbooks.md#kafka-away"
        causes.append(DelayCause(ComponentKind.KAFKA, source, kafka_error, advice))
    causes += filter(None, (fault_of_run(each, signs, now_ms) for each in pipelines or ()))
    return SourceStatus(
        source=source,
        timeline=timeline,
        is_well=moves and not causes,
        state=str(said.state) if said else None,
        detail=said.detail if said else "",
        sidecar=said.sidecar if said else None,
        heard_ms=said.wall_ms if said else None,
        frontier=format_position(newest.cut.lsn) if newest else None,
        delay_ms=max(0, now_ms - newest.cut.commit_ts_ms) if newest else None,
        event_count=newest.cut.event_count if newest else None,
        open_transactions=tuple(store.open(source)),
        pipelines=None if pipelines is None else tuple(pipelines),
        causes=tuple(causes),
    )


def _status(store: RedisMarkerStore, source: str, timeline: int) -> tuple[FrontierStatus | None, int]:
    """Returns what the sidecar has said, and the timeline that counts."""
    said = store.status(source)
    if said is not None and said.timeline is not None:
        timeline = max(timeline, said.timeline)
    return said, timeline


def _pipelines(
    settings: Settings, source: str, *, is_known: bool
) -> tuple[Sequence[PipelineNode] | None, str]:
    """Returns the pipelines of the source, or None and why Kafka could not be asked; empty: not asked for."""
    if settings.kafka.bootstrap is None:
        return None, ""
    try:
        topology = read_topology(settings, source, is_known=is_known)
    except UnavailableError as error:
        return None, str(error)
    return [each for each in topology.pipelines if each.source == source], ""


def status_lines(store: RedisMarkerStore, source: str, timeline: int, now: datetime) -> list[str]:
    """Writes what Redis has of the source.

    The timeline is the least one to look at; a newer one that its sidecar follows wins.

    Raises:
        MarkerStoreUnavailableError: the store is away.
    """
    (status, timeline), now_ms = _status(store, source, timeline), epoch_ms(now)
    newest = store.newest(source, timeline)
    if status is None and newest is None:
        return [
            f"source {source}: unknown; no sidecar has reported to this Redis.",
            f"Start one: slackwater sidecar --source {source} --bootstrap HOST:PORT --redis-url …",
        ]
    rows = [("source", f"{source}, timeline {timeline}")]
    if status is not None:
        rows.append(("state", f"{status.state}{': ' if status.detail else ''}{status.detail}"))
        rows.append(("sidecar", f"{status.sidecar}, last heard {ago(status.wall_ms, now_ms)}"))
        rows.extend(_connector(status, now_ms))
    rows.extend(_frontier(newest.cut, now_ms) if newest else [("frontier", "no cut yet")])
    return [*aligned(rows), "", *_open(store.open(source), now_ms)]


def _connector(status: FrontierStatus, now_ms: int) -> Iterator[tuple[str, str]]:
    report = status.connector
    if report is None:
        return
    tasks = ", ".join(f"task {task.number} {task.state.lower()}" for task in report.tasks)
    if report.state:
        yield "connector", ", ".join(filter(None, (report.state.lower(), tasks)))
    if report.heartbeat_ms is not None:
        yield "heartbeat", ago(report.heartbeat_ms, now_ms)
    if report.slot is not None and report.slot.exists:
        used = "in use" if report.slot.is_active else "not in use"
        kept = f"{report.slot.retained_bytes / (1 << 20):,.1f} MiB of WAL kept"
        yield "slot", f"{report.slot.name}, {used}, {kept}"


def _frontier(cut: Cut, now_ms: int) -> Iterator[tuple[str, str]]:
    partitions = sum(len(offsets) for offsets in cut.end_offsets.values())
    yield "frontier", f"{format_position(cut.lsn)} ({cut.lsn})"
    at = f"{from_epoch_ms(cut.commit_ts_ms):%Y-%m-%d %H:%M:%S.%f} UTC"
    yield "newest commit", f"{at}, {ago(cut.commit_ts_ms, now_ms)}"
    yield "change events", f"{cut.event_count:,} in {len(cut.end_offsets)} topics, {partitions} partitions"


def _open(transactions: list[OpenTransaction], now_ms: int) -> list[str]:
    if not transactions:
        return ["open transactions: none"]
    rows = [("open transactions", "since", "received / expected", "")]
    for transaction in transactions:
        events = ", ".join(_counts(transaction.received, transaction.expected)) or "-"
        rows.append((f"xid {transaction.xid}", ago(transaction.since_ms, now_ms), events, transaction.hint))
    return [*aligned(rows), "`slackwater doctor` shows the cause and the remedy"]


def _counts(received: Mapping[str, int], expected: Mapping[str, int]) -> Iterator[str]:
    for table in sorted(received.keys() | expected.keys()):
        yield f"{table} {received.get(table, 0)} / {expected.get(table, '?')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedPartition:
    """A partition that rows of an open transaction are read from."""

    first: int | None
    """Offset of the first row that was read of it; None: there is none yet."""
    next: int
    """The next offset that the sidecar reads."""
    end: int | None
    """Where readers of committed records stop now; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedTransaction:
    """A transaction that is incomplete for longer than the sidecar's threshold."""

    xid: int
    commit_lsn: str | None
    """As PostgreSQL writes it; None: its END was not read."""
    since_ms: int
    """Since when it is waited for, milliseconds since the epoch."""
    expected: Mapping[str, int]
    """Rows by table, as END counts them."""
    received: Mapping[str, int]
    """Rows by table."""
    partitions: Mapping[str, AwaitedPartition]
    """By topic/partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """All that can be learnt of a source at one moment, and what is wrong with it."""

    source: str
    is_healthy: bool
    """Nothing was found."""
    state: str | None
    """As its sidecar says; None: no sidecar has said anything, or Redis cannot be asked."""
    timeline: int | None
    """Of the newest cut."""
    frontier: str | None
    """Commit LSN of the newest cut, as PostgreSQL writes it; None: there is none."""
    delay_ms: int | None
    """By how much the newest cut's commit is older than the time of the report."""
    newest_end: str | None
    """Commit LSN of the newest END in the transaction topic."""
    without_topic: tuple[str, ...]
    """Tables that count as empty, since they have no topic."""
    open_transactions: tuple[AwaitedTransaction, ...]
    """The one that is waited for first; its successors behind it."""
    pipelines: tuple[PipelineNode, ...]
    """Pipelines that read the source."""
    findings: tuple[Finding, ...]
    """The most fundamental first."""


def make_report(facts: SourceFacts, findings: Sequence[Finding]) -> SourceReport:
    """Puts the facts and what was found into the form that programs get."""
    cut, status = facts.cut, facts.status
    return SourceReport(
        source=facts.source,
        is_healthy=not findings,
        state=str(status.state) if status else None,
        timeline=cut.timeline if cut else None,
        frontier=format_position(cut.lsn) if cut else None,
        delay_ms=facts.now_ms - cut.commit_ts_ms if cut else None,
        newest_end=format_position(facts.newest_end.commit_lsn) if facts.newest_end else None,
        without_topic=facts.without_topic,
        open_transactions=tuple(_awaited(transaction, facts) for transaction in facts.open),
        pipelines=facts.pipelines,
        findings=tuple(findings),
    )


def _awaited(transaction: OpenTransaction, facts: SourceFacts) -> AwaitedTransaction:
    return AwaitedTransaction(
        xid=transaction.xid,
        commit_lsn=format_position(transaction.commit_lsn) if transaction.commit_lsn else None,
        since_ms=transaction.since_ms,
        expected=transaction.expected,
        received=transaction.received,
        partitions={
            name: AwaitedPartition(first=first if first >= 0 else None, next=position, end=facts.end_of(name))
            for name, (first, position) in sorted(transaction.places.items())
        },
    )


_SHOWN_PARTITIONS = 12


@click.command()
@click.option(
    "--source", metavar="NAME", help="A connector's topic.prefix.  [default: all configured sources]"
)
@setting("kafka.bootstrap", "The brokers that Debezium writes to.")
@setting("redis.url", "redis://host:port, where the sidecar publishes.")
@json_option("one JSON object per source")
@click.pass_context
def doctor(ctx: click.Context, source: str | None, as_json: bool) -> None:
    """Diagnose the problems of a source, with their causes and the commands that fix them.

    Reads Redis and Kafka, changes nothing, and takes a few seconds. For each transaction that has been open
    for longer than the sidecar's threshold, it shows the xid and commit LSN, since when the sidecar has been
    waiting, and the expected and received rows per table. For each partition it shows the first row, the next
    offset to be read and the end. It then gives the likely cause, with the facts that support it. Pipelines
    of the source are included: one that has failed or vanished needs attention.

    The exit code is 0 if the source is healthy, and 1 if something needs attention.

    \b
    Examples:
      slackwater doctor --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379
      slackwater doctor --json | jq .findings                 the rest from slackwater.toml

    Each finding refers to a runbook. For a frontier that does not move, see
    docs/runbooks.md#open-transaction.
    """
    settings = start_command(ctx, {"sources": source})
    is_named = source is not None
    healthy = [_examined(settings, each, is_named=is_named, as_json=as_json) for each in sources_of(settings)]
    ctx.exit(0 if all(healthy) else 1)


def _examined(settings: Settings, source: str, *, is_named: bool, as_json: bool) -> bool:
    """Shows what is known of a source; returns whether it is healthy."""
    with open_sources(settings, source) as sources:
        facts = examine(sources)
    if is_named:
        check_source(facts)
    findings = diagnose(facts)
    text = msgspec.json.format(msgspec.json.encode(make_report(facts, findings)), indent=1).decode()
    Output().report(text, report_lines(facts, findings), as_json=as_json)
    return not findings


def check_source(facts: SourceFacts) -> None:
    """Refuses a source of which there is nothing, if there are others.

    Raises:
        InputError: It is probably called something else.
    """
    if facts.others and not facts.is_known:
        more = f"it has no topics, and no sidecar; `slackwater sidecar --source {facts.source}` follows it"
        raise unknown("source", facts.source, facts.others, more)


def report_lines(facts: SourceFacts, findings: Sequence[Finding]) -> list[str]:
    """Writes what is known and what is wrong, for people."""
    lines = aligned(_overview(facts))
    for transaction in facts.open:
        lines += ["", *_open_lines(_awaited(transaction, facts))]
    if facts.pipelines:
        lines += ["", *pipeline_table(facts.pipelines, facts.now_ms)]
    for finding in findings:
        lines += ["", f"{finding.cause.replace('_', ' ')}: {finding.what}"]
        lines += [f"  because  {text}" for text in finding.evidence]
        lines += [f"  try      {text}" for text in finding.advice]
    return [*lines, "", _verdict(facts.source, findings)]


def _overview(facts: SourceFacts) -> Iterator[tuple[str, str]]:
    cut, status = facts.cut, facts.status
    yield "source", facts.source
    yield "state", f"{status.state}" if status else "unknown"
    if cut is not None:
        at = f"{format_position(cut.lsn)} on timeline {cut.timeline}"
        yield "frontier", f"{at}, {cut.event_count:,} change events"
        yield "newest commit", ago(cut.commit_ts_ms, facts.now_ms)
    else:
        yield "frontier", "no cut yet"
    end = facts.newest_end
    if end is not None:
        committed = ago(end.commit_ts_ms, facts.now_ms)
        yield "newest END", f"{format_position(end.commit_lsn)}, committed {committed}"
    yield "topics", f"{len(facts.data_topics)} of tables with {len(facts.partitions)} partitions"
    if facts.without_topic:
        why = "empty until the connector writes a first row; if a table is partitioned, its publication needs"
        yield "without topic", f"{', '.join(facts.without_topic)}: {why} publish_via_partition_root"
    if status is not None and (status.connector is None or not status.connector.properties):
        unknown = unknown_properties(facts.source)
        yield "warning", f"{unknown.text}. {unknown.hint}"
    yield "open", f"{len(facts.open)} transactions for longer than the threshold"
    if facts.pipelines_error is not None:
        yield "pipelines", f"not known: {facts.pipelines_error}"


def _open_lines(transaction: AwaitedTransaction) -> list[str]:
    at = f"commit {transaction.commit_lsn}" if transaction.commit_lsn else "END not read"
    lines = [f"transaction {transaction.xid}: {at}, incomplete since {utc(transaction.since_ms)}"]
    received, expected, places = transaction.received, transaction.expected, transaction.partitions
    rows = [("  table", "received", "expected")]
    tables = sorted({*expected, *received})
    rows += [(f"  {each}", str(received.get(each, 0)), str(expected.get(each, "?"))) for each in tables]
    lines += aligned(rows) if tables else []
    partitions = [("  partition", "first row", "read next", "end now")]
    for name, each in islice(places.items(), _SHOWN_PARTITIONS):
        first, end = ("-" if each.first is None else each.first), ("?" if each.end is None else each.end)
        partitions.append((f"  {name}", str(first), str(each.next), str(end)))
    lines += aligned(partitions) if places else []
    if len(places) > _SHOWN_PARTITIONS:
        lines.append(f"  … and {len(places) - _SHOWN_PARTITIONS} more partitions (--json lists all)")
    return lines


def _verdict(source: str, findings: Sequence[Finding]) -> str:
    if not findings:
        return f"source {source} is healthy"
    causes = ", ".join(dict.fromkeys(str(finding.cause).replace("_", " ") for finding in findings))
    return f"source {source} needs attention: {causes}"
