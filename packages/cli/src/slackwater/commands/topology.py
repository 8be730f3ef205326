"""``slackwater topology``."""

import click

from slackwater.pipelines import open_pipeline_log, read_topology, topology_lines
from slackwater_command.conversion import kafka_settings
from slackwater_command.errors import CommandInputError
from slackwater_command.invocation import Command, setting, start_command
from slackwater_command.output import Output, ago
from slackwater_control import known_runs, topology_dot, topology_json
from slackwater_protocol import SystemClock, epoch_ms


def _brokers(command: Command) -> Command:
    option = setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of pipelines.")
    return option(command)


@click.group(invoke_without_command=True)
@_brokers
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

    A pipeline stays in the picture until it is forgotten.

    \b
    Examples:
      slackwater topology --bootstrap localhost:9092
      slackwater topology --source inv                        what is made of one source
      slackwater topology --json | jq -r '.pipelines[] | select(.state == "vanished") | .name'
      slackwater topology --dot | dot -Tsvg > topology.svg
      slackwater topology forget orders

    Read on in docs/topology.md.
    """
    if ctx.invoked_subcommand is not None:
        return
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


@topology.command()
@_brokers
@click.argument("pipeline", metavar="NAME")
@click.pass_context
def forget(ctx: click.Context, pipeline: str) -> None:
    """Remove a pipeline from the picture: one that will never run again.

    Its name is free then. Nothing else is removed: neither its checkpoint nor its outputs. Refused while a
    run of it was heard of within the last minute and has not ended.

    \b
    Example:
      slackwater topology forget orders --bootstrap localhost:9092
    """
    kafka = kafka_settings(start_command(ctx), "where pipelines register")
    now_ms = epoch_ms(SystemClock().now())
    with open_pipeline_log(kafka) as log:
        found = [each for each in known_runs(log.read()) if each.registration.pipeline == pipeline]
        if not found:
            hint = "`slackwater topology` lists those that are; the name has the revision, as in orders.v2"
            raise CommandInputError(f"no pipeline {pipeline!r} is registered", hint)
        for each in found:
            if each.holds_name(now_ms):
                run = each.registration
                problem = (
                    f"pipeline {pipeline!r} runs on {run.host} (process {run.pid}), heard of "
                    f"{ago(each.heard_ms, now_ms)}; nothing was removed"
                )
                raise CommandInputError(
                    problem, "stop it first; one that was killed can be forgotten a minute later"
                )
        for each in found:
            log.forget(pipeline, each.registration.run)
    Output().line(f"forgotten: {pipeline}")
