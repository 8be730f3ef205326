"""``slackwater topology``, ``delay`` and ``snapshots``: what the registrations of pipelines show."""

from collections.abc import Iterator

import click

from slackwater.cli.main import settings_command
from slackwater.cli.pipelines import (
    OF_ONE_SOURCE,
    cause_lines,
    read_snapshots,
    read_topology,
    signs_of_topology,
    topology_lines,
)
from slackwater.command.invocation import setting
from slackwater.command.output import Output, aligned, json_option
from slackwater.control import (
    ComponentKind,
    Delays,
    PipelineNode,
    SourceNode,
    SourceSnapshot,
    Topology,
    measure_delays,
)
from slackwater.settings.model import Settings

_COLOURS = {"running": "black", "left": "gray50", "failed": "red", "vanished": "red"}


@settings_command()
@setting("kafka.bootstrap", "The brokers of the pipelines.")
@OF_ONE_SOURCE
@json_option("one JSON object")
@click.option("--dot", "as_dot", is_flag=True, help="For Graphviz: one graph.")
def topology(settings: Settings, source: str | None, as_json: bool, as_dot: bool) -> None:
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
    found = read_topology(settings, source)
    if as_dot:
        click.echo(topology_dot(found), nl=False)
    else:
        Output().report(found, topology_lines(found), as_json=as_json)


def topology_dot(topology: Topology) -> str:
    """Writes a picture as a graph, for ``dot -Tsvg``.

    Tables and outputs are nodes named by their topics, so that chained pipelines are connected.
    """
    lines = ["rankdir=LR", 'node [shape=box, fontname="sans-serif"]', 'edge [fontname="sans-serif"]']
    for source in topology.sources:
        lines += _source_lines(source)
    for pipeline in topology.pipelines:
        lines += _pipeline_lines(pipeline)
    return "\n".join(["digraph slackwater {", *(f"  {line}" for line in lines), "}", ""])


def _source_lines(source: SourceNode) -> Iterator[str]:
    yield f"subgraph {_quoted(f'cluster source {source.name}')} {{"
    yield f"  label={_quoted(f'source {source.name}')}"
    for table, topic in source.tables.items():
        yield f"  {_node('kafka', topic)} [label={_quoted(table)}, shape=cylinder]"
    yield "}"


def _pipeline_lines(pipeline: PipelineNode) -> Iterator[str]:
    name, colour = pipeline.name, _COLOURS[pipeline.state]
    owner = f", {pipeline.owner}" if pipeline.owner else ""
    label = f"pipeline {name}{owner}\n{pipeline.state}, {pipeline.progress}"
    yield f"subgraph {_quoted(f'cluster pipeline {name}')} {{"
    yield f"  label={_quoted(label)}"
    yield f"  color={colour}"
    for stage in pipeline.stages:
        keyed = f"stage {stage.number}\nby {', '.join(stage.key) or 'nothing'}"
        yield f"  {_node(name, 'stage', stage.number)} [label={_quoted(keyed)}]"
    for view in pipeline.views:
        yield f"  {_node(name, 'view', view.name)} [label={_quoted(view.name)}, shape=ellipse]"
    yield "}"
    for stage in pipeline.stages:
        tables = (_node("kafka", pipeline.tables.get(table, table)) for table in stage.tables)
        for taken in (*tables, *(_node(name, "stage", earlier) for earlier in stage.stages)):
            yield f"{taken} -> {_node(name, 'stage', stage.number)}"
    for view in pipeline.views:
        if view.stages:
            yield f"{_node(name, 'stage', view.stages[-1])} -> {_node(name, 'view', view.name)}"
        output = _node(view.kind, view.output)
        if not view.output_source:
            yield f"{output} [label={_quoted(f'{view.kind} {view.output}')}]"
        yield f"{_node(name, 'view', view.name)} -> {output}"


def _node(*parts: object) -> str:
    return _quoted(" ".join(map(str, parts)))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@settings_command()
@setting("kafka.bootstrap", "The brokers of pipelines.")
@setting("redis.url", "redis://host:port, where sidecars report.")
@OF_ONE_SOURCE
@json_option("one JSON object")
def delay(settings: Settings, source: str | None, as_json: bool) -> int:
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
    topology = read_topology(settings, source)
    delays = measure_delays(topology, signs_of_topology(settings, topology))
    unknown = ["sidecars and connectors: not known, because --redis-url is not set"]
    lines = [*delay_lines(delays), *([] if settings.redis.url else unknown)]
    Output().report(delays, lines, as_json=as_json)
    return 1 if delays.causes else 0


def delay_lines(delays: Delays) -> list[str]:
    """Writes who is late, and what every view waits for."""
    lines = [*([] if delays.causes else ["no view is late"]), *cause_lines(delays.causes), ""]
    if not delays.views:
        known = lines if delays.causes else []
        return [*known, "no pipeline has registered yet; `slackwater run` registers its pipeline"]
    rows = [("view", "delay", "of which")]
    for view in delays.views:
        parts = (
            f"{'sidecar of ' if each.kind is ComponentKind.SIDECAR else ''}{each.name} "
            f"{_seconds(each.delay_ms)}"
            for each in view.components
        )
        text = f"source {view.source}: {' + '.join(parts)}"
        rows.append((f"{view.pipeline}/{view.view}", _seconds(view.delay_ms), text))
    arrivals = [("newest commit", "age", "connector", "sidecar")]
    for arrival in delays.arrivals:
        connector, sidecar = _seconds(arrival.connector_ms), _seconds(arrival.sidecar_ms)
        arrivals.append((f"source {arrival.source}", _seconds(arrival.age_ms), connector, sidecar))
    return [*lines, *aligned(rows), "", *(aligned(arrivals) if delays.arrivals else ())]


def _seconds(milliseconds: int | None) -> str:
    return "not known" if milliseconds is None else f"{milliseconds / 1000:,.1f} s"


@settings_command()
@setting("kafka.bootstrap", "The brokers of the pipelines.")
@OF_ONE_SOURCE
@json_option("one JSON array")
def snapshots(settings: Settings, source: str | None, as_json: bool) -> None:
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
    found = read_snapshots(settings, read_topology(settings, source))
    Output().report(found, snapshot_lines(found), as_json=as_json)


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
