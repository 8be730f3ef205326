"""``slackwater topology``."""

import click

from slackwater.pipelines import read_topology, topology_lines
from slackwater_command.conversion import kafka_settings
from slackwater_command.invocation import setting, start_command
from slackwater_command.output import Output
from slackwater_control import topology_dot, topology_json
from slackwater_protocol import SystemClock, epoch_ms


@click.command()
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of pipelines.")
@click.option("--source", metavar="NAME", help="Only what begins at this source, chained pipelines included.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object.")
@click.option("--dot", "as_dot", is_flag=True, help="For Graphviz: a graph.")
@click.pass_context
def topology(ctx: click.Context, source: str | None, as_json: bool, as_dot: bool) -> None:
    """Show how sources, tables, pipelines and views are connected, and how far each pipeline is.

    Every run of a pipeline registers itself in the Kafka topic slackwater.pipelines and reports there once a
    second. The picture is made of that and of the newest cut of each source; it needs neither Redis nor any
    process but Kafka, and lists pipelines that do not run, too:

    \b
      running    its newest run was heard of within 30 seconds
      left       its newest run ended in order
      failed     its newest run ended with the error that is shown
      vanished   its newest run is silent and did not say that it ends: killed, or cut off

    A pipeline stays in the picture until it is deleted: slackwater pipeline delete.

    \b
    Examples:
      slackwater topology --bootstrap localhost:9092
      slackwater topology --source inv                        what is made of one source
      slackwater topology --json | jq -r '.pipelines[] | select(.state == "vanished") | .name'
      slackwater topology --dot | dot -Tsvg > topology.svg

    Read on in docs/topology.md.
    """
    if as_json and as_dot:
        raise click.UsageError("--json and --dot: give one of them")
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
