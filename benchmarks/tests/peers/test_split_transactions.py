"""The judge sees what a peer shows when a transaction comes in parts."""

import threading
from pathlib import Path

import pytest

from slackwater.protocol import SystemClock
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.environment import Environment
from slackwater_bench.peers.registry import install, peers_named
from slackwater_bench.peers.runs import Patience, WatchedTopic, judge, specification_of, started
from slackwater_bench.scenario import RunContext
from slackwater_lab.generator.fill import HoldBack, TopicFiller
from slackwater_lab.workloads.orders import OrdersWorkload

pytestmark = pytest.mark.integration

ORDERS = 50
HELD_SECONDS = 2.0


def silent(_: str) -> None:
    """Progress for nobody."""


@pytest.mark.slow
def test_a_fold_shows_torn_documents_when_a_partition_is_late_and_ends_right(tmp_path: Path) -> None:
    (fold,) = peers_named(["fold"])
    installed = install(fold, silent)
    clock = SystemClock()
    context = RunContext(environment=Environment.here(), clock=clock, say=silent)
    workload = OrdersWorkload(3, ORDERS)
    with Bed(context, partitions=2) as bed:
        with TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=2, processes=1) as filler:
            output = WatchedTopic(bed.bootstrap, fold.output)
            with started(fold, installed, bed, output.name) as running:
                patience = Patience(fold, running, output.end, clock, threading.Event().wait)
                patience.until_reading(30)
                late = HoldBack(f"{SOURCE}.inventory.order_lines", 0, HELD_SECONDS)
                filler.fill(500, hold_back=late)
                patience.until_quiet(records=ORDERS, quiet_seconds=3.0, seconds=30)
        assert output.appended() is not None
        output.close()
        verdict, events = judge(specification_of(fold, tmp_path), bed.bootstrap, silent)
    assert events >= 500
    assert verdict.torn > 0
    assert 0 < verdict.contradictory <= verdict.torn
    assert verdict.final_differences == 0
