import pytest

from slackwater.protocol import SystemClock
from slackwater_bench.environment import Environment
from slackwater_bench.registry import SCENARIOS
from slackwater_bench.scenario import RunContext

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def context() -> RunContext:
    return RunContext(environment=Environment.here(), clock=SystemClock(), say=lambda _: None)


def test_the_sink_is_measured_alone(context: RunContext) -> None:
    measured = SCENARIOS["sink-alone"].run({"documents": 10, "outputs": 1, "transactions": 3}, context)
    assert measured.value > 0
    commits = measured.details["commit_ms"]
    assert isinstance(commits, dict)
    assert commits["count"] == 3


def test_the_sink_of_postgresql_is_measured_alone(context: RunContext) -> None:
    measured = SCENARIOS["postgres-output"].run({"documents": 10, "rows": 100, "transactions": 3}, context)
    assert measured.value > 0
    writes = measured.details["write_ms"]
    assert isinstance(writes, dict)
    assert writes["count"] == 3


@pytest.mark.parametrize("kind", ["outputs", "changes"])
@pytest.mark.parametrize("share", ["everything", "units"])
def test_a_consumer_is_measured_alone(context: RunContext, kind: str, share: str) -> None:
    measured = SCENARIOS["consumer"].run({"input": kind, "share": share, "rows": 4, "records": 400}, context)
    assert measured.value > 0
    assert measured.details["records"] == 396  # times begin behind the first transaction


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_the_sink_of_lakes_is_measured_alone(context: RunContext, form: str) -> None:
    measured = SCENARIOS["lake"].run({"format": form, "rows": 20, "changed": 6, "batches": 3}, context)
    assert measured.value > 0
    batches = measured.details["batch_ms"]
    assert isinstance(batches, dict)
    assert batches["count"] == 3
