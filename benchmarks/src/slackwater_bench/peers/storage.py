"""Runs as scenarios' results: one JSON line each in ``benchmarks/results/peers.jsonl``."""

from collections.abc import Mapping
from pathlib import Path

from slackwater_bench.errors import RunFailedError
from slackwater_bench.peers.outcome import PeerRun
from slackwater_bench.results import RESULTS, Result, append, read_results, result_of
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_protocol import Clock


def _no_single_run(parameters: Parameters, context: RunContext) -> Measured:
    raise RunFailedError("peers", "is run by its own command: python -m slackwater_bench peers")


SCENARIO = Scenario(
    name="peers",
    version=1,
    unit="events/s",
    direction=Direction.HIGHER,
    measures="Change events by the time from the first read to the last document, per peer and setting.",
    why="What consistency costs, and what its absence shows.",
    points=(),
    quick_points=(),
    run=_no_single_run,
)


def store(
    run: PeerRun, settings: str, options: Mapping[str, int], clock: Clock, folder: Path = RESULTS
) -> Result:
    """Adds a run to the file, settings included."""
    parameters: Parameters = {"peer": run.peer, "setting": str(run.setting), **options}
    measured = Measured(round(run.events_per_second), {**run.to_json(), "settings": settings})
    result = result_of(SCENARIO, parameters, measured, clock)
    append(result, folder)
    return result


def stored_runs(folder: Path = RESULTS) -> list[PeerRun]:
    """All runs of the present version, oldest first."""
    return [PeerRun.from_json(result.details) for result in read_results(SCENARIO, folder)]
