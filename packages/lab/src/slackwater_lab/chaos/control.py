"""A folder by which a run tells one of its processes what time it is, and when to die."""

import contextlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_OFFSET, _STEP = "clock-offset-seconds", "kill-at"


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

    def kill_at(self, step: str) -> None:
        """The process shall kill itself the next time it reaches the step."""
        self._write(_STEP, step)

    def spare(self) -> None:
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
