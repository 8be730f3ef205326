"""``slackwater status``."""

from collections.abc import Iterator, Mapping
from datetime import datetime

import click

from slackwater.conversion import kafka_settings, redis_settings
from slackwater.doctor.facts import is_silent
from slackwater.invocation import required, setting, start_command
from slackwater.output import Output, ago, aligned
from slackwater.pipelines import pipeline_table, read_topology
from slackwater.settings import Settings
from slackwater_markers import MarkersError, MarkerStore, RedisMarkerStore
from slackwater_protocol import Cut, OpenTransaction, SystemClock, epoch_ms, format_position, from_epoch_ms


@click.command()
@setting("source", "--source", metavar="NAME", help="The connector's topic.prefix.")
@setting("redis.url", "--redis-url", metavar="URL", help="redis://host:port, where the sidecar publishes.")
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers; without, no pipelines.")
@setting("timeline", "--timeline", type=int, help="Of the source's LSNs.  [default: 1]")
@click.pass_context
def status(ctx: click.Context) -> None:
    """Show a source: frontier, state, lag, open transactions, pipelines.

    Of the source it shows what the sidecar says in Redis; `slackwater doctor` compares that with the cut log.
    `open transactions` lists what the frontier waits for: which transaction, how many of its change events
    have been read per table, and since when. Pipelines are shown as they told Kafka of themselves;
    `slackwater topology` says more of them.

    \b
    Example:
      slackwater status --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379

    docs/glossary.md explains the words, docs/sidecar.md how the frontier moves.
    """
    settings = start_command(ctx)
    source = required(settings.source, "source", "--source", "which source to show")
    redis = redis_settings(settings, "where the sidecar publishes")
    store = RedisMarkerStore.connect(redis.url, password=redis.password)
    now, output = SystemClock().now(), Output()
    try:
        for line in status_lines(store, source, settings.timeline, now):
            output.line(line)
    finally:
        store.close()
    output.line()
    for line in _pipelines(settings, source, now):
        output.line(line)


def _pipelines(settings: Settings, source: str, now: datetime) -> list[str]:
    if settings.kafka.bootstrap is None:
        return ["pipelines: not shown, since --bootstrap is not given"]
    now_ms = epoch_ms(now)
    try:
        topology = read_topology(kafka_settings(settings, "where pipelines register"), now_ms, source)
    except MarkersError as error:
        return [f"pipelines: not known: {error}"]
    return pipeline_table([each for each in topology.pipelines if each.source == source], now_ms)


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
    status = store.status(source)
    if status is not None and status.timeline is not None:
        timeline = max(timeline, status.timeline)
    newest = store.newest(source, timeline)
    if status is None and newest is None:
        return [
            f"source {source}: nothing known; no sidecar has reported to this Redis.",
            f"Start one: slackwater sidecar --source {source} --bootstrap HOST:PORT --redis-url …",
        ]
    rows = [("source", f"{source}, timeline {timeline}")]
    if status is not None:
        rows.append(("state", f"{status.state}{': ' if status.detail else ''}{status.detail}"))
        rows.append(("sidecar", f"{status.sidecar}, last heard {_ago(status.wall_ms, now)}"))
    rows.extend(_frontier(newest.cut, now) if newest else [("frontier", "no cut yet")])
    lines = aligned(rows)
    if status is not None and is_silent(status, epoch_ms(now)):
        lines.append("warning: the sidecar is silent; is its process still running?")
    return [*lines, "", *_open(store.open(source), now)]


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
    return [*aligned(rows), "`slackwater doctor` says why and what helps"]


def _counts(received: Mapping[str, int], expected: Mapping[str, int]) -> Iterator[str]:
    for table in sorted(received.keys() | expected.keys()):
        yield f"{table} {received.get(table, 0)} / {expected.get(table, '?')}"


def _ago(milliseconds: int, now: datetime) -> str:
    return ago(milliseconds, epoch_ms(now))
