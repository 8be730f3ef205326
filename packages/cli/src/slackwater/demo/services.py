"""Sidecar and pipeline as a user would start them: ``python -m slackwater …``, each with its log."""

import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import takewhile
from pathlib import Path

from slackwater.demo.errors import ServiceEndedError
from slackwater_devstack.processes import Launch, Lifetime, ManagedProcess, launch

PATIENCE = timedelta(seconds=20)
_LOG_LINES = 15


class Service:
    """One subprocess of the demo. Embedded ones do not outlive this process (Linux)."""

    def __init__(self, name: str, arguments: Sequence[str], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._arguments = tuple(arguments)
        self._process: ManagedProcess | None = None

    @property
    def pid(self) -> int | None:
        """None before the start."""
        return self._process.identity.pid if self._process else None

    @property
    def command(self) -> str:
        """What a user would type."""
        return " ".join(("slackwater", *self._arguments))

    def start(self, lifetime: Lifetime, environment: Mapping[str, str]) -> None:
        """Returns at once; the service needs a while to be of use."""
        argv = (sys.executable, "-m", "slackwater", *self._arguments)
        order = Launch(argv=argv, cwd=Path.cwd(), environment=environment)
        self._process = launch(order, self.log, lifetime)

    def check(self) -> None:
        """Does nothing while it runs.

        Raises:
            ServiceEndedError: it has ended.
        """
        if self._process is None or not self._process.is_alive:
            raise ServiceEndedError(self.name, self.log, self._last_lines())

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when it takes too long. Idempotent."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM, PATIENCE)
            self._process = None

    def _last_lines(self) -> str:
        try:
            return "\n".join(last_words(self.log.read_text(errors="replace").splitlines()))
        except OSError:
            return ""


def last_words(lines: Sequence[str]) -> list[str]:
    """The error a command printed at its end, with its indented lines; without one, the last lines."""
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if not starts:
        return list(lines[-_LOG_LINES:])
    more = takewhile(lambda line: line.startswith(" " * 7), lines[starts[-1] + 1 :])
    return [lines[starts[-1]], *more]
