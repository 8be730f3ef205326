"""Receiving in services that use ``asyncio``, over psycopg's or asyncpg's connections."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import psycopg

from slackwater.protocol import KafkaSettings
from slackwater_messaging.bridge import Bridge, bridge, driver_of, in_thread, in_threads, run_in_thread
from slackwater_messaging.receiving.receipt import Inbox, Receipt, ReceivedMessage
from slackwater_messaging.receiving.receiver import Receiver, ReceiverProbe, ReceiverSettings
from slackwater_messaging.receiving.statements import CLEAN_AT_ONCE
from slackwater_messaging.receiving.table import TableInbox

AnyConnection = TypeVar("AnyConnection")
T = TypeVar("T")


class AsyncReceiver(Generic[AnyConnection]):
    """:class:`Receiver` for services that use ``asyncio``: the handler is a coroutine function.

    A :class:`Receiver` works in a thread. The handler, and all statements of the inbox, run in the event loop
    of the caller, so the handler uses the connection like any other task.

    Args:
        kafka: See :class:`Receiver`.
        topics: See :class:`Receiver`.
        group: See :class:`Receiver`.
        inbox: See :class:`Receiver`.
        connect: Opens connections of psycopg or asyncpg; called again when one is lost.
        settings: See :class:`Receiver`.
        probe: See :class:`Receiver`; called in the thread.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Sequence[str],
        *,
        group: str,
        inbox: Inbox,
        connect: Callable[[], Coroutine[Any, Any, AnyConnection]],
        settings: ReceiverSettings | None = None,
        probe: ReceiverProbe = lambda step: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._connection: AnyConnection | None = None
        self._receiver = Receiver(
            kafka, topics, group=group, inbox=inbox, connect=self._bridged, settings=settings, probe=probe
        )

    async def __aenter__(self) -> "AsyncReceiver[AnyConnection]":
        """Returns itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the group."""
        await self.close()

    async def run(
        self,
        handle: Callable[[AnyConnection, ReceivedMessage], Coroutine[Any, Any, bytes | None]],
        *,
        reply: Callable[[Sequence[Receipt]], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Receives until the task is cancelled, which takes effect after the current batch.

        Raises:
            MessagingError: The same errors as :meth:`Receiver.poll`.
        """

        def call(_: object, message: ReceivedMessage) -> bytes | None:
            connection = cast("AnyConnection", self._connection)
            try:
                return self._wait(handle(connection, message))
            except Exception as error:
                if (lost := driver_of(connection).lost(error)) is not None:
                    raise lost from error
                raise

        def send(receipts: Sequence[Receipt]) -> None:
            if reply is not None:
                self._wait(reply(receipts))

        receiver = self._receiver
        run = partial(receiver.run, call, reply=None if reply is None else send)
        await run_in_thread(run, receiver.stop)

    def stop(self) -> None:
        """Ends :meth:`run` after the current batch."""
        self._receiver.stop()

    async def close(self) -> None:
        """Does what :meth:`Receiver.close` does."""
        await in_thread(self._receiver.close)

    def _bridged(self) -> psycopg.Connection[Any]:
        self._connection = self._wait(self._connect())
        return cast("psycopg.Connection[Any]", Bridge(driver_of(self._connection), self._loop))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class AsyncTableInbox:
    """:class:`TableInbox` for requests in services that use ``asyncio``, with the same table and rows.

    Connections are psycopg's asynchronous ones, or asyncpg's.

    Args:
        table: See :class:`TableInbox`.
        remember: See :class:`TableInbox`.
        shards: See :class:`TableInbox`.
    """

    def __init__(self, table: str, *, remember: timedelta = timedelta(days=30), shards: int = 16) -> None:
        self.table = table
        """The name."""
        self._inbox = TableInbox(table, remember=remember, shards=shards)

    async def create(self, connection: object) -> None:
        """Creates the table unless it exists."""
        await in_thread(self._inbox.create, bridge(connection))

    @asynccontextmanager
    async def receive(self, connection: object, key: bytes | str) -> AsyncIterator[Receipt]:
        """Returns whether a request was received before; see :meth:`TableInbox.receive`."""
        async with in_threads(self._inbox.receive(bridge(connection), key)) as receipt:
            yield receipt

    async def clean(self, connection: object, *, at_most: int = CLEAN_AT_ONCE) -> int:
        """Deletes the oldest expired keys; see :meth:`TableInbox.clean`."""
        return await in_thread(partial(self._inbox.clean, at_most=at_most), bridge(connection))
