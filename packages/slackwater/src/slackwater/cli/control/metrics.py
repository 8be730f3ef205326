"""The metrics of a cluster for Prometheus, worked out of the same values that the API answers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import generate_latest

from slackwater.control import (
    ComponentKind,
    Delays,
    LeaseStanding,
    LeaseState,
    PipelineState,
    Topology,
)
from slackwater.observe.exposition import Samples, make_registry
from slackwater.protocol import metrics
from slackwater.protocol.metrics import Metric


def write_metrics(topology: Topology, delays: Delays, leases: Sequence[LeaseStanding]) -> bytes:
    """Writes the metrics in Prometheus' text format."""
    samples = _samples(topology, delays, leases)
    return generate_latest(make_registry(metrics.CONTROL_METRICS, samples.__getitem__))


def _samples(topology: Topology, delays: Delays, leases: Sequence[LeaseStanding]) -> Mapping[Metric, Samples]:
    return {
        metrics.PIPELINES: _counted(PipelineState, (each.state for each in topology.pipelines)),
        metrics.VIEW_DELAY: [
            ((view.source, view.pipeline, view.view), view.delay_ms / 1000)
            for view in delays.views
            if view.delay_ms is not None
        ],
        metrics.COMPONENT_DELAY: list(_components(delays)),
        metrics.DELAY_CAUSES: _counted(ComponentKind, (each.kind for each in delays.causes)),
        metrics.PIPELINE_EVENTS: [((each.name,), each.run_events) for each in topology.pipelines],
        metrics.PIPELINE_DOCUMENTS: [((each.name,), each.run_documents) for each in topology.pipelines],
        metrics.STATE_BYTES: [
            ((each.name,), sum(each.state_bytes.values())) for each in topology.pipelines if each.state_bytes
        ],
        metrics.LEASES: _counted(LeaseState, (each.state for each in leases)),
    }


def _components(delays: Delays) -> Iterator[tuple[tuple[str, str], float]]:
    known: dict[tuple[str, str], float] = {}
    for arrival in delays.arrivals:
        for kind, delay_ms in (
            (ComponentKind.CONNECTOR, arrival.connector_ms),
            (ComponentKind.SIDECAR, arrival.sidecar_ms),
        ):
            if delay_ms is not None:
                known[str(kind), arrival.source] = delay_ms / 1000
    for view in delays.views:
        for component in view.components:
            if component.delay_ms is not None:
                known[str(component.kind), component.name] = component.delay_ms / 1000
    yield from known.items()


def _counted(kinds: Iterable[str], found: Iterable[str]) -> Samples:
    counts = Counter(found)
    return [((str(kind),), float(counts[kind])) for kind in kinds]
