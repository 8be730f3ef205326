"""The topology for programs: as JSON with its schema, and as a graph for Graphviz."""

from collections.abc import Iterator
from typing import Any

import msgspec

from slackwater.control.topology import PipelineNode, SourceNode, Topology

_COLOURS = {"running": "black", "left": "gray50", "failed": "red", "vanished": "red"}


def topology_json(topology: Topology) -> bytes:
    """Encodes a picture as JSON; :func:`topology_schema` describes it."""
    return msgspec.json.encode(topology)


def topology_schema() -> dict[str, Any]:
    """Returns the JSON Schema of what :func:`topology_json` writes."""
    return msgspec.json.schema(Topology)


def topology_dot(topology: Topology) -> str:
    """Writes a picture as a graph, for ``dot -Tsvg``.

    Tables and outputs are nodes named by their topics, so that chained pipelines are connected.
    """
    return "\n".join(["digraph slackwater {", *map(_indented, _dot_lines(topology)), "}", ""])


def _dot_lines(topology: Topology) -> Iterator[str]:
    yield "rankdir=LR"
    yield 'node [shape=box, fontname="sans-serif"]'
    yield 'edge [fontname="sans-serif"]'
    for source in topology.sources:
        yield from _source_lines(source)
    for pipeline in topology.pipelines:
        yield from _pipeline_lines(pipeline)


def _source_lines(source: SourceNode) -> Iterator[str]:
    yield f"subgraph {_quoted(f'cluster source {source.name}')} {{"
    yield f"  label={_quoted(f'source {source.name}')}"
    for table, topic in source.tables.items():
        yield f"  {_topic('kafka', topic)} [label={_quoted(table)}, shape=cylinder]"
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
        yield f"  {_stage(name, stage.number)} [label={_quoted(keyed)}]"
    for view in pipeline.views:
        yield f"  {_view(name, view.name)} [label={_quoted(view.name)}, shape=ellipse]"
    yield "}"
    for stage in pipeline.stages:
        for table in stage.tables:
            yield f"{_topic('kafka', pipeline.tables.get(table, table))} -> {_stage(name, stage.number)}"
        for earlier in stage.stages:
            yield f"{_stage(name, earlier)} -> {_stage(name, stage.number)}"
    for view in pipeline.views:
        if view.stages:
            yield f"{_stage(name, view.stages[-1])} -> {_view(name, view.name)}"
        output = _topic(view.kind, view.output)
        if not view.output_source:
            yield f"{output} [label={_quoted(f'{view.kind} {view.output}')}]"
        yield f"{_view(name, view.name)} -> {output}"


def _topic(kind: str, name: str) -> str:
    return _quoted(f"{kind} {name}")


def _stage(pipeline: str, number: int) -> str:
    return _quoted(f"{pipeline} stage {number}")


def _view(pipeline: str, view: str) -> str:
    return _quoted(f"{pipeline} view {view}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _indented(line: str) -> str:
    return f"  {line}"
