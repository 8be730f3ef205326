"""Whole transactions for a service that runs on asyncio.

A thread for each consumer runs :class:`TransactionalConsumer`, so that the rules stay in one place. The event
loop hands it calls and never waits for Kafka itself; without a call, the thread takes part in the group.
"""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from confluent_kafka import TopicPartition

from slackwater_cdc.records.record import Record
from slackwater_client.broker import Broker
from slackwater_client.consumer import ConsumerSettings, PositionOf, TransactionalConsumer
from slackwater_client.errors import ClientConfigError
from slackwater_client.finishing import finished
from slackwater_client.inputs import Inputs
from slackwater_client.shares import Share
from slackwater_client.transaction import Piece, Transaction
from slackwater_protocol import Clock, KafkaSettings, SystemClock

_IDLE_SECONDS = 0.1
"""How often the thread takes part in the group while it has nothing to do."""
_SLICE = timedelta(seconds=0.1)
"""How long the thread looks for a transaction at once: a caller that is cancelled occupies it no longer."""

T = TypeVar("T")


class _InThread(Protocol):
    """Calls a function in the thread of a consumer; returns or raises what it does."""

    def __call__(self, do: "Callable[[_HeldConsumer], T]") -> Awaitable[T]: ...


class AsyncTransaction(Transaction):
    """A transaction whose records come with ``async for``.

    One that is not streamed can be iterated with ``for``, too. Iterating over a streamed one may be cancelled
    and gone on with: no record is left out.
    """

    def __init__(
        self, piece: Piece, read_on: Callable[[], Piece | None] | None, in_thread: _InThread
    ) -> None:
        super().__init__(piece, read_on)
        self._in_thread = in_thread
        self._unread: list[Record] | None = piece.records
        """Nobody has got them."""
        self._streamed = _StreamedRecords(self._next_portion)

    def __iter__(self) -> Iterator[Record]:
        """Yields the records.

        Raises:
            ClientConfigError: It is streamed: that needs ``async for``.
        """
        return iter(self.records)

    def __aiter__(self) -> AsyncIterator[Record]:
        """Yields the records; those of a streamed one once.

        Raises:
            TransactionLostError: It is streamed, and its lane went to another member.
        """
        return self._streamed if self.is_streamed else self._whole()

    async def _whole(self) -> AsyncIterator[Record]:
        for record in self.records:
            yield record

    async def _next_portion(self) -> list[Record] | None:
        if self._unread is None:
            await self._in_thread(self._read)
        records, self._unread = self._unread, None
        return records

    def _read(self, _: "_HeldConsumer") -> None:
        """Runs in the thread, and to its end also when the caller is cancelled."""
        if self._unread is None:
            self._unread = self._read_portion()


class _StreamedRecords(AsyncIterator[Record]):
    """The records of a transaction, portion by portion; None ends it."""

    def __init__(self, next_portion: Callable[[], Awaitable[list[Record] | None]]) -> None:
        self._next_portion = next_portion
        self._records: Iterator[Record] = iter(())

    async def __anext__(self) -> Record:
        while True:
            for record in self._records:
                return record
            portion = await self._next_portion()
            if portion is None:
                raise StopAsyncIteration
            self._records = iter(portion)


class _HeldConsumer(TransactionalConsumer):
    """A consumer that takes part in its group while its newest transaction is being processed.

    A lane of that transaction is given away only when it was processed: the group waits.
    """

    in_thread: _InThread
    wait_for_handler: Callable[[], None]
    """Waits, within a rebalance, for what may say that the transaction was processed."""
    is_closing: Callable[[], bool]

    def settle(self) -> None:
        """Notes that the newest transaction was processed."""
        self._settle()

    def take_back(self) -> None:
        """Takes the newest transaction back, because nobody has got it."""
        self._take_back()

    def take_part(self) -> None:
        """Takes part in the group; what changes there counts from the next call on. Does not block."""
        self._member.poll(0)
        self._gone |= self._member.take_gone()
        self._tend_at = float("-inf")

    def has_gone_to(self, lsn: int, timeline: int) -> bool:
        """Goes to a commit if there is a lane; waits a moment for one."""
        return self._has_moved(lambda: self._at_commit(lsn, timeline))

    def has_gone_to_time(self, time: datetime) -> bool:
        """Goes to a time if there is a lane; waits a moment for one."""
        return self._has_moved(lambda: self._at_time(time))

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
    """None: end."""
    answer: "asyncio.Future[Any] | None" = None
    """None: nobody waits; an error is told to the next one who does."""


class _ConsumerThread:
    """Runs calls in their order. A call is done also when whoever waits for it is cancelled."""

    def __init__(self, make: Callable[[], _HeldConsumer]) -> None:
        self._make = make
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        """Happened while nobody waited."""
        self.consumer: _HeldConsumer | None = None
        self.is_closing = False

    def submit(self, do: Callable[[_HeldConsumer], None]) -> None:
        """Has something done before what is asked next; nothing any more when the consumer is closed."""
        if not self.is_closing:
            self._put(_Call(do))

    async def ask(self, do: Callable[[_HeldConsumer], T]) -> T:
        """Has something done, and returns or raises what it does."""
        if self.is_closing:
            raise _closed()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Call(do, answer))
        return await answer

    async def close(self) -> None:
        """Ends the consumer; a caller that is cancelled waits for it all the same."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.end(answer):
            await finished(answer)

    def end(self, answer: "asyncio.Future[None] | None" = None) -> bool:
        """Has the consumer closed; its newest transaction counts as not processed.

        Returns whether there is anything to be closed.
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
            # A daemon: a consumer that nobody has closed does not keep the process.
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
        """Runs the next call, within a rebalance: one that says whether the transaction was processed."""
        self._run(self._calls.get())

    def _run(self, call: _Call) -> None:
        try:
            found = self._do(call)
        except BaseException as error:  # noqa: BLE001 - the border of the thread
            self._tell(call, None, error)
        else:
            self._tell(call, found, None)

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

    def _tell(self, call: _Call, found: Any, error: BaseException | None) -> None:
        if call.answer is None or call.answer.cancelled():
            self._error = self._error or error
            return
        with suppress(RuntimeError):  # the loop is closed
            call.answer.get_loop().call_soon_threadsafe(self._set, call.answer, found, error)

    def _set(self, answer: "asyncio.Future[Any]", found: Any, error: BaseException | None) -> None:
        if answer.cancelled():
            self._error = self._error or error
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found)


class AsyncTransactionalConsumer:
    """Hands out the transactions of a source whole, in commit order, at least once, with ``async for``.

    What a :class:`TransactionalConsumer` promises holds. The event loop is never blocked: a thread of the
    consumer's own waits for Kafka. Cancelling a call loses nothing: a transaction that was found for a caller
    who was cancelled comes with the next :meth:`poll`, and does not count as processed before.

    A member stays in its group however long its handler awaits. A lane of the transaction that is being
    processed is given away only when the next one is asked for; the group waits for that as long as its
    ``max.poll.interval.ms`` says, then it goes on without the member.

    To be used from one task at a time. Leave it with ``async with``, or call :meth:`close`.

    Args:
        kafka: The brokers; in tests a :class:`slackwater_client.memory.MemoryBroker`.
        inputs: What is read.
        group: The consumer group.
        share: How its members share the work; all have to say the same.
        positions: Where lanes stand, if the handler stores that itself; called in the consumer's thread, so
            it may block. None: what the group has committed.
        settings: How it works.
        clock: For deadlines.

    Raises:
        ClientConfigError: Arguments do not fit each other. Like others, it comes with the first call.
        ClientUnavailableError: Kafka does not answer.
    """

    def __init__(
        self,
        kafka: KafkaSettings | Broker,
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits positions, without the newest transaction if there was an error, and leaves the group."""
        try:
            if kind is None:
                await self._thread.ask(_HeldConsumer.settle)
        finally:
            await self.close()

    async def __aiter__(self) -> AsyncIterator[AsyncTransaction]:
        """Yields transactions for ever; waits while there is none."""
        while True:
            transaction = await self.poll(timedelta(seconds=1))
            if transaction is not None:
                yield transaction

    async def poll(self, timeout: timedelta) -> AsyncTransaction | None:
        """Returns the next transaction; None if there is none in time, which ends nothing.

        Says that the transaction before was processed.

        Raises:
            ClientError: See the tree of errors. The consumer cannot be used any more.
            slackwater_cdc.BadInputError: A change record cannot be understood.
            slackwater_protocol.ProtocolError: A commit record or cut cannot be.
        """
        self._settle()
        deadline = self._clock.monotonic() + timeout.total_seconds()
        while True:
            left = timedelta(seconds=deadline - self._clock.monotonic())
            transaction = await self._take(min(left, _SLICE))
            if transaction is not None or left <= timedelta(0):
                return transaction

    async def commit(self) -> None:
        """Says that the newest transaction was processed, and commits the positions now."""
        await self._thread.ask(_HeldConsumer.commit)

    async def seek(self, lsn: int, *, timeline: int = 1) -> None:
        """Goes to the first commit at or above an LSN, or to where it will be. Waits for a lane.

        Concerns the lanes that this member has. If it is cancelled, it may have gone there.
        """
        await self._go(lambda consumer: consumer.has_gone_to(lsn, timeline))

    async def seek_to_time(self, time: datetime) -> None:
        """Goes to the first commit at or after a time by the database's clock, or to where it will be.

        Commit times do not rise as strictly as LSNs: where they go back, it is one of the first.
        """
        await self._go(lambda consumer: consumer.has_gone_to_time(time))

    async def offsets(self) -> list[TopicPartition]:
        """Returns the offsets to be committed for all that was handed out, with the newest transaction.

        For ``send_offsets_to_transaction`` of a producer; set ``stores_positions=False``.
        """
        return await self._thread.ask(_HeldConsumer.offsets)

    async def group_metadata(self) -> Any:
        """Returns what ``send_offsets_to_transaction`` wants to know of the group."""
        return await self._thread.ask(_HeldConsumer.group_metadata)

    @property
    def lanes(self) -> frozenset[int]:
        """What this member owns: units or partitions; 0 where nothing is divided."""
        consumer = self._thread.consumer
        return frozenset() if consumer is None else consumer.lanes

    async def close(self) -> None:
        """Commits what is known to be processed, and leaves the group; also when it is cancelled meanwhile.

        Not the newest transaction: it may have failed. Ask for the next one, :meth:`commit`, or use
        ``async with``.
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

    async def _go(self, has_gone: Callable[[_HeldConsumer], bool]) -> None:
        self._settle()
        while not await self._thread.ask(has_gone):
            pass


def _closed() -> ClientConfigError:
    return ClientConfigError("the consumer is closed", "make another one")
