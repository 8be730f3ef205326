"""``slackwater status``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import click
import msgspec

from slackwater.cli.pipelines import (
    cause_lines,
    pipeline_table,
    read_topology,
    reported_status,
)
from slackwater.command.invocation import (
    ANSWERS_WITHIN,
    kafka_settings,
    redis_settings,
    required,
    setting,
    start_command,
)
from slackwater.command.output import Output, ago, aligned, json_option
from slackwater.control import (
    ComponentKind,
    DelayCause,
    PipelineNode,
    SourceSigns,
    fault_of_run,
    faults_of_source,
)
from slackwater.cuts import FrontierState, FrontierStatus, MarkerStore, RedisMarkerStore
from slackwater.protocol import (
    Cut,
    OpenTransaction,
    SystemClock,
    UnavailableError,
    epoch_ms,
    format_position,
    from_epoch_ms,
)
from slackwater.settings.model import Settings


@click.command()
@setting("source", "The connector's topic.prefix.")
@setting("redis.url", "redis://host:port, where the sidecar publishes.")
@setting("kafka.bootstrap", "The brokers; omit to hide pipelines.")
@setting("timeline", "Timeline of the source.  [default: 1]")
@json_option("one JSON object")
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
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
    settings = start_command(ctx)
    source = required(settings.source, "source", "which source to show")
    redis = redis_settings(settings, "where the sidecar publishes")
    store = RedisMarkerStore.connect(redis.url, password=redis.password, timeout=ANSWERS_WITHIN)
    now, output = SystemClock().now(), Output()
    try:
        is_known = (reported_status(store, source) or store.newest(source, settings.timeline)) is not None
        pipelines, problem = _pipelines(settings, source, now, is_known=is_known)
        found = source_status(store, source, settings.timeline, epoch_ms(now), pipelines, problem)
        lines = [] if as_json else status_lines(store, source, settings.timeline, now)
    finally:
        store.close()
    if as_json:
        output.line(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    else:
        why = f"not known: {problem}" if problem else "not shown, because --bootstrap is not set"
        shown = [f"pipelines: {why}"] if pipelines is None else pipeline_table(pipelines, epoch_ms(now))
        blamed = ["", *cause_lines(found.causes)] if found.causes else []
        output.lines((*lines, "", *shown, *blamed))
    ctx.exit(0 if found.is_well else 1)


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
    store: MarkerStore,
    source: str,
    timeline: int,
    now_ms: int,
    pipelines: Sequence[PipelineNode] | None,
    kafka_error: str = "",
) -> SourceStatus:
    """Returns what Redis has of the source, beside its pipelines; see :func:`status_lines`.

    Args:
        store: Where to ask.
        source: Its name.
        timeline: The least one to look at.
        now_ms: The time, milliseconds since the epoch.
        pipelines: Those that read the source; None: not known.
        kafka_error: Why they could not be read; empty: they could, or were not asked for.

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
        causes.append(DelayCause(kind=ComponentKind.KAFKA, name=source, evidence=kafka_error, advice=advice))
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


def _status(store: MarkerStore, source: str, timeline: int) -> tuple[FrontierStatus | None, int]:
    """Returns what the sidecar has said, and the timeline that counts."""
    said = store.status(source)
    if said is not None and said.timeline is not None:
        timeline = max(timeline, said.timeline)
    return said, timeline


def _pipelines(
    settings: Settings, source: str, now: datetime, *, is_known: bool
) -> tuple[Sequence[PipelineNode] | None, str]:
    """Returns the pipelines of the source, or None and why Kafka could not be asked; empty: not asked for.

    Raises:
        InputError: Neither Redis nor Kafka knows such a source.
    """
    if settings.kafka.bootstrap is None:
        return None, ""
    try:
        kafka = kafka_settings(settings, "where pipelines register")
        topology = read_topology(kafka, epoch_ms(now), source, is_known=is_known)
    except UnavailableError as error:
        return None, str(error)
    return [each for each in topology.pipelines if each.source == source], ""


def status_lines(store: MarkerStore, source: str, timeline: int, now: datetime) -> list[str]:
    """Writes what Redis has of the source.

    Args:
        store: Where to ask.
        source: Its name.
        timeline: The least one to look at; a newer one that its sidecar follows wins.
        now: The time.

    Raises:
        MarkerStoreUnavailableError: the store is away.
    """
    status, timeline = _status(store, source, timeline)
    newest = store.newest(source, timeline)
    if status is None and newest is None:
        return [
            f"source {source}: unknown; no sidecar has reported to this Redis.",
            f"Start one: slackwater sidecar --source {source} --bootstrap HOST:PORT --redis-url …",
        ]
    rows = [("source", f"{source}, timeline {timeline}")]
    if status is not None:
        rows.append(("state", f"{status.state}{': ' if status.detail else ''}{status.detail}"))
        rows.append(("sidecar", f"{status.sidecar}, last heard {_ago(status.wall_ms, now)}"))
        rows.extend(_connector(status, now))
    rows.extend(_frontier(newest.cut, now) if newest else [("frontier", "no cut yet")])
    return [*aligned(rows), "", *_open(store.open(source), now)]


def _connector(status: FrontierStatus, now: datetime) -> Iterator[tuple[str, str]]:
    report = status.connector
    if report is None:
        return
    tasks = ", ".join(f"task {task.number} {task.state.lower()}" for task in report.tasks)
    if report.state:
        yield "connector", ", ".join(filter(None, (report.state.lower(), tasks)))
    if report.heartbeat_ms is not None:
        yield "heartbeat", _ago(report.heartbeat_ms, now)
    if report.slot is not None and report.slot.exists:
        used = "in use" if report.slot.is_active else "not in use"
        kept = f"{report.slot.retained_bytes / (1 << 20):,.1f} MiB of WAL kept"
        yield "slot", f"{report.slot.name}, {used}, {kept}"


def _frontier(cut: Cut, now: datetime) -> Iterator[tuple[str, str]]:
    partitions = sum(len(offsets) for offsets in cut.end_offsets.values())
    yield "frontier", f"{format_position(cut.lsn)} ({cut.lsn})"
    yield (
        "newest commit",
        f"{from_epoch_ms(cut.commit_ts_ms):%Y-%m-%d %H:%M:%S.%f} UTC, {_ago(cut.commit_ts_ms, now)}",
    )
    yield "change events", f"{cut.event_count:,} in {len(cut.end_offsets)} topics, {partitions} partitions"


def _open(transactions: list[OpenTransaction], now: datetime) -> list[str]:
    if not transactions:
        return ["open transactions: none"]
    rows = [("open transactions", "since", "received / expected", "")]
    for transaction in transactions:
        events = ", ".join(_counts(transaction.received, transaction.expected)) or "-"
        rows.append((f"xid {transaction.xid}", _ago(transaction.since_ms, now), events, transaction.hint))
    return [*aligned(rows), "`slackwater doctor` shows the cause and the remedy"]


def _counts(received: Mapping[str, int], expected: Mapping[str, int]) -> Iterator[str]:
    for table in sorted(received.keys() | expected.keys()):
        yield f"{table} {received.get(table, 0)} / {expected.get(table, '?')}"


def _ago(milliseconds: int, now: datetime) -> str:
    return ago(milliseconds, epoch_ms(now))
