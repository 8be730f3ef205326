"""Every sampled transaction has one trace from its commit to its visibility, written by sidecar and pipeline.

They have nothing in common but the share of transactions in their settings. Seen to fail with another
timeline in the traces of the pipeline, and with its times half a second off.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from slackwater.cuts import CutLog
from slackwater.dev import DevStack
from slackwater.protocol import CommittedTransaction, KafkaSettings, parse_position
from slackwater.protocol.tracing import PIPELINE_STEPS, SIDECAR_STEPS, TracedTransaction
from slackwater_lab.programs import Product
from slackwater_lab.telemetry import Collector, ReceivedSpan
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = [pytest.mark.system, pytest.mark.slow]

TABLES = ("inventory.orders", "inventory.order_lines")
SECONDS = 600.0
TRANSACTIONS = 80
RATIO = 0.5
BATCH = re.compile(r"^orders: batch \d+ at (\S+): .* visible ([\d,]+) ms after", re.MULTILINE)

Trace = Mapping[str, ReceivedSpan]


def committed(bootstrap: str) -> list[CommittedTransaction]:
    """All transactions of the source that are in cuts."""
    log = CutLog("inv", KafkaSettings(bootstrap))
    try:
        found = [t for cut in log.read_range(0, log.end()) for t in cut.cut.transactions]
    finally:
        log.close()
    return [t for t in found if not t.is_snapshot]


def traces(spans: Sequence[ReceivedSpan]) -> Mapping[int, Trace]:
    """The spans of each trace by name; a span that is sent twice is the same."""
    found: defaultdict[int, dict[str, ReceivedSpan]] = defaultdict(dict)
    for span in spans:
        assert found[span.trace_id].setdefault(span.name, span) == span
    return found


def measured_delays(log: str) -> Mapping[int, int]:
    """The delay in ms that the run has measured of the newest transaction of each batch, by its LSN."""
    return {parse_position(lsn): int(ms.replace(",", "")) for lsn, ms in BATCH.findall(log)}


def check(transaction: CommittedTransaction, trace: Trace, delays: Mapping[int, int]) -> None:
    """The spans are one tree; steps follow each other, and add up to the delay that was measured."""
    assert trace.keys() == {"transaction", "pipeline orders", *SIDECAR_STEPS, *PIPELINE_STEPS}
    root, whole = trace["transaction"], trace["pipeline orders"]
    assert (root.parent_id, root.service, root.begin_ms) == (None, "sidecar", transaction.commit_ts_ms)
    assert (whole.parent_id, whole.service) == (root.span_id, "run")
    assert {trace[name].parent_id for name in SIDECAR_STEPS} == {root.span_id}
    assert {trace[name].parent_id for name in PIPELINE_STEPS} == {whole.span_id}
    steps = [trace[name] for name in (*SIDECAR_STEPS, *PIPELINE_STEPS)]
    assert all(before.end_ms == after.begin_ms for before, after in pairwise(steps))
    assert all(step.begin_ms <= step.end_ms for step in steps)
    if transaction.commit_lsn in delays:
        # Both are rounded to whole milliseconds.
        total = sum(step.end_ms - step.begin_ms for step in steps)
        assert total == pytest.approx(delays[transaction.commit_lsn], abs=2)


def is_sampled(lsn: int) -> bool:
    """Whether the transaction with a commit LSN is to be traced."""
    return TracedTransaction("inv", 1, 0, lsn).is_sampled(RATIO)


def measured_and_sampled(stack: DevStack, product: Product) -> set[int]:
    """The commit LSNs of sampled transactions whose delay the run has measured."""
    lsns = {each.commit_lsn for each in committed(stack.kafka.bootstrap)}
    return {lsn for lsn in lsns & measured_delays(product.log("pipeline")).keys() if is_sampled(lsn)}


class Writer:
    """Writes orders, each in a transaction of its own."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self.written = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.written += 1
            order = "INSERT INTO inventory.orders VALUES (%s, 'ada', 'new', 0, 0, now())"
            self._connection.execute(order.encode(), (self.written,))


def test_every_sampled_transaction_has_one_trace_that_adds_up_to_its_delay(
    dev_stack: Callable[..., DevStack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = dev_stack(partitions=2)
    pipeline = repository_pipeline("orders")
    with Collector() as collector, psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        monkeypatch.setenv("SLACKWATER_TELEMETRY_OTLP", collector.url)
        monkeypatch.setenv("SLACKWATER_TELEMETRY_TRACE_RATIO", str(RATIO))
        connection.execute(b"CREATE SCHEMA inventory")
        connection.execute((pipeline / "schema.sql").read_text().encode())
        connection.execute(b"INSERT INTO inventory.order_lines VALUES (0, 0, 'pen', 1, 2.50)")
        writer = Writer(connection)
        writer.write(1)
        stack.start_connector(TABLES)
        stack.wait_until_streaming()
        with Product(stack, tmp_path / "product") as product:
            product.start_sidecar()
            product.start_pipeline(pipeline, "--master", "local[2]", local=product.folder)
            visible = product.watch(pipeline)

            def is_all_visible() -> bool:
                found = committed(stack.kafka.bootstrap)
                newest = found[-1].commit_lsn if found else 0
                is_measured = newest in measured_delays(product.log("pipeline"))
                is_whole = len(found) >= writer.written - 1  # the first is of the snapshot
                return is_whole and is_measured and visible.newest_lsn >= newest

            writer.write(TRANSACTIONS)
            assert product.wait_until(is_all_visible, SECONDS)
            # Until a sampled one is the newest of its batch: the run has then measured its delay.
            while not measured_and_sampled(stack, product):
                writer.write(1)
                assert product.wait_until(is_all_visible, SECONDS)
            transactions = committed(stack.kafka.bootstrap)
            delays = measured_delays(product.log("pipeline"))
        # A process that has ended has sent everything.
    sampled = {
        TracedTransaction("inv", 1, each.xid, each.commit_lsn).trace_id: each
        for each in transactions
        if is_sampled(each.commit_lsn)
    }
    found = traces(collector.spans)
    assert 0 < len(sampled) < len(transactions)
    assert found.keys() == sampled.keys()
    for trace_id, transaction in sampled.items():
        check(transaction, found[trace_id], delays)
    names = {metric.name for metric in collector.metrics}
    assert {"slackwater_run_batches", "slackwater_cuts", "slackwater_run_component_delay_seconds"} <= names
