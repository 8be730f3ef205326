"""``slackwater pipeline``."""

from collections.abc import Sequence

import click

from slackwater.cli.pipelines import OF_ONE_SOURCE, open_pipeline_log, read_topology, remarks_on
from slackwater.cli.removal import check_not_a_source, check_not_running, remove_pipeline, runs_of
from slackwater.command.invocation import YES, setting, start_command
from slackwater.command.output import Output, ago, aligned, json_option
from slackwater.control import PipelineNode, make_topology
from slackwater.protocol import SystemClock, epoch_ms

_BROKERS = setting("kafka.bootstrap", "The brokers of the pipelines.")


_CHECKPOINT = setting("run.checkpoint", "Location of its state, if it is not the registered one.")


@click.group()
def pipeline() -> None:
    """List pipelines, reset a pipeline to start over, or delete it.

    \b
    Examples:
      slackwater pipeline list --bootstrap localhost:9092
      slackwater pipeline reset orders
      slackwater pipeline delete orders.v2 --outputs

    For details see docs/control-plane.md.
    """


@pipeline.command("list")
@_BROKERS
@OF_ONE_SOURCE
@json_option("one JSON array")
@click.pass_context
def list_pipelines(ctx: click.Context, source: str | None, as_json: bool) -> None:
    """List all registered pipelines, including those that are not running.

    `slackwater topology --help` explains the states. The JSON output is that of /api/v1/pipelines of the
    control plane.

    \b
    Examples:
      slackwater pipeline list --bootstrap localhost:9092
      slackwater pipeline list --json | jq -r '.[] | select(.state != "running") | [.name, .owner] | @tsv'
    """
    topology = read_topology(start_command(ctx), source)
    found, now_ms = topology.pipelines, topology.made_ms
    nothing = ["no pipeline has registered yet; `slackwater run` registers its pipeline"]
    Output().report(found, aligned(pipeline_rows(found, now_ms)) if found else nothing, as_json=as_json)


def pipeline_rows(pipelines: Sequence[PipelineNode], now_ms: int) -> list[Sequence[str]]:
    """Writes a row for each pipeline, below a heading."""
    head = (
        "pipeline",
        "owner",
        "source",
        "revision",
        "state",
        "shows",
        "last batch",
        "began",
        "checkpoint",
        "",
    )
    rows: list[Sequence[str]] = [head]
    for each in pipelines:
        visible_ms = None if each.batch is None else each.batch.visible_ms
        rows.append(
            (
                each.name,
                each.owner or "-",
                each.source,
                str(each.revision),
                each.state,
                "-" if each.batch is None else each.batch.commit_lsn,
                "-" if visible_ms is None else ago(visible_ms, now_ms),
                ago(each.started_ms, now_ms),
                each.checkpoint,
                ", ".join(remarks_on(each)),
            )
        )
    return rows


@pipeline.command()
@_BROKERS
@_CHECKPOINT
@click.argument("name", metavar="NAME")
@YES
@click.pass_context
def reset(ctx: click.Context, name: str, yes: bool) -> None:
    """Reset a pipeline to start over: remove its state, its outputs, commit records and progress.

    NAME includes the revision, as in orders.v2. The next `slackwater run` creates the topics and tables
    again, and reads the source's topics from the beginning. For consumers these are different topics: a
    consumer with stored offsets has to start over, too. If readers should not be interrupted, build the views
    beside the old ones instead, with a higher revision (docs/revisions.md).

    The state is never removed without the outputs, because the output would keep documents that the views no
    longer contain. The command is refused while the pipeline runs, while other pipelines read its output,
    while readers are switched to it, and while a lease needs its state. It first shows what will be removed.
    If it is killed halfway, run it again: until it has finished, runs are refused, and none continues from a
    wrong state. Lake tables, and checkpoints that cannot be reached from here, are listed. Remove them
    yourself before the pipeline can start over.

    \b
    Examples:
      slackwater pipeline reset orders --bootstrap localhost:9092
      slackwater pipeline reset orders --checkpoint s3://bucket/orders --yes
    """
    settings = start_command(ctx)
    with open_pipeline_log(settings) as log:
        remove_pipeline(settings, log, name, Output(), done="starts over", yes=yes)


@pipeline.command()
@_BROKERS
@_CHECKPOINT
@click.argument("name", metavar="NAME")
@click.option("--outputs", is_flag=True, help="Also remove its topics and tables, progress and state.")
@YES
@click.pass_context
def delete(ctx: click.Context, name: str, outputs: bool, yes: bool) -> None:
    """Remove a pipeline that will never run again from the topology, and free its name.

    NAME includes the revision, as in orders.v2. Without --outputs, neither the checkpoint nor the outputs are
    removed, and you are not asked for confirmation. The command is refused while the pipeline runs, and while
    other pipelines read its output; with --outputs also while readers are switched to it, and while a lease
    needs its state. Readers that use its topics or tables directly cannot be detected.

    \b
    Examples:
      slackwater pipeline delete orders --bootstrap localhost:9092
      slackwater pipeline delete orders.v2 --outputs --yes
    """
    settings, output = start_command(ctx), Output()
    with open_pipeline_log(settings) as log:
        if outputs:
            remove_pipeline(settings, log, name, output, done="deleted", yes=yes)
            return
        runs, now_ms = runs_of(log, name), epoch_ms(SystemClock().now())
        check_not_running(runs, now_ms)
        check_not_a_source(name, make_topology(log.read(), {}, now_ms))
        for each in runs:
            log.forget(name, each.registration.run)
    output.line(f"deleted: {name}")
