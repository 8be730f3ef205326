"""Programs that run beside a test: started, watched, paused and killed by their names."""

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import takewhile
from pathlib import Path

import psutil

from slackwater_devstack import Lifetime
from slackwater_devstack.processes import Launch, ManagedProcess, identify, launch
from slackwater_testing.errors import ProgramEndedError, RunFailedError

PATIENCE = timedelta(seconds=30)
"""So long a program may take to end in order."""
_LOG_LINES = 15


class Program:
    """A process of the product with its log; it can be started again. For one thread at a time.

    Args:
        name: One word.
        arguments: The command line, asked for at each start.
        logs: The folder of its log.
    """

    def __init__(self, name: str, arguments: Callable[[], Sequence[str]], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._arguments = arguments
        self._process: ManagedProcess | None = None

    @property
    def command(self) -> Sequence[str]:
        """The command line of the next start."""
        return self._arguments()

    def start(
        self,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it; returns before it is of any use.

        Args:
            lifetime: Whether it may outlive this process.
            folder: Where it works; None: where this process does.
            environment: Added to the environment of this process.
        """
        order = Launch(argv=tuple(self.command), cwd=folder or Path.cwd(), environment=environment or {})
        self._process = launch(order, self.log, lifetime)

    @property
    def is_well(self) -> bool:
        """True if it runs; paused counts."""
        return self._process is not None and self._process.is_alive

    @property
    def pid(self) -> int | None:
        """Its process; None while it does not run."""
        return self._process.identity.pid if self._process is not None and self.is_well else None

    def check(self) -> None:
        """Does nothing while it runs.

        Raises:
            ProgramEndedError: it does not.
        """
        if not self.is_well:
            raise ProgramEndedError(self.name, self.log, self.last_words())

    def wait(self, seconds: float) -> int:
        """Waits until it has ended by itself; returns its exit code, negative for a signal.

        Raises:
            RunFailedError: it was not started, or takes longer.
        """
        if self._process is None:
            raise RunFailedError(self.name, "was not started")
        try:
            return int(psutil.Process(self._process.identity.pid).wait(seconds) or 0)
        except psutil.TimeoutExpired:
            raise RunFailedError(self.name, f"did not end within {seconds:g} s") from None

    def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL when that takes too long. Idempotent."""
        if self._process is not None:
            self._process.resume()
            self._process.stop(signal.SIGTERM, PATIENCE)

    def kill(self) -> None:
        """Sends SIGKILL to its tree; nothing happens when it does not run."""
        if self._process is not None:
            self._process.kill()

    def pause(self) -> None:
        """Sends SIGSTOP to its tree; nothing happens when it does not run."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Sends SIGCONT to its tree; nothing happens when it does not run."""
        if self._process is not None:
            self._process.resume()

    def children(self, is_wanted: Callable[[psutil.Process], bool]) -> list[ManagedProcess]:
        """Lists the processes of one kind below it."""
        found: list[ManagedProcess] = []
        with contextlib.suppress(psutil.Error):
            if self.pid is not None:
                children = psutil.Process(self.pid).children(recursive=True)
                found += [ManagedProcess(identify(child.pid)) for child in children if is_wanted(child)]
        return found

    def output(self) -> str:
        """Reads what it has said so far."""
        try:
            return self.log.read_text(errors="replace")
        except OSError:
            return ""

    def last_words(self) -> str:
        """Tells how its log ends: with the error of a command, if it has one, else with its last lines."""
        return "\n".join(last_words(self.output().splitlines()))


def last_words(lines: Sequence[str]) -> list[str]:
    """The error a command printed at its end, with its indented lines; without one, the last lines."""
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if not starts:
        return list(lines[-_LOG_LINES:])
    more = takewhile(lambda line: line.startswith(" " * 7), lines[starts[-1] + 1 :])
    return [lines[starts[-1]], *more]
