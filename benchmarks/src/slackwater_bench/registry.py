"""All scenarios by name: what ``scenarios.toml`` says of them, and what measures each once."""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import product
from typing import Any

from slackwater_bench import catch_up
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.scenarios import (
    latency,
    messaging,
    probes,
    sharing,
    sidecar,
    start,
    wide,
)
from slackwater_lab.errors import RunFailedError

_RUNS: Mapping[str, Callable[[Parameters, RunContext], Measured]] = {
    "throughput": catch_up.run_throughput,
    "latency": latency.run_latency,
    "live": latency.run_live,
    "start": start.run_start,
    "wide": wide.run_wide,
    "sharing": sharing.run_sharing,
    "state-size": catch_up.run_steady,
    "partitions": catch_up.run_throughput,
    "cores": catch_up.run_throughput,
    "local-cluster": catch_up.run_throughput,
    "transaction-size": catch_up.run_steady,
    "barriers": catch_up.run_throughput,
    "barriers-delay": latency.run_latency,
    "sidecar": sidecar.run_sidecar,
    "sidecar-delay": sidecar.run_delay,
    "sidecar-partitions": sidecar.run_partitions,
    "sidecar-profile": probes.run_sidecar_profile,
    "sink-alone": probes.run_sink,
    "lake": probes.run_lake,
    "postgres-output": probes.run_postgres_output,
    "consumer": probes.run_consumer,
    "messaging": messaging.run_messaging,
    "messaging-crashes": messaging.run_messaging_crashes,
    "messaging-idle": messaging.run_messaging_idle,
    "engine": catch_up.run_engine,
    "engine-profile": probes.run_engine_profile,
}


def _scenarios() -> Iterator[Scenario]:
    declared = tomllib.loads((resources.files("slackwater_bench") / "scenarios.toml").read_text())
    for name, fields in declared.items():
        fields |= {each: _points(fields[each]) for each in ("points", "quick_points")}
        fields |= {each: tuple(fields.get(each, ())) for each in ("columns",)}
        fields["direction"] = Direction[fields["direction"].upper()]
        yield Scenario(name=name, run=_RUNS[name], **fields)


def _points(declared: Sequence[Mapping[str, Any]]) -> tuple[Parameters, ...]:
    """A list stands for one point with each of its values."""
    values = ([each if isinstance(each, list) else [each] for each in point.values()] for point in declared)
    return tuple(
        dict(zip(point, chosen, strict=True))
        for point, choices in zip(declared, values, strict=True)
        for chosen in product(*choices)
    )


SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _scenarios()}


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
