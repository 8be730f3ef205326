"""The running product for the chaos tests: started once, judged twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater_bench.chaos.system import System, SystemSettings
from slackwater_bench.workloads.registry import WORKLOADS

SEED = 1
ORDERS = 500
CHANGES_PER_SECOND = 150.0


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Everything up, writers writing."""
    folder: Path = tmp_path_factory.mktemp("chaos")
    workload = WORKLOADS["orders"](SEED, ORDERS)
    settings = SystemSettings(folder=folder / "run", workload=workload, changes_per_second=CHANGES_PER_SECOND)
    with System(settings) as running:
        yield running
