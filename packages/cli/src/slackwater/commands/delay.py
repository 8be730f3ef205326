"""``slackwater delay``."""

from collections.abc import Iterator

import click
import msgspec

from slackwater.pipelines import read_topology
from slackwater_command.conversion import kafka_settings
from slackwater_command.invocation import setting, start_command
from slackwater_command.output import Output, aligned
from slackwater_control import Delays, Hop, HopKind, measure_delays
from slackwater_protocol import SystemClock, epoch_ms


@click.command()
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of pipelines.")
@click.option("--source", metavar="NAME", help="Only this source and what is derived from it.")
@click.option("--json", "as_json", is_flag=True, help="For tools: one JSON object.")
@click.pass_context
def delay(ctx: click.Context, source: str | None, as_json: bool) -> None:
    """Show how late each view is, hop by hop, and which component causes the delay.

    The delay of a view is the difference in age between its newest commit and the newest commit that the
    sidecar of its database has found complete. Every pipeline on the way adds to the delay, and so does every
    sidecar between two pipelines. Components that have stopped, or that add more than two seconds, are listed
    with the evidence and a remedy.

    The exit code is 0 if nothing is late, and 1 otherwise.

    \b
    Examples:
      slackwater delay --bootstrap localhost:9092
      slackwater delay --source inv
      slackwater delay --json | jq -r '.culprits[].evidence'

    For details see docs/delay.md.
    """
    kafka = kafka_settings(start_command(ctx), "where pipelines register")
    delays = measure_delays(read_topology(kafka, epoch_ms(SystemClock().now()), source))
    if as_json:
        click.echo(msgspec.json.encode(delays))
    else:
        output = Output()
        for line in delay_lines(delays):
            output.line(line)
    ctx.exit(1 if delays.culprits else 0)


def delay_lines(delays: Delays) -> list[str]:
    """Writes who is late, and what every view waits for."""
    lines = list(_culprit_lines(delays))
    if not delays.views:
        known = lines if delays.culprits else []
        return [*known, "no pipeline has registered yet; `slackwater run` registers its pipeline"]
    rows = [("view", "delay", "of which")]
    for view in delays.views:
        hops = " + ".join(_hop(hop) for hop in view.hops)
        rows.append(
            (f"{view.pipeline}/{view.view}", _seconds(view.delay_ms), f"source {view.source}: {hops}")
        )
    arrivals = [("newest commit", "age", "connector", "sidecar")]
    arrivals += [
        (
            f"source {each.source}",
            _seconds(each.age_ms),
            _seconds(each.connector_ms),
            _seconds(each.sidecar_ms),
        )
        for each in delays.arrivals
    ]
    return [*lines, *aligned(rows), "", *(aligned(arrivals) if delays.arrivals else ())]


def _culprit_lines(delays: Delays) -> Iterator[str]:
    if not delays.culprits:
        yield "no view is late"
    for culprit in delays.culprits:
        yield culprit.evidence
        if culprit.views:
            yield f"  delays  {', '.join(culprit.views)}"
        yield f"  try     {culprit.advice}"
    yield ""


def _hop(hop: Hop) -> str:
    name = f"sidecar of {hop.name}" if hop.kind is HopKind.SIDECAR else hop.name
    return f"{name} {_seconds(hop.delay_ms)}"


def _seconds(milliseconds: int | None) -> str:
    return "not known" if milliseconds is None else f"{milliseconds / 1000:,.1f} s"
