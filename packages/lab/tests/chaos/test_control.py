"""Orders to a process through its control folder."""

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slackwater.outputs.contract import SinkStep
from slackwater.protocol import SystemClock
from slackwater_lab.chaos.process import ControlFolder, KillProbe, moved_clock


@pytest.fixture
def control(tmp_path: Path) -> ControlFolder:
    return ControlFolder(tmp_path / "control")


def test_a_sink_is_killed_at_the_step_asked_for_and_only_once(control: ControlFolder) -> None:
    killed: list[tuple[int, int]] = []
    probe = KillProbe(control, lambda pid, number: killed.append((pid, number)))
    for step in SinkStep:
        probe(step, 1)
    assert killed == []
    control.kill_at(SinkStep.FLUSHED)
    for _ in range(2):
        for step in SinkStep:
            probe(step, 1)
    assert killed == [(os.getpid(), signal.SIGKILL)]
    assert control.deadly_step() == ""


def test_an_order_can_be_taken_back(control: ControlFolder) -> None:
    control.kill_at(SinkStep.BEGUN)
    assert control.deadly_step() == SinkStep.BEGUN
    control.spare()
    control.spare()
    assert control.deadly_step() == ""


def test_a_clock_moves_and_comes_back(control: ControlFolder) -> None:
    now = moved_clock(control)
    for hours in (7, -7, 0):
        control.move_clock(timedelta(hours=hours))
        difference = now(SystemClock()) - SystemClock().now() - timedelta(hours=hours)
        assert abs(difference) < timedelta(minutes=1)
    assert now(SystemClock()).tzinfo is UTC
    assert isinstance(now(SystemClock()), datetime)
