"""A peer's program as a process of its own, with all that it starts."""

import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from slackwater_bench.peers.errors import PeerFailedError
from slackwater_bench.peers.installation import Installed
from slackwater_bench.peers.registry import Peer

READING = "reading"
"""The line that a program prints when it begins to read."""
STOP_SECONDS = 20.0
TAIL_LINES = 8


class PeerProgram:
    """Started with the context manager, ended with it, group and all.

    Args:
        peer: What is started.
        installed: With what.
        bootstrap: The broker.
        prefix: The connector's ``topic.prefix``.
        output: Topic for the documents; exists.
        folder: For its state and its log.
    """

    def __init__(
        self, peer: Peer, installed: Installed, *, bootstrap: str, prefix: str, output: str, folder: Path
    ) -> None:
        self._peer = peer
        self._folder = folder
        self._command = [str(installed.python), str(peer.folder / "program.py"), "--bootstrap", bootstrap]
        self._command += ["--input-prefix", prefix, "--output", output, "--folder", str(folder)]
        if installed.jars is not None:
            self._command += ["--jars", str(installed.jars)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**inherited, **self._peer.environment},
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()

    @property
    def pid(self) -> int:
        """Of the program; its children are in its process group.

        Raises:
            PeerFailedError: it was not started.
        """
        if self._process is None:
            raise PeerFailedError(self._peer.name, "was not started")
        return self._process.pid

    def is_reading(self) -> bool:
        """Whether it has said that it reads."""
        with self._log.open(errors="replace") as log:
            return any(line.strip() == READING for line in log)

    def check(self) -> None:
        """It still runs.

        Raises:
            PeerFailedError: it does not.
        """
        code = self._process.poll() if self._process else None
        if code is not None:
            tail = " / ".join(self._log.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:])
            raise PeerFailedError(self._peer.name, f"ended with exit code {code}: {tail}")

    @property
    def _log(self) -> Path:
        return self._folder / "program.log"

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return  # nothing of it is left
