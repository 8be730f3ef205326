"""Processes of the running product are killed with SIGKILL; the demo's judge then compares record by record.

The judge knows what every commit record must have published: documents of the source's state at that LSN,
each once. So a torn, lost or repeated document is found wherever it is, and the final state is PostgreSQL's.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from slackwater.demo.observers import CommitWatcher
from slackwater.demo.run import Demo, DemoSettings
from slackwater.demo.writers import Writers
from slackwater.output import Output
from slackwater_protocol import Clock, SystemClock

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

PIPELINE = Path(__file__).parents[2] / "pipelines" / "orders"
SECONDS = 24.0


@dataclass
class Disturbed:
    """Kills something while the writers write, and again each time the output has moved on since."""

    kill: Callable[[Demo], bool]
    """Returns whether there was something to kill."""
    kills: int = 0
    _lsn: int = -1

    def step(self, demo: Demo, newest_lsn: int) -> None:
        if newest_lsn > self._lsn and self.kill(demo):
            self._lsn = newest_lsn
            self.kills += 1


class DisturbedDemo(Demo):
    def __init__(self, settings: DemoSettings, disturbed: Disturbed, clock: Clock) -> None:
        super().__init__(settings, Output(), clock)
        self._disturbed = disturbed
        self._watcher: CommitWatcher | None = None
        """Set while the writers write."""

    def _write(self, watcher: CommitWatcher) -> tuple[Writers, int, float]:
        self._watcher = watcher
        try:
            return super()._write(watcher)
        finally:
            self._watcher = None

    def _check(self) -> None:
        if self._watcher is not None:
            self._disturbed.step(self, self._watcher.newest_lsn)
        super()._check()


def kill_driver(demo: Demo) -> bool:
    return _kill_service(demo, "pipeline")


def kill_sidecar(demo: Demo) -> bool:
    return _kill_service(demo, "sidecar")


def kill_redis(demo: Demo) -> bool:
    """Redis keeps nothing on disk: it comes back empty."""
    demo.stack.redis.kill()
    demo.stack.redis.start()
    return True


def kill_python_worker(demo: Demo) -> bool:
    """One that executes a task; Spark has to notice and repeat the task."""
    driver = next(service.pid for service in demo.services if service.name == "pipeline")
    for process in psutil.Process(driver).children(recursive=True):
        if _is_worker(process):
            process.kill()
            return True
    return False


def _is_worker(process: psutil.Process) -> bool:
    """Whether it is a forked worker, not the daemon that forks; the JVM's other children come and go."""
    try:
        parent = process.parent()
        return all(
            "pyspark.worker" in " ".join(candidate.cmdline()) for candidate in (process, parent) if candidate
        )
    except psutil.Error:
        return False


def _kill_service(demo: Demo, name: str) -> bool:
    service = next(service for service in demo.services if service.name == name)
    if service.pid is None:
        return False
    process = psutil.Process(service.pid)
    os.kill(service.pid, signal.SIGKILL)
    process.wait(30)
    service.start(demo.stack.lifetime, {})
    return True


@pytest.mark.parametrize("kill", [kill_driver, kill_python_worker, kill_sidecar, kill_redis])
def test_nothing_is_torn_lost_or_repeated_when_a_process_is_killed(
    kill: Callable[[Demo], bool], tmp_path: Path
) -> None:
    disturbed = Disturbed(kill)
    settings = DemoSettings(
        pipeline=PIPELINE, folder=tmp_path / "demo", seconds=SECONDS, changes_per_second=1_000.0, seed=5
    )
    with DisturbedDemo(settings, disturbed, SystemClock()) as demo:
        outcome = demo.run()
    assert disturbed.kills >= 1
    assert outcome.is_measured
    assert outcome.findings.examples == {}
