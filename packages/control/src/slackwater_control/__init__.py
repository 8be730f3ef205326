"""One picture of sources, pipelines, stages, views and outputs, computed from what pipelines tell."""

from slackwater_control.pipelines import (
    HELD_FOR,
    VANISHED_AFTER,
    KnownRun,
    PipelineState,
    holder_of,
    known_pipelines,
    known_runs,
    superseded,
)
from slackwater_control.rendering import topology_dot, topology_json, topology_schema
from slackwater_control.topology import (
    Link,
    PipelineNode,
    Progress,
    SourceCut,
    SourceNode,
    Topology,
    VisibleBatch,
    make_topology,
)

__all__ = [
    "HELD_FOR",
    "VANISHED_AFTER",
    "KnownRun",
    "Link",
    "PipelineNode",
    "PipelineState",
    "Progress",
    "SourceCut",
    "SourceNode",
    "Topology",
    "VisibleBatch",
    "holder_of",
    "known_pipelines",
    "known_runs",
    "make_topology",
    "superseded",
    "topology_dot",
    "topology_json",
    "topology_schema",
]
