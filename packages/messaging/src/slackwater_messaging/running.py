"""What runs until it is stopped or closed, and refuses a second caller instead of mixing two."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import ClassVar, Self

from slackwater.kafka.retry import Retry
from slackwater.protocol import Clock, ConfigError, SystemClock
from slackwater_messaging.bridge import run_in_thread


class Exclusive:
    """Is held by one call at a time. A second call is refused, whether a thread or an asyncio task makes it.

    Args:
        what: The object that is used by one caller at a time.
        hint: What to do instead of sharing it.
    """

    def __init__(self, what: str, hint: str) -> None:
        self._what, self._hint = what, hint
        self._lock = threading.Lock()  # not re-entrant: the tasks of an event loop share their thread

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds it for the block.

        Raises:
            ConfigError: Another call holds it.
        """
        if not self._lock.acquire(blocking=False):
            raise ConfigError(f"{self._what} is in use by another thread or task", self._hint)
        try:
            yield
        finally:
            self._lock.release()


class Closing(ABC):
    """Is closed at the end of a ``with`` block."""

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Closes the connections to the servers. Idempotent."""


class Runner(Closing):
    """Works until it is stopped.

    Args:
        what: What it is, for messages.
        clock: Measures how long a server has not answered.
    """

    passing: ClassVar[tuple[type[Exception], ...]]
    """Errors after which another attempt may succeed."""

    def __init__(self, what: str, clock: Clock | None = None) -> None:
        self._what, self._clock = what, clock or SystemClock()
        self._use = Exclusive(what, "give each thread and task its own")

    @abstractmethod
    def run_once(self) -> int:
        """Does what can be done now; returns the number of messages."""

    def run(self, stop: threading.Event) -> None:
        """Works until it is asked to stop. Waits for servers that do not answer.

        Raises:
            SlackwaterError: An error that another attempt would meet again.
        """
        retry = Retry(self._what, clock=self._clock, pause=stop.wait)
        while not stop.is_set():
            try:
                done = self.run_once()
            except self.passing as error:
                self._disconnect()
                retry.note(error)
                retry.pause()
            else:
                retry.reset()
                self._rest(stop, done)

    def _disconnect(self) -> None:
        """Drops connections that may be broken."""

    def _rest(self, stop: threading.Event, done: int) -> None:
        """Waits before the next call of :meth:`run_once`."""

    async def run_async(self) -> None:
        """Does what :meth:`run` does in a thread, until the task is cancelled and a step has ended."""
        stop = threading.Event()
        await run_in_thread(partial(self.run, stop), stop.set)
