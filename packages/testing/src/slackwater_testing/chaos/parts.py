"""Parts of the running system that can be killed and paused, and that come back by themselves."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from slackwater_devstack import ConnectWorker, DevStackError, Server

RESTART_PAUSE_SECONDS = 1.0
"""As systemd's RestartSec: long enough that a fault is seen by the others, short enough not to bore."""
_LOOK_SECONDS = 0.25
_ASK_SECONDS = 2.0
"""Between two questions to Connect about its connector."""

_log = logging.getLogger(__name__)


class Part(Protocol):
    """Something with processes. Used by one thread at a time, which :class:`Supervised` sees to."""

    @property
    def name(self) -> str:
        """One word."""
        ...

    @property
    def is_well(self) -> bool:
        """True if nobody has to start it; paused counts as well."""
        ...

    def start(self) -> None:
        """Starts it; may wait until it is ready."""
        ...

    def kill(self) -> None:
        """SIGKILL to its tree; nothing happens when it does not run."""
        ...

    def pause(self) -> None:
        """SIGSTOP to its tree; nothing happens when it does not run."""
        ...

    def resume(self) -> None:
        """SIGCONT to its tree; nothing happens when it does not run."""
        ...


class ServerPart:
    """A server of the stack; a connector that failed counts as dead, as an operator would have it."""

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self._server = server
        self._asked_at = float("-inf")

    @property
    def is_well(self) -> bool:
        """True if it runs and, for Connect, its connector has not failed; paused counts as well."""
        server = self._server
        if not server.is_running:
            return False
        if not isinstance(server, ConnectWorker) or time.monotonic() - self._asked_at < _ASK_SECONDS:
            return True
        self._asked_at = time.monotonic()
        return not server.state().trace

    def start(self) -> None:
        """Starts it and waits until clients can work with it."""
        self.kill()
        self._server.start()

    def kill(self) -> None:
        """SIGKILL to its tree, if it runs."""
        if self._server.is_running:
            self._server.kill()

    def pause(self) -> None:
        """SIGSTOP to its tree, if it runs."""
        if self._server.is_running:
            self._server.pause()

    def resume(self) -> None:
        """SIGCONT to its tree, if it runs."""
        if self._server.is_running:
            self._server.resume()


class Supervised:
    """Starts a part again whenever it is dead, after a moment; on a thread of its own.

    Args:
        part: What to look after.
        on_death: Told before each restart.
    """

    def __init__(self, part: Part, on_death: Callable[[Part], None]) -> None:
        self.part = part
        self.restarts = 0
        self._on_death = on_death
        self._using = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"supervisor-{part.name}", daemon=True)

    def start(self) -> None:
        """Begins to look after it; the part may run already."""
        self._thread.start()

    def stop(self) -> None:
        """Lets it be, dead or alive. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def do(self, action: Callable[[Part], None]) -> None:
        """Does something to the part while nobody else does; waits for a start in progress."""
        with self._using:
            action(self.part)

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            if self.part.is_well:
                continue
            self._on_death(self.part)
            if self._stop.wait(RESTART_PAUSE_SECONDS):
                return
            with self._using:
                try:
                    self.part.start()
                    self.restarts += 1
                except DevStackError as error:
                    _log.warning("%s does not start: %s", self.part.name, error)
