"""The product's processes in a chaos run: they obey a folder, which says what time it is and when to die.

``python -m slackwater_lab.chaos.process FOLDER [--without MECHANISM] COMMAND...`` is the ``slackwater``
command in such a process. The product is unchanged; its clock and its sink's probe are handed over here.
``--without`` switches off a mechanism that a promise rests on, so that the harness can be seen to find it
missing.
"""

import contextlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from slackwater.engine.state.manifest import State, StateKeeper
from slackwater.outputs.contract import SinkStep
from slackwater.protocol import SystemClock

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
        """Makes the process kill itself the next time it reaches the step."""
        self._write(_STEP, step)

    def spare(self) -> None:
        """Takes back :meth:`kill_at`."""
        (self.path / _STEP).unlink(missing_ok=True)

    def deadly_step(self) -> str:
        """Returns the step at which the process will kill itself; empty: none."""
        return self._read(_STEP)

    def obey(self, step: str, kill: Callable[[int, int], None] = os.kill) -> None:
        """Kills this process if that is its step."""
        if self.deadly_step() == step:
            self.spare()
            kill(os.getpid(), signal.SIGKILL)

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
    """Kills this process, as the kernel would, at the step of the sink that the control folder names."""

    def __init__(self, control: ControlFolder, kill: Callable[[int, int], None] = os.kill) -> None:
        self._control, self._kill = control, kill

    def __call__(self, step: SinkStep, batch_id: int) -> None:
        """Obeys at a step of the sink; ``batch_id`` does not matter."""
        del batch_id
        self._control.obey(step, self._kill)


def moved_clock(control: ControlFolder) -> Callable[[Any], datetime]:
    """A replacement of ``SystemClock.now`` that obeys the control folder."""
    right = SystemClock.now

    def now(clock: SystemClock) -> datetime:
        return right(clock) + control.clock_offset()

    return now


def _without_progress_check() -> None:
    """A run begins a batch before the one that the output's progress says, and the sink takes it again."""
    from slackwater.outputs import sink

    setattr(sink, "is_covered", lambda *_: False)  # noqa: B010 - a private name of that module
    right = StateKeeper.open

    def open_earlier(keeper: StateKeeper, name: str) -> State:
        state = right(keeper, name)
        return right(keeper, state.before) if state.before else state

    StateKeeper.open = open_earlier  # type: ignore[method-assign,assignment]


def _without_one_transaction() -> None:
    """Documents are committed to PostgreSQL before the ledger's row is written."""
    from slackwater.outputs.postgres.sink import PostgresSink

    right = PostgresSink._check_tables  # noqa: SLF001 - called between the documents and the row

    def commit_documents(sink: PostgresSink, database: Any) -> None:
        right(sink, database)
        database.execute("COMMIT")
        database.execute("BEGIN")

    PostgresSink._check_tables = commit_documents  # type: ignore[method-assign,assignment]  # noqa: SLF001


_MECHANISMS: dict[str, Callable[[], None]] = {
    "progress-check": _without_progress_check,
    "one-transaction": _without_one_transaction,
}


def prepare(control: ControlFolder, mechanisms: list[str]) -> None:
    """Lets this process obey its control folder."""
    from slackwater.pipeline import runner

    run: Callable[..., Any] = runner.run_pipeline
    SystemClock.now = moved_clock(control)  # type: ignore[method-assign,assignment]
    runner.run_pipeline = partial(run, probe=KillProbe(control))
    for name in mechanisms:
        _MECHANISMS[name]()


def main(arguments: list[str]) -> None:
    """Runs the command; does not return."""
    control, *rest = arguments
    mechanisms = []
    while rest and rest[0] == "--without":
        mechanisms.append(rest[1])
        rest = rest[2:]
    prepare(ControlFolder(Path(control)), mechanisms)
    sys.argv = ["slackwater", *rest]
    runpy.run_module("slackwater", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
