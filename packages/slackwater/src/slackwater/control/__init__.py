"""One picture of sources, pipelines, stages, views and outputs, computed from what pipelines tell."""

from slackwater.control.delay import Arrival, ComponentDelay, Delays, ViewDelay, measure_delays
from slackwater.control.health import (
    ComponentKind,
    DelayCause,
    SourceSigns,
    fault_of_run,
    faults_of_connector,
    faults_of_source,
    sidecar_absence,
)
from slackwater.control.history import SAMPLES, DelayCourse, DelayHistory
from slackwater.control.leases import LeaseStanding, LeaseState, is_over, lease_standings
from slackwater.control.pipelines import (
    HELD_FOR,
    VANISHED_AFTER,
    KnownRun,
    PipelineState,
    first_source,
    holder_of,
    known_pipelines,
    known_runs,
    superseded,
)
from slackwater.control.rendering import topology_dot, topology_json, topology_schema
from slackwater.control.sharing import EqualStages, Sharing, StageCopy, find_equal_stages
from slackwater.control.snapshots import BarrierStanding, SourceSnapshot, find_snapshots
from slackwater.control.topology import (
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
    "SAMPLES",
    "VANISHED_AFTER",
    "Arrival",
    "BarrierStanding",
    "ComponentDelay",
    "ComponentKind",
    "DelayCause",
    "DelayCourse",
    "DelayHistory",
    "Delays",
    "EqualStages",
    "KnownRun",
    "LeaseStanding",
    "LeaseState",
    "Link",
    "PipelineNode",
    "PipelineState",
    "Progress",
    "Sharing",
    "SourceCut",
    "SourceNode",
    "SourceSigns",
    "SourceSnapshot",
    "StageCopy",
    "Topology",
    "ViewDelay",
    "VisibleBatch",
    "fault_of_run",
    "faults_of_connector",
    "faults_of_source",
    "find_equal_stages",
    "find_snapshots",
    "first_source",
    "holder_of",
    "is_over",
    "known_pipelines",
    "known_runs",
    "lease_standings",
    "make_topology",
    "measure_delays",
    "sidecar_absence",
    "superseded",
    "topology_dot",
    "topology_json",
    "topology_schema",
]
