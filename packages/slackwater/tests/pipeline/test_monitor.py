"""What is counted and measured of a run."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from slackwater.pipeline import BatchProgress, RunMonitor
from slackwater.pipeline.source.planner import PlannedCut
from slackwater.protocol import StageWork, metrics
from slackwater.protocol.metrics import RUN_METRICS, Distribution, Metric


class Clock:
    def now(self) -> datetime:
        return datetime.fromtimestamp(10, UTC)

    def monotonic(self) -> float:
        return 10.0


BATCH = BatchProgress(
    pipeline="orders",
    source="inv",
    timeline=1,
    batch_id=0,
    commit_lsn=77,
    committed_at=datetime.fromtimestamp(1, UTC),
    visible_at=datetime.fromtimestamp(2.5, UTC),
    events=5,
    transactions=2,
    documents=3,
    deletes=1,
    was_covered=False,
    seconds={"plan": 0.25, "commit": 0.5},
    stage_work=(StageWork(stage=1, total_us=1_500_000, tasks=2, slowest_us=1, slowest_task=0),),
    state_bytes={1: 2_000},
    withheld={"codes": 3},
    commits=((9, 70, 900), (10, 77, 1_000)),
    cuts=(PlannedCut(70, 950, 960), PlannedCut(77, 1_200, 1_500)),
)


@pytest.fixture
def monitor() -> RunMonitor:
    return RunMonitor("orders", "inv", Clock())


def values(monitor: RunMonitor, metric: Metric) -> Mapping[tuple[str, ...], float | Distribution]:
    samples = dict(monitor.read(metric))
    assert all(labels[:2] == ("inv", "orders") for labels in samples)
    return {labels[2:]: value for labels, value in samples.items()}


def sums(monitor: RunMonitor, metric: Metric) -> Mapping[tuple[str, ...], float]:
    return {k: v.total for k, v in values(monitor, metric).items() if isinstance(v, Distribution)}


def test_every_metric_of_the_list_has_its_labels(monitor: RunMonitor) -> None:
    monitor.record_batch(BATCH)
    for metric in RUN_METRICS:
        samples = monitor.read(metric)
        assert samples, metric.name
        assert {len(labels) for labels, _ in samples} == {len(metric.labels)}


def test_batches_are_added_up(monitor: RunMonitor) -> None:
    monitor.record_batch(BATCH)
    monitor.record_batch(replace(BATCH, was_covered=True, commit_lsn=90))
    assert values(monitor, metrics.RUN_BATCHES) == {(): 2}
    assert values(monitor, metrics.RUN_COVERED_BATCHES) == {(): 1}
    assert values(monitor, metrics.RUN_EVENTS) == {(): 10}
    assert values(monitor, metrics.RUN_TRANSACTIONS) == {(): 4}
    assert values(monitor, metrics.RUN_DOCUMENTS) == {(): 6}
    assert values(monitor, metrics.RUN_DELETES) == {(): 2}
    assert values(monitor, metrics.RUN_COMMIT_LSN) == {(): 90}
    assert values(monitor, metrics.RUN_PART_SECONDS) == {("plan",): 0.5, ("commit",): 1.0}
    assert values(monitor, metrics.RUN_STAGE_SECONDS) == {("1",): 3.0}
    assert values(monitor, metrics.RUN_STATE_BYTES) == {("1",): 2_000}
    assert values(monitor, metrics.RUN_COMMIT_AGE) == {(): 9.0}
    assert sums(monitor, metrics.RUN_DELAY) == {(): 3.0}
    assert sums(monitor, metrics.RUN_BATCH_SECONDS) == {(): 1.5}


def test_components_add_up_to_the_delay(monitor: RunMonitor) -> None:
    monitor.record_batch(BATCH)
    components = sums(monitor, metrics.RUN_COMPONENT_DELAY)
    assert components == {("connector",): 0.2, ("sidecar",): 0.3, ("pipeline",): 1.0}
    assert sum(components.values()) == pytest.approx(BATCH.delay.total_seconds())


@pytest.mark.parametrize("cuts", [(), (PlannedCut(70, 950, 960),), (PlannedCut(77, 0, 1_500),)])
def test_a_component_that_is_not_known_is_not_made_up(
    monitor: RunMonitor, cuts: tuple[PlannedCut, ...]
) -> None:
    """Before: cuts of older versions, or none in memory after a restart."""
    monitor.record_batch(replace(BATCH, cuts=cuts))
    assert set(sums(monitor, metrics.RUN_COMPONENT_DELAY).values()) == {0.0}
    assert sums(monitor, metrics.RUN_DELAY) == {(): 1.5}


def test_before_the_first_batch_there_is_no_age_of_a_commit(monitor: RunMonitor) -> None:
    assert values(monitor, metrics.RUN_COMMIT_AGE) == {}
    assert values(monitor, metrics.RUN_BATCHES) == {(): 0}


def test_warnings_and_errors_of_the_log_are_counted(monitor: RunMonitor) -> None:
    for level in (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        monitor.count_log_record(logging.makeLogRecord({"levelno": level}))
    assert values(monitor, metrics.RUN_LOG_RECORDS) == {("warning",): 1, ("error",): 2}
