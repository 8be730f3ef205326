"""Reads whole transactions in a service that uses asyncio.

A separate thread for each consumer runs a :class:`TransactionalConsumer`, so that the rules exist only once.
The event loop passes calls to the thread and never waits for Kafka itself. Between calls, the thread keeps
the consumer in its group.
"""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

from confluent_kafka import TopicPartition

from slackwater.cdc.batch import Record
from slackwater.client.consumer import ConsumerSettings, PositionOf, TransactionalConsumer
from slackwater.client.feeds import Feed
from slackwater.client.finishing import finished
from slackwater.client.inputs import Inputs, Share
from slackwater.client.kafka import KafkaBroker
from slackwater.client.transaction import LanePosition, Piece, Transaction
from slackwater.protocol import Clock, CommitPosition, ConfigError, KafkaSettings, SystemClock, epoch_ms

_IDLE_SECONDS = 0.1
"""How often the thread polls the group while it has nothing else to do."""
_SLICE = timedelta(seconds=0.1)
"""How long one search for a transaction takes; a cancelled caller occupies the thread no longer than that."""

T = TypeVar("T")
_InThread = Callable[[Callable[["_HeldConsumer"], None]], Awaitable[None]]
"""Calls a function in the thread of a consumer, and raises its error."""


class AsyncTransaction(Transaction):
    """A transaction whose records are read with ``async for``.

    A transaction that is not streamed can also be iterated with ``for``. If iterating over a streamed one is
    cancelled, it can be resumed without missing a record.
    """

    def __init__(
        self, piece: Piece, read_on: Callable[[], Piece | None] | None, in_thread: _InThread
    ) -> None:
        super().__init__(piece, read_on)
        self._in_thread = in_thread
        self._unread: list[Record] | None = piece.records
        """Records that were read, but not looked at yet."""
        self._left: Iterator[Record] = iter(())
        """Those of the portion that is being iterated."""

    def __iter__(self) -> Iterator[Record]:
        """Yields the records.

        Raises:
            ConfigError: The transaction is streamed, which requires ``async for``.
        """
        return iter(self.records)

    def __aiter__(self) -> AsyncIterator[Record]:
        """Yields the records. A streamed transaction yields each of them only once.

        Raises:
            TransactionLostError: The transaction is streamed, and its lane was assigned to another member.
        """
        return self if self.is_streamed else self._whole()

    async def _whole(self) -> AsyncIterator[Record]:
        for record in self.records:
            yield record

    async def __anext__(self) -> Record:
        """Returns the next record of a streamed transaction."""
        while True:
            for record in self._left:
                return record
            if self._unread is None:
                await self._in_thread(self._read)
            portion, self._unread = self._unread, None
            if portion is None:
                raise StopAsyncIteration
            self._left = iter(portion)

    def _read(self, _: "_HeldConsumer") -> None:
        """Runs in the thread, and completes even if the caller is cancelled."""
        if self._unread is None:
            self._unread = self._read_portion()


class _HeldConsumer(TransactionalConsumer):
    """A consumer that stays in its group while its newest transaction is being processed.

    A lane of that transaction is given up only after the transaction was processed; a rebalance waits for
    that.
    """

    in_thread: _InThread
    wait_for_handler: Callable[[], None]
    """Called within a rebalance: waits for a call that may report the transaction as processed."""
    is_closing: Callable[[], bool]

    def settle(self) -> None:
        """Notes that the newest transaction was processed."""
        self._settle()

    def take_back(self) -> None:
        """Takes the newest transaction back, because no caller received it; the next poll returns it."""
        if self._current is not None:
            self._taken_back, self._current = self._current, None

    def take_part(self) -> None:
        """Polls the group; changes take effect at the next call. Does not block."""
        self._member.poll(0)
        self._gone |= self._member.take_gone()
        self._tend_at = float("-inf")

    def has_moved(self, find: Callable[[Feed], LanePosition]) -> bool:
        """Seeks if a lane is assigned; waits briefly for one."""
        return self._has_moved(find)

    def _hand_out(self, piece: Piece) -> Transaction:
        super()._hand_out(piece)
        return AsyncTransaction(piece, None if piece.is_last else self._read_on, self.in_thread)

    def _give_away(self, lanes: frozenset[int]) -> None:
        while self._current is not None and self._current.is_last and lanes.intersection(self._current.lanes):
            self.wait_for_handler()
        super()._give_away(lanes)

    def _work(self, seconds: float) -> None:
        if self.is_closing():
            raise _closed()
        super()._work(seconds)


class _Call(NamedTuple):
    """Something to be done in the thread."""

    do: Callable[[_HeldConsumer], Any] | None
    """None: end the thread."""
    answer: "asyncio.Future[Any] | None" = None
    """None: nobody waits for the result; an error is then raised by the next call that is waited for."""


class _ConsumerThread:
    """Runs calls in order. A call completes even if the task that waits for it is cancelled."""

    def __init__(self, make: Callable[[], _HeldConsumer]) -> None:
        self._make = make
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        """An error of a call that nobody waited for."""
        self.consumer: _HeldConsumer | None = None
        self.is_closing = False

    def submit(self, do: Callable[[_HeldConsumer], None]) -> None:
        """Queues a call that runs before the next ones; ignored once the consumer is closed."""
        if not self.is_closing:
            self._put(_Call(do))

    async def ask(self, do: Callable[[_HeldConsumer], T]) -> T:
        """Runs a call, and returns its result or raises its error."""
        if self.is_closing:
            raise _closed()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Call(do, answer))
        return await answer

    async def close(self) -> None:
        """Closes the consumer; a cancelled caller still waits for that."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.end(answer):
            await finished(answer)

    def end(self, answer: "asyncio.Future[None] | None" = None) -> bool:
        """Requests that the consumer is closed; its newest transaction counts as not processed.

        Returns whether there is anything to close.
        """
        is_running = self._thread is not None and not self.is_closing
        self.is_closing = True
        if is_running:
            self._put(_Call(_HeldConsumer.take_back))
            self._put(_Call(None, answer))
        return is_running

    def _put(self, call: _Call) -> None:
        self._calls.put(call)
        if self._thread is None:
            # A daemon thread: a consumer that was never closed must not keep the process alive.
            self._thread = threading.Thread(target=self._serve, name="slackwater-consumer", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_SECONDS)
            except Empty:
                if self.consumer is not None:
                    self._run(_Call(_HeldConsumer.take_part))
                continue
            self._run(call)
            if call.do is None:
                return

    def _wait_for_handler(self) -> None:
        """Runs the next call within a rebalance; it says whether the transaction was processed."""
        self._run(self._calls.get())

    def _run(self, call: _Call) -> None:
        found, error = None, None
        try:
            found = self._do(call)
        except BaseException as raised:  # noqa: BLE001 - the border of the thread
            error = raised
        if call.answer is None or call.answer.cancelled():
            self._error = self._error or error
            return
        with suppress(RuntimeError):  # the loop is closed
            call.answer.get_loop().call_soon_threadsafe(self._set, call.answer, found, error)

    def _do(self, call: _Call) -> Any:
        if call.do is None:
            return None if self.consumer is None else self.consumer.close()
        if self._error is not None and call.answer is not None:
            error, self._error = self._error, None
            raise error
        if self.consumer is None and not self.is_closing:
            self.consumer = self._opened()
        return None if self.consumer is None else call.do(self.consumer)

    def _opened(self) -> _HeldConsumer:
        consumer = self._make()
        consumer.in_thread, consumer.wait_for_handler = self.ask, self._wait_for_handler
        consumer.is_closing = lambda: self.is_closing
        return consumer

    def _set(self, answer: "asyncio.Future[Any]", found: Any, error: BaseException | None) -> None:
        if answer.cancelled():
            self._error = self._error or error
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found)


class AsyncTransactionalConsumer:
    """Returns whole transactions of a source in commit order, at least once, with ``async for``.

    It makes the same promises as :class:`TransactionalConsumer`. The event loop is never blocked, because a
    separate thread of the consumer waits for Kafka. Cancelling a call loses nothing: a transaction that was
    found for a cancelled caller is returned by the next :meth:`poll`, and does not count as processed before
    that.

    A member stays in its group for as long as its handler awaits. A lane of the transaction that is being
    processed is given up only when the next transaction is requested. The group waits for that, but not
    longer than its ``max.poll.interval.ms``; after that it removes the member.

    Use it from one task at a time. Use ``async with``, or call :meth:`close`.

    For the arguments and the errors, see :class:`TransactionalConsumer`. ``positions`` is called in the
    consumer's thread, so it may block. All errors are raised by the first call.
    """

    def __init__(
        self,
        kafka: KafkaSettings | KafkaBroker,
        inputs: Inputs,
        *,
        group: str,
        share: Share | None = None,
        positions: PositionOf | None = None,
        settings: ConsumerSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        make = partial(
            _HeldConsumer,
            kafka,
            inputs,
            group=group,
            share=share,
            positions=positions,
            settings=settings,
            clock=self._clock,
        )
        self._thread = _ConsumerThread(make)
        weakref.finalize(self, self._thread.end)

    async def __aenter__(self) -> "AsyncTransactionalConsumer":
        """Joins the group, and returns itself."""
        try:
            await self._thread.ask(_HeldConsumer.take_part)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Commits the positions, and leaves the group. After an error, the newest transaction is excluded."""
        try:
            if kind is None:
                await self._thread.ask(_HeldConsumer.settle)
        finally:
            await self.close()

    async def __aiter__(self) -> AsyncIterator[AsyncTransaction]:
        """Yields transactions without end, and waits for the next one."""
        while True:
            transaction = await self.poll(timedelta(seconds=1))
            if transaction is not None:
                yield transaction

    async def poll(self, timeout: timedelta | float) -> AsyncTransaction | None:
        """Does what :meth:`TransactionalConsumer.poll` does."""
        self._settle()
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        deadline = self._clock.monotonic() + seconds
        while True:
            left = timedelta(seconds=deadline - self._clock.monotonic())
            transaction = await self._take(min(left, _SLICE))
            if transaction is not None or left <= timedelta(0):
                return transaction

    async def commit(self) -> None:
        """Reports the newest transaction as processed, and commits the positions immediately."""
        await self._thread.ask(_HeldConsumer.commit)

    async def seek(self, lsn: int, *, timeline: int = 1) -> None:
        """Does what :meth:`TransactionalConsumer.seek` does. A cancelled call may have had its effect."""
        await self._go(lambda feed: feed.at_commit(CommitPosition(timeline, lsn)))

    async def seek_to_time(self, time: datetime) -> None:
        """Does what :meth:`TransactionalConsumer.seek_to_time` does."""
        await self._go(lambda feed: feed.at_time(epoch_ms(time)))

    async def offsets(self) -> list[TopicPartition]:
        """Does what :meth:`TransactionalConsumer.offsets` does."""
        return await self._thread.ask(_HeldConsumer.offsets)

    async def group_metadata(self) -> Any:
        """Returns the group metadata for ``send_offsets_to_transaction``."""
        return await self._thread.ask(_HeldConsumer.group_metadata)

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes that this member owns: units or partitions; 0 if the work is not divided."""
        consumer = self._thread.consumer
        return frozenset() if consumer is None else consumer.lanes

    async def close(self) -> None:
        """Commits what was reported as processed, and leaves the group, even if the call is cancelled.

        The newest transaction is not committed, because it may have failed. To include it, request the next
        one, call :meth:`commit`, or use ``async with``.
        """
        await self._thread.close()

    def _settle(self) -> None:
        self._thread.submit(_HeldConsumer.settle)

    async def _take(self, seconds: timedelta) -> AsyncTransaction | None:
        try:
            found = await self._thread.ask(lambda consumer: consumer.poll(seconds))
        except asyncio.CancelledError:
            self._thread.submit(_HeldConsumer.take_back)
            raise
        return cast("AsyncTransaction | None", found)

    async def _go(self, find: Callable[[Feed], LanePosition]) -> None:
        self._settle()
        while not await self._thread.ask(lambda consumer: consumer.has_moved(find)):
            pass


def _closed() -> ConfigError:
    return ConfigError("the consumer is closed", "create a new one")
