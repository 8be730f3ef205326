"""All scenarios by name."""

from collections.abc import Mapping

from slackwater_bench.errors import UnknownScenarioError
from slackwater_bench.scenario import Scenario
from slackwater_bench.scenarios.arrivals import ARRIVALS
from slackwater_bench.scenarios.cut_cost import CUT_COST
from slackwater_bench.scenarios.engine import ENGINE, ENGINE_SKEW
from slackwater_bench.scenarios.engine_cost import ENGINE_COST
from slackwater_bench.scenarios.engine_profile import ENGINE_PROFILE
from slackwater_bench.scenarios.latency import LATENCY
from slackwater_bench.scenarios.live import LIVE
from slackwater_bench.scenarios.many_pipelines import MANY_PIPELINES
from slackwater_bench.scenarios.sidecar import SIDECAR
from slackwater_bench.scenarios.sidecar_delay import SIDECAR_DELAY
from slackwater_bench.scenarios.sidecar_memory import SIDECAR_MEMORY
from slackwater_bench.scenarios.sidecar_partitions import SIDECAR_PARTITIONS
from slackwater_bench.scenarios.sidecar_profile import SIDECAR_PROFILE
from slackwater_bench.scenarios.sink_alone import SINK_ALONE
from slackwater_bench.scenarios.state_size import STATE_SIZE
from slackwater_bench.scenarios.throughput import CORES, LOCAL_CLUSTER, PARTITIONS, THROUGHPUT
from slackwater_bench.scenarios.transaction_size import TRANSACTION_SIZE

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
