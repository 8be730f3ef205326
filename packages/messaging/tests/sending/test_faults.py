"""Servers are killed and producers overtaken while a service sends, at every step of every way."""

from collections.abc import Callable

import pytest

from slackwater.dev import DevStack
from slackwater_lab.messaging.sending.crash import (
    SOON,
    Fault,
    FaultPoint,
    fault_points,
    suffer_and_go_on,
)
from slackwater_lab.messaging.sending.ways import WAYS
from slackwater_lab.probes import Servers

pytestmark = pytest.mark.integration
SHORT = {
    ("polling", Fault.DATABASE_KILLED),
    ("saved", Fault.FENCED),
    ("prepared", Fault.TIMED_OUT),
}
"""One step of these is in CI, the last but one: the data is committed somewhere by then."""


def cases() -> list[object]:
    points = list(fault_points())
    short = [FaultPoint(way, list(WAYS[way].deaths)[-2], fault) for way, fault in sorted(SHORT)]
    return [
        pytest.param(point, id=str(point), marks=[] if point in short else [pytest.mark.slow])
        for point in points
    ]


@pytest.fixture(scope="module")
def servers(dev_stack: Callable[..., DevStack]) -> Servers:
    stack = dev_stack(connect=False, redis=False, broker_overrides=SOON)
    return Servers(stack.postgres, stack.kafka)


@pytest.mark.full
@pytest.mark.parametrize("point", cases())
def test_a_fault_costs_nothing_but_what_the_way_says(servers: Servers, point: FaultPoint) -> None:
    verdict = suffer_and_go_on(point, servers)
    found = {"lost": verdict.lost, "repeated": verdict.repeated, "ghosts": verdict.ghosts}
    assert {name for name, number in found.items() if number} <= WAYS[point.way].costs
    assert verdict.disordered == 0
    assert verdict.rows >= 4
