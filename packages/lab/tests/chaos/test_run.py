"""A schedule is carried out, healed and timed; with a system that consists of numbers."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slackwater.protocol import SystemClock
from slackwater_lab.chaos.disturber import Disturber
from slackwater_lab.chaos.run import ChaosRun
from slackwater_lab.chaos.schedule import Round, ScheduledFault
from slackwater_lab.chaos.system import EXECUTORS, System
from slackwater_lab.database.writers import WriterCounts
from slackwater_lab.errors import NothingToDisturbError, RunFailedError


class NumberSystem:
    """Commits one transaction each time it is asked for its LSN; shows it at once unless it is stuck."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.settings = SimpleNamespace(logs=Path("logs"))
        self.master = ""
        self.lsn = 100
        self.is_stuck = False
        self.failure: Exception | None = None
        self.is_stopped = False
        self.writers = self.visible = self

    def counts(self) -> WriterCounts:
        return WriterCounts(changes=self.lsn)

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self.is_stopped = True

    def database_lsn(self) -> int:
        self.lsn += 10
        return self.lsn

    def write_last(self) -> int:
        return self.lsn

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        del seconds
        return condition()

    @property
    def newest_lsn(self) -> int:
        return 0 if self.is_stuck else self.lsn + 1

    def first_at(self, lsn: int) -> float:
        del lsn
        return self.clock.monotonic()


class NotingDisturber:
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.has_workers = True
        self._noting = threading.Lock()

    def __getattr__(self, name: str) -> Callable[..., None]:
        def do(*arguments: object) -> None:
            with self._noting:
                self.done.append(" ".join(map(str, (name, *arguments))))
            if "python worker" in arguments and not self.has_workers:
                raise NothingToDisturbError("worker", 1)

        return do


@pytest.fixture
def system() -> NumberSystem:
    return NumberSystem()


@pytest.fixture
def disturber() -> NotingDisturber:
    return NotingDisturber()


@pytest.fixture
def run(system: NumberSystem, disturber: NotingDisturber) -> ChaosRun:
    return ChaosRun(cast("System", system), lambda _: None, cast("Disturber", disturber))


def one(*planned: ScheduledFault, **options: Any) -> Round:
    return Round(1, planned, **options)


def test_what_lasts_is_begun_and_ended_and_everything_is_healed_at_last(
    run: ChaosRun, disturber: NotingDisturber
) -> None:
    run.carry_out([one(ScheduledFault("broker paused", 0.0, 0.1))])
    assert disturber.done == ["pause broker", "resume broker", "heal"]
    (occurrence,) = run.occurrences
    assert occurrence.ended - occurrence.began >= 0.1
    assert occurrence.recovery_seconds >= 0
    assert occurrence.changes == 10


def test_faults_of_a_round_overlap(run: ChaosRun, disturber: NotingDisturber) -> None:
    run.carry_out([one(ScheduledFault("broker paused", 0.0, 0.3), ScheduledFault("redis flushed", 0.1, 0.0))])
    assert disturber.done == ["pause broker", "flush_redis", "resume broker", "heal"]
    assert len(run.occurrences) == 2


def test_a_fault_that_finds_nothing_to_disturb_is_told_and_not_counted(
    run: ChaosRun, disturber: NotingDisturber
) -> None:
    disturber.has_workers = False
    run.carry_out(
        [
            one(ScheduledFault("python worker killed", 0.0, 0.0)),
            one(ScheduledFault("redis flushed", 0.0, 0.0)),
        ]
    )
    assert [planned.fault for planned, _ in run.missed] == ["python worker killed"]
    assert [occurrence.planned.fault for occurrence in run.occurrences] == ["redis flushed"]


def test_an_output_that_stands_still_ends_the_run_with_what_was_done_before(
    run: ChaosRun, system: NumberSystem, disturber: NotingDisturber
) -> None:
    system.is_stuck = True
    with pytest.raises(RunFailedError, match="after 'redis killed'") as error:
        run.carry_out([one(ScheduledFault("redis killed", 0.0, 0.0))])
    assert "logs" in str(error.value)
    assert disturber.done[-1] == "heal"


def test_a_writer_that_fails_ends_the_run(run: ChaosRun, system: NumberSystem) -> None:
    system.failure = ValueError("refused")
    with pytest.raises(ValueError, match="refused"):
        run.carry_out([one(ScheduledFault("redis killed", 0.0, 0.0))])


def test_no_round_begins_after_the_time_is_over(run: ChaosRun, system: NumberSystem) -> None:
    rounds = [one(ScheduledFault("redis killed", 0.0, 0.0))] * 3
    run.carry_out(rounds, until=system.clock.monotonic() - 1)
    assert run.occurrences == []


def test_a_round_says_where_spark_runs_from_the_next_start_on(run: ChaosRun, system: NumberSystem) -> None:
    run.carry_out([one(ScheduledFault("redis killed", 0.0, 0.0), master=EXECUTORS)])
    assert system.master == EXECUTORS


def test_at_the_end_the_writers_stop_and_their_last_commit_is_awaited(
    run: ChaosRun, system: NumberSystem, disturber: NotingDisturber
) -> None:
    run.finish()
    assert system.is_stopped
    assert disturber.done == ["heal"]
