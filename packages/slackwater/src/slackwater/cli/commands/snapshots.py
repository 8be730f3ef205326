"""``slackwater snapshots``."""

import click
import msgspec

from slackwater.cli.pipelines import read_snapshots, read_topology
from slackwater.command.conversion import kafka_settings
from slackwater.command.invocation import setting, start_command
from slackwater.command.output import Output, aligned
from slackwater.control import SourceSnapshot
from slackwater.protocol import SystemClock, epoch_ms


@click.command()
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of the pipelines.")
@click.option("--source", metavar="NAME", help="Only this source and what is derived from it.")
@click.option("--json", "as_json", is_flag=True, help="For tools: one JSON array.")
@click.pass_context
def snapshots(ctx: click.Context, source: str | None, as_json: bool) -> None:
    """Show the commit at which pipelines can be read together, and which one is behind.

    A barrier is the last commit of each second. All pipelines of a source end a batch there, so their views
    can be read together. A pipeline has processed a barrier when its views are computed up to it, and
    committed it when readers see the result. `slackwater read` finds the commit for the views that you ask
    for: a pipeline that is behind delays only readers that ask for its views.

    \b
    Examples:
      slackwater snapshots --bootstrap localhost:9092
      slackwater snapshots --source inv --json | jq -r '.[].snapshot'

    For details see docs/reading.md.
    """
    kafka = kafka_settings(start_command(ctx), "where pipelines register")
    found = read_snapshots(kafka, read_topology(kafka, epoch_ms(SystemClock().now()), source))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    output = Output()
    for line in snapshot_lines(found):
        output.line(line)


def snapshot_lines(found: tuple[SourceSnapshot, ...]) -> list[str]:
    """Writes each source with its newest snapshot, and a line for each pipeline."""
    if not found:
        return ["no source has a barrier yet; sidecars create one per second while rows change"]
    lines: list[str] = []
    for each in found:
        at = "no known commit" if each.snapshot is None else f"{each.snapshot} on timeline {each.timeline}"
        lines += ["", f"source {each.source}: newest barrier {each.newest_barrier}; all pipelines show {at}"]
        rows = [("  pipeline", "state", "processed", "committed", "")]
        rows += [
            (
                f"  {member.pipeline}",
                member.state,
                member.processed or "-",
                member.committed or "-",
                "the others are waiting for it" if member.is_waited_for else "",
            )
            for member in each.pipelines
        ]
        lines += aligned(rows) if each.pipelines else ["  no pipeline reads it"]
    return lines[1:]
