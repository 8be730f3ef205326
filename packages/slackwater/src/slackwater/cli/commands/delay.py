"""``slackwater delay``."""

from collections.abc import Iterator

import click
import msgspec

from slackwater.cli.pipelines import read_topology
from slackwater.cli.signs import cause_lines, signs_of_topology
from slackwater.command.conversion import kafka_settings
from slackwater.command.invocation import setting, start_command
from slackwater.command.output import Output, aligned
from slackwater.control import ComponentDelay, ComponentKind, Delays, measure_delays
from slackwater.protocol import SystemClock, epoch_ms


@click.command()
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of pipelines.")
@setting("redis.url", "--redis-url", metavar="URL", help="redis://host:port, where sidecars report.")
@click.option("--source", metavar="NAME", help="Only this source and what is derived from it.")
@click.option("--json", "as_json", is_flag=True, help="For tools: one JSON object.")
@click.pass_context
def delay(ctx: click.Context, source: str | None, as_json: bool) -> None:
    """Show the delay of each view, component by component, and its cause.

    The delay of a view is the difference in age between its newest commit and the newest commit that the
    sidecar of its database has found complete. Every pipeline on the way adds to the delay, and so does every
    sidecar between two pipelines. Components that have stopped, or that add more than two seconds, are listed
    with the evidence and a remedy. Sidecars, connectors and databases are judged by what sidecars report in
    Redis: without --redis-url nothing is known of them.

    The exit code is 0 if nothing is late, and 1 otherwise.

    \b
    Examples:
      slackwater delay --bootstrap localhost:9092
      slackwater delay --source inv
      slackwater delay --json | jq -r '.causes[].evidence'

    For details see docs/control-plane.md.
    """
    settings = start_command(ctx)
    topology = read_topology(
        kafka_settings(settings, "where pipelines register"), epoch_ms(SystemClock().now()), source
    )
    delays = measure_delays(topology, signs_of_topology(settings, topology))
    if as_json:
        click.echo(msgspec.json.encode(delays))
    else:
        output = Output()
        for line in delay_lines(delays):
            output.line(line)
        if settings.redis.url is None:
            output.line("sidecars and connectors: not known, because --redis-url is not set")
    ctx.exit(1 if delays.causes else 0)


def delay_lines(delays: Delays) -> list[str]:
    """Writes who is late, and what every view waits for."""
    lines = list(_cause_lines(delays))
    if not delays.views:
        known = lines if delays.causes else []
        return [*known, "no pipeline has registered yet; `slackwater run` registers its pipeline"]
    rows = [("view", "delay", "of which")]
    for view in delays.views:
        components = " + ".join(_component(component) for component in view.components)
        rows.append(
            (f"{view.pipeline}/{view.view}", _seconds(view.delay_ms), f"source {view.source}: {components}")
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


def _cause_lines(delays: Delays) -> Iterator[str]:
    if not delays.causes:
        yield "no view is late"
    yield from cause_lines(delays.causes)
    yield ""


def _component(component: ComponentDelay) -> str:
    name = f"sidecar of {component.name}" if component.kind is ComponentKind.SIDECAR else component.name
    return f"{name} {_seconds(component.delay_ms)}"


def _seconds(milliseconds: int | None) -> str:
    return "not known" if milliseconds is None else f"{milliseconds / 1000:,.1f} s"
