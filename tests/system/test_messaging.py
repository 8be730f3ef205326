"""Messages of a captured outbox, with a real connector and a real sidecar, and relays that are killed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slackwater.dev import DevStack
from slackwater_lab.messaging.sending.crash import (
    CrashPoint,
    CrashReport,
    crash_and_recover,
    crash_points,
    new_order,
)
from slackwater_lab.messaging.sending.ways import SOURCE
from slackwater_lab.programs import Product

pytestmark = [pytest.mark.system, pytest.mark.slow]  # in one process: packages/messaging/tests


@pytest.fixture(scope="module")
def stack(dev_stack: Callable[..., DevStack], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevStack]:
    made = dev_stack(prefix=SOURCE, partitions=3)
    made.start_connector()
    made.wait_until_streaming()
    folder: Path = tmp_path_factory.mktemp("product")
    with Product(made, folder) as product:
        product.start_sidecar()
        product.wait_for_cut_log(120)
        yield made


POINTS = tuple(crash_points(captured=True))


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_death_of_the_relay_costs_nothing(stack: DevStack, point: CrashPoint) -> None:
    order = new_order(point.way, stack.postgres.dsn(), stack.kafka.bootstrap)
    report = crash_and_recover(point, order)
    assert isinstance(report, CrashReport)
    found = report.recovered
    assert (found.lost, found.repeated, found.ghosts, found.disordered, report.early) == (0, 0, 0, 0, 0)
    assert found.rows >= 3
