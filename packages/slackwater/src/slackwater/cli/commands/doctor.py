"""``slackwater doctor``."""

from collections.abc import Iterator, Sequence

import click
import msgspec

from slackwater.cdc.connector import unknown_properties
from slackwater.cli.doctor.diagnosis import diagnose
from slackwater.cli.doctor.examination import examine, open_sources
from slackwater.cli.doctor.facts import Finding, SourceFacts, end_of, make_report
from slackwater.cli.pipelines import pipeline_table
from slackwater.command.invocation import setting, sources_of, start_command
from slackwater.command.output import Output, ago, aligned, json_option, utc
from slackwater.protocol import OpenTransaction, format_position
from slackwater.settings.errors import unknown
from slackwater.settings.model import Settings

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
        lines += ["", *_open_lines(transaction, facts)]
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
        yield (
            "frontier",
            f"{format_position(cut.lsn)} on timeline {cut.timeline}, {cut.event_count:,} change events",
        )
        yield "newest commit", ago(cut.commit_ts_ms, facts.now_ms)
    else:
        yield "frontier", "no cut yet"
    end = facts.newest_end
    if end is not None:
        yield (
            "newest END",
            f"{format_position(end.commit_lsn)}, committed {ago(end.commit_ts_ms, facts.now_ms)}",
        )
    yield "topics", f"{len(facts.data_topics)} of tables with {len(facts.partitions)} partitions"
    if facts.without_topic:
        yield (
            "without topic",
            f"{', '.join(facts.without_topic)}: empty until the connector writes a first row; if a table is "
            "partitioned, its publication needs publish_via_partition_root",
        )
    if status is not None and (status.connector is None or not status.connector.properties):
        unknown = unknown_properties(facts.source)
        yield "warning", f"{unknown.text}. {unknown.hint}"
    yield "open", f"{len(facts.open)} transactions for longer than the threshold"
    if facts.pipelines_error is not None:
        yield "pipelines", f"not known: {facts.pipelines_error}"


def _open_lines(transaction: OpenTransaction, facts: SourceFacts) -> list[str]:
    lsn = transaction.commit_lsn
    at = f"commit {format_position(lsn)}" if lsn else "END not read"
    lines = [f"transaction {transaction.xid}: {at}, incomplete since {utc(transaction.since_ms)}"]
    tables = sorted({*transaction.expected, *transaction.received})
    rows = [("  table", "received", "expected")]
    rows += [
        (f"  {t}", str(transaction.received.get(t, 0)), str(transaction.expected.get(t, "?"))) for t in tables
    ]
    lines += aligned(rows) if tables else []
    partitions = [("  partition", "first row", "read next", "end now")]
    names = sorted(transaction.places)
    partitions += [_partition_row(name, transaction, facts) for name in names[:_SHOWN_PARTITIONS]]
    lines += aligned(partitions) if names else []
    if len(names) > _SHOWN_PARTITIONS:
        lines.append(f"  … and {len(names) - _SHOWN_PARTITIONS} more partitions (--json lists all)")
    return lines


def _partition_row(name: str, transaction: OpenTransaction, facts: SourceFacts) -> tuple[str, str, str, str]:
    first, position = transaction.places[name]
    end = end_of(name, facts)
    return f"  {name}", str(first) if first >= 0 else "-", str(position), "?" if end is None else str(end)


def _verdict(source: str, findings: Sequence[Finding]) -> str:
    if not findings:
        return f"source {source} is healthy"
    causes = ", ".join(dict.fromkeys(str(finding.cause).replace("_", " ") for finding in findings))
    return f"source {source} needs attention: {causes}"
