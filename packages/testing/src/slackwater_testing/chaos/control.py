"""How a chaos run tells a running process what time it is and when to die: files in a folder."""

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from slackwater_protocol import SystemClock
from slackwater_spark.sink import SinkStep

_OFFSET, _STEP = "clock-offset-seconds", "kill-sink-at"


@dataclass(frozen=True, slots=True)
class ControlFolder:
    """The folder of one process; written by the run, read by the process."""

    path: Path

    def move_clock(self, offset: timedelta) -> None:
        """Sets the difference of the process's wall clock from the machine's."""
        self._write(_OFFSET, str(offset.total_seconds()))

    def clock_offset(self) -> timedelta:
        """Zero until somebody has moved the clock."""
        return timedelta(seconds=float(self._read(_OFFSET) or 0))

    def kill_sink_at(self, step: str) -> None:
        """The process shall kill itself the next time its sink reaches the step."""
        self._write(_STEP, step)

    def spare_sink(self) -> None:
        """It shall not."""
        (self.path / _STEP).unlink(missing_ok=True)

    def deadly_step(self) -> str:
        """The step at which the process shall kill itself; empty: none."""
        return self._read(_STEP)

    def _write(self, name: str, text: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / f".{name}"
        draft.write_text(text)
        draft.replace(self.path / name)

    def _read(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.path / name).read_text()
        return ""


class KillProbe:
    """Kills this process, as the kernel would, at the step that the control folder names."""

    def __init__(self, control: ControlFolder, kill: Callable[[int, int], None] = os.kill) -> None:
        self._control = control
        self._kill = kill

    def reached(self, step: SinkStep, batch_id: int) -> None:
        """Called by the sink; ``batch_id`` does not matter."""
        del batch_id
        if self._control.deadly_step() == step:
            self._control.spare_sink()
            self._kill(os.getpid(), signal.SIGKILL)


def moved_clock(control: ControlFolder) -> Callable[[Any], datetime]:
    """A replacement of ``SystemClock.now`` that obeys the control folder."""
    right = SystemClock.now

    def now(clock: SystemClock) -> datetime:
        return right(clock) + control.clock_offset()

    return now
