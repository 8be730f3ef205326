"""All scenarios by name."""

from collections.abc import Mapping

from slackwater_bench.errors import UnknownScenarioError
from slackwater_bench.scenario import Scenario
from slackwater_bench.scenarios.engine import ENGINE, ENGINE_COST, ENGINE_PROFILE, ENGINE_SKEW
from slackwater_bench.scenarios.latency import ARRIVALS, LATENCY, LIVE
from slackwater_bench.scenarios.many_pipelines import MANY_PIPELINES
from slackwater_bench.scenarios.parts import CUT_COST, SINK_ALONE
from slackwater_bench.scenarios.sidecar import SIDECAR, SIDECAR_MEMORY, SIDECAR_PROFILE
from slackwater_bench.scenarios.sidecar_rate import SIDECAR_DELAY, SIDECAR_PARTITIONS
from slackwater_bench.scenarios.throughput import (
    CORES,
    LOCAL_CLUSTER,
    PARTITIONS,
    STATE_SIZE,
    THROUGHPUT,
    TRANSACTION_SIZE,
)

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        THROUGHPUT,
        LATENCY,
        LIVE,
        ARRIVALS,
        STATE_SIZE,
        PARTITIONS,
        CORES,
        LOCAL_CLUSTER,
        TRANSACTION_SIZE,
        SIDECAR,
        SIDECAR_DELAY,
        SIDECAR_PARTITIONS,
        SIDECAR_MEMORY,
        SIDECAR_PROFILE,
        SINK_ALONE,
        MANY_PIPELINES,
        CUT_COST,
        ENGINE,
        ENGINE_COST,
        ENGINE_SKEW,
        ENGINE_PROFILE,
    )
}


def scenario_named(name: str) -> Scenario:
    """The scenario of this name.

    Raises:
        UnknownScenarioError: there is none.
    """
    try:
        return SCENARIOS[name]
    except KeyError:
        raise UnknownScenarioError(name, SCENARIOS) from None
