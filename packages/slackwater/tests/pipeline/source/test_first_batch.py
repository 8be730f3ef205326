"""Where a query without a checkpoint begins, and that its first batch can be repeated."""

import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from slackwater.engine.settings import Scope
from slackwater.pipeline.source import planner
from slackwater.pipeline.source.data_source import SlackwaterStreamReader
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.position import Position


class GrowingSource:
    """A planner for which there is a newer cut each time it is asked."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._lsn = 0

    def start(self) -> Position:
        return self._newest() if self.options.starting == "latest" else self._at(0)

    def offset(self, data: dict[str, Any]) -> Position:
        return Position.from_json(data, source="inv", timeline=1, scope=Scope.STRICT)

    def next(self, start: Position, max_events: int | None, target: int | None) -> Position:
        return self._newest()

    def _newest(self) -> Position:
        self._lsn += 100
        return self._at(self._lsn)

    def _at(self, lsn: int) -> Position:
        return Position(source="inv", timeline=1, scope=Scope.STRICT, lsns=(lsn,))


def reader(monkeypatch: pytest.MonkeyPatch, **options: str) -> SlackwaterStreamReader:
    monkeypatch.setattr(planner, "Planner", GrowingSource)
    required = {"source": "inv", "bootstrap": "b", "tables": "s.t"}
    return SlackwaterStreamReader(SourceOptions.parse({**required, **options}), StructType())


def test_the_first_batch_of_a_query_that_begins_at_the_newest_cut_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark asks for the beginning again before it runs, or repeats, that batch, and gets a later one."""
    ours = reader(monkeypatch, starting="latest")
    start = ours.initialOffset()
    assert ours.latestOffset(start, ReadAllAvailable()) == start
    assert ours.initialOffset()["lsns"] > start["lsns"]
    assert ours.latestOffset(start, ReadAllAvailable())["lsns"] > start["lsns"], "the second one is not"


def test_other_first_batches_hold_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = reader(monkeypatch)
    start = ours.initialOffset()
    assert ours.latestOffset(start, ReadAllAvailable())["lsns"] == [100]
    restarted = reader(monkeypatch, starting="latest")
    assert restarted.latestOffset(start, ReadAllAvailable())["lsns"] == [100], (
        "a checkpoint says where it begins"
    )


def test_a_reader_travels_to_executors_without_its_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that has connections cannot be pickled."""
    ours = reader(monkeypatch)
    ours.initialOffset()
    assert ours._connected is not None  # noqa: SLF001 - what must not travel
    arrived = pickle.loads(pickle.dumps(ours))  # noqa: S301 - our own bytes
    assert arrived._connected is None  # noqa: SLF001
    assert arrived.getDefaultReadLimit() == ours.getDefaultReadLimit()
