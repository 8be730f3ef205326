"""All scenarios by name."""

from collections.abc import Mapping

from slackwater_bench.scenario import Scenario
from slackwater_bench.scenarios.consumer import CONSUMER
from slackwater_bench.scenarios.control_plane import CONTROL_PLANE
from slackwater_bench.scenarios.engine import ENGINE, ENGINE_SKEW
from slackwater_bench.scenarios.latency import ARRIVALS, BARRIERS_DELAY, LATENCY, LIVE
from slackwater_bench.scenarios.many_pipelines import MANY_PIPELINES
from slackwater_bench.scenarios.messaging import MESSAGING, MESSAGING_CRASHES
from slackwater_bench.scenarios.probes import (
    CUT_COST,
    ENGINE_COST,
    ENGINE_PROFILE,
    LAKE,
    POSTGRES_OUTPUT,
    SHARED_ROWS,
    SIDECAR_MEMORY,
    SIDECAR_PROFILE,
    SINK_ALONE,
)
from slackwater_bench.scenarios.sidecar import SIDECAR, SIDECAR_DELAY, SIDECAR_PARTITIONS
from slackwater_bench.scenarios.start import START
from slackwater_bench.scenarios.throughput import (
    BARRIERS,
    CORES,
    LOCAL_CLUSTER,
    PARTITIONS,
    STATE_SIZE,
    THROUGHPUT,
    TRANSACTION_SIZE,
)
from slackwater_bench.scenarios.wide import WIDE
from slackwater_lab.errors import RunFailedError

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        THROUGHPUT,
        LATENCY,
        LIVE,
        ARRIVALS,
        START,
        WIDE,
        STATE_SIZE,
        PARTITIONS,
        CORES,
        LOCAL_CLUSTER,
        TRANSACTION_SIZE,
        BARRIERS,
        BARRIERS_DELAY,
        SIDECAR,
        SIDECAR_DELAY,
        SIDECAR_PARTITIONS,
        SIDECAR_MEMORY,
        SIDECAR_PROFILE,
        SINK_ALONE,
        LAKE,
        POSTGRES_OUTPUT,
        CONSUMER,
        MANY_PIPELINES,
        CONTROL_PLANE,
        MESSAGING,
        MESSAGING_CRASHES,
        CUT_COST,
        ENGINE,
        ENGINE_COST,
        ENGINE_SKEW,
        ENGINE_PROFILE,
        SHARED_ROWS,
    )
}


def scenario_named(name: str) -> Scenario:
    """The scenario of this name.

    Raises:
        RunFailedError: there is none.
    """
    try:
        return SCENARIOS[name]
    except KeyError:
        known = ", ".join(SCENARIOS)
        raise RunFailedError(f"no scenario {name!r}", f"there are {known}") from None
