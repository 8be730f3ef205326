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
from slackwater_lab.debezium.records import partition_of
from slackwater_lab.generator.debezium_records import Headers
from slackwater_lab.generator.fill import TopicFiller, TopicOutput
from slackwater_lab.workloads.orders import OrdersWorkload

pytestmark = pytest.mark.integration

ORDERS = 50
HELD_SECONDS = 2.0


def silent(_: str) -> None:
    """Progress for nobody."""


class LateLines:
    """Holds the records of half of the lines back while others are put."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[tuple[str, str | None, str, Headers]] = []
        self.is_holding = False
        self._put = TopicOutput.put
        late = self

        def put(output: TopicOutput, topic: str, value: str | None, key: str, headers: Headers) -> None:
            if late.is_holding and topic.endswith("order_lines") and partition_of(key.encode(), 2):
                late.held.append((topic, value, key, headers))
            else:
                late._put(output, topic, value, key, headers)

        monkeypatch.setattr(TopicOutput, "put", put)

    def release(self, output: TopicOutput) -> None:
        """Puts what was held back."""
        self.is_holding = False
        for record in self.held:
            output.put(*record)
        output.flush()


@pytest.mark.slow
def test_a_fold_shows_torn_documents_when_rows_are_late_and_ends_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = LateLines(monkeypatch)
    (fold,) = peers_named(["fold"])
    installed = install(fold, silent)
    clock = SystemClock()
    context = RunContext(environment=Environment.here(), clock=clock, say=silent)
    workload = OrdersWorkload(3, ORDERS)
    with Bed(context, partitions=2) as bed:
        filler = TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=2)
        output = WatchedTopic(bed.bootstrap, fold.output)
        with started(fold, installed, bed, output.name) as running:
            patience = Patience(fold, running, output.end, clock, threading.Event().wait)
            patience.until_reading(30)
            late.is_holding = True
            filler.fill(500)
            threading.Event().wait(HELD_SECONDS)
            late.release(TopicOutput(bed.bootstrap))
            patience.until_quiet(records=ORDERS, quiet_seconds=3.0, seconds=30)
        assert output.last_ms() is not None
        output.close()
        certificate = judge(specification_of(fold, tmp_path), bed.bootstrap, silent)
    assert certificate.events >= 500
    assert certificate.torn > 0
    assert 0 < certificate.invariant_violations <= certificate.torn
    assert certificate.final_differences == 0
