"""What runs until it is stopped or closed, and refuses a second caller instead of mixing two."""

import asyncio
import contextvars
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from slackwater.client.finishing import finished
from slackwater.kafka.retry import Retry
from slackwater.protocol import Clock, ConfigError, SystemClock

T = TypeVar("T")


class Exclusive:
    """Is held by one call at a time. A second one is refused, from whatever thread or asyncio task."""

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

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Closes the connections to the servers. Idempotent."""


class Runner(Closing):
    """Works until it is stopped."""

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


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Makes a call in a new thread. A cancellation of the caller takes effect when the call has ended.

    The threads of the event loop's executor are not used: calls wait for each other, for example for locks of
    the database, and a call that waits for a free thread could be the one for which all others wait.
    """
    return await finished(asyncio.wrap_future(_started(call, *arguments)))


@asynccontextmanager
async def in_threads(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enters and leaves a synchronous block in other threads.

    A cancellation takes effect when the block was entered, or left, and a block that was entered is always
    left.
    """
    entering = _started(block.__enter__)
    try:
        found = await finished(asyncio.wrap_future(entering))
    except asyncio.CancelledError as error:
        if entering.exception() is None:
            await in_thread(block.__exit__, type(error), error, error.__traceback__)
        raise
    try:
        yield found
    except BaseException as error:
        if not await in_thread(block.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await in_thread(block.__exit__, None, None, None)


def wait_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in an event loop, and waits for its result in another thread."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


async def run_in_thread(run: Callable[[], None], stop: Callable[[], None]) -> None:
    """Runs something in a thread until it ends. A cancellation calls ``stop``, and waits for the end."""
    running = asyncio.wrap_future(_started(run))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await finished(running)
        raise


def _started(call: Callable[..., T], *arguments: object) -> Future[T]:
    answer, context = Future[T](), contextvars.copy_context()

    def work() -> None:
        try:
            answer.set_result(context.run(call, *arguments))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            answer.set_exception(error)

    threading.Thread(target=work, name="slackwater messaging", daemon=True).start()
    return answer
