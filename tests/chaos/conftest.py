"""The running product for the chaos tests: started once, judged twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater_lab.chaos.schedule import Round, consumer_schedule, short_schedule
from slackwater_lab.chaos.system import System, SystemSettings
from slackwater_lab.workloads import WORKLOADS

SEED = 1
ORDERS = 500
CHANGES_PER_SECOND = 150.0


ROUNDS = short_schedule(SEED)
OF_CONSUMERS = consumer_schedule(SEED)
FIRST = (1, 7)
"""Kills at two steps of the sink, of Connect, PostgreSQL and a sidecar; about a minute."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param([*(each for each in ROUNDS if each.number in FIRST), OF_CONSUMERS[0]], id="first"),
        pytest.param([*ROUNDS, *OF_CONSUMERS], id="all", marks=pytest.mark.slow),
    ],
)
def rounds(request: pytest.FixtureRequest) -> list[Round]:
    """What happens to the system."""
    chosen: list[Round] = request.param
    return chosen


@pytest.fixture(scope="module")
def system(rounds: list[Round], tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Everything up, writers writing; of its own for each list of rounds."""
    folder: Path = tmp_path_factory.mktemp("chaos")
    workload = WORKLOADS["orders"](SEED, ORDERS)
    settings = SystemSettings(
        folder=folder / "run",
        workload=workload,
        changes_per_second=CHANGES_PER_SECOND,
        has_consumers=True,
    )
    with System(settings) as running:
        yield running
