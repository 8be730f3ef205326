"""``slackwater topology``."""

import click

from slackwater.cli.pipelines import read_topology, topology_lines
from slackwater.command.conversion import kafka_settings
from slackwater.command.invocation import setting, start_command
from slackwater.command.output import Output
from slackwater.control import topology_dot, topology_json
from slackwater.protocol import SystemClock, epoch_ms


@click.command()
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of the pipelines.")
@click.option("--source", metavar="NAME", help="Only this source and what is derived from it.")
@click.option("--json", "as_json", is_flag=True, help="For tools: one JSON object.")
@click.option("--dot", "as_dot", is_flag=True, help="For Graphviz: one graph.")
@click.pass_context
def topology(ctx: click.Context, source: str | None, as_json: bool, as_dot: bool) -> None:
    """Show how sources, tables, pipelines and views are connected, and the progress of each.

    Every run of a pipeline registers itself in the Kafka topic slackwater.pipelines and reports there once
    per second. The topology is derived from these records and from the newest cut of each source. It needs
    only Kafka, not Redis or any other process, and includes pipelines that are not running:

    \b
      running    its newest run has reported within the last 30 seconds
      left       its newest run has ended normally
      failed     its newest run has ended with the error that is shown
      vanished   its newest run is silent and has not reported its end: it was killed or lost its network

    A pipeline stays in the topology until you delete it with `slackwater pipeline delete`.

    \b
    Examples:
      slackwater topology --bootstrap localhost:9092
      slackwater topology --source inv                        everything that is derived from one source
      slackwater topology --json | jq -r '.pipelines[] | select(.state == "vanished") | .name'
      slackwater topology --dot | dot -Tsvg > topology.svg

    For details see docs/control-plane.md.
    """
    if as_json and as_dot:
        raise click.UsageError("only one of --json and --dot can be given")
    kafka = kafka_settings(start_command(ctx), "where pipelines register")
    found = read_topology(kafka, epoch_ms(SystemClock().now()), source)
    if as_json:
        click.echo(topology_json(found))
    elif as_dot:
        click.echo(topology_dot(found), nl=False)
    else:
        output = Output()
        for line in topology_lines(found):
            output.line(line)
