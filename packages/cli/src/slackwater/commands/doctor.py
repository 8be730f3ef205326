"""``slackwater doctor``."""

import json

import click

from slackwater.conversion import sources_of
from slackwater.doctor.causes import diagnose
from slackwater.doctor.examination import examine, open_sources
from slackwater.doctor.report import report_json, report_lines
from slackwater.invocation import setting, start_command
from slackwater.output import Output
from slackwater.settings import Settings


@click.command()
@click.option("--source", metavar="NAME", help="A connector's topic.prefix.  [default: all of the settings]")
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers Debezium writes to.")
@setting("redis.url", "--redis-url", metavar="URL", help="redis://host:port, where the sidecar publishes.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each source instead of text.")
@click.pass_context
def doctor(ctx: click.Context, source: str | None, as_json: bool) -> None:
    """Say what is wrong with a source, why, and which command helps.

    Reads Redis and Kafka, changes nothing, takes a few seconds. For each transaction that has been open for
    longer than the sidecar's threshold: its xid and commit LSN, since when it is waited for, rows expected
    and received per table, per partition the first row, the next offset to be read and the end; and the
    likely cause, with the facts that show it.

    Exit code: 0 healthy, 1 something needs attention.

    \b
    Examples:
      slackwater doctor --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379
      slackwater doctor --json | jq .findings                 the rest from slackwater.toml

    It names the runbook for what it finds; docs/runbooks/open-transaction.md is the one for a frontier that
    does not move.
    """
    settings = start_command(ctx, {"sources": source})
    healthy = [_examined(settings, source, as_json=as_json) for source in sources_of(settings)]
    ctx.exit(0 if all(healthy) else 1)


def _examined(settings: Settings, source: str, *, as_json: bool) -> bool:
    """Shows what is known of a source; returns whether it is healthy."""
    with open_sources(settings, source) as sources:
        facts = examine(sources)
    findings, output = diagnose(facts), Output()
    if as_json:
        output.line(json.dumps(report_json(facts, findings), indent=1))
    else:
        for line in report_lines(facts, findings):
            output.line(line)
    return not findings
