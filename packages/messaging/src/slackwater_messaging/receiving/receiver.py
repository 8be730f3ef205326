"""The loop of a service that processes messages in its database."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import psycopg
from confluent_kafka import KafkaException

from slackwater.kafka.retry import is_silence
from slackwater.protocol import Clock, ConfigError, KafkaSettings, SlackwaterError, SystemClock
from slackwater_messaging.bridge import Bridge, bridge_of, in_thread, run_in_thread
from slackwater_messaging.database import LOST_CONNECTION, KeptConnection
from slackwater_messaging.errors import TakenOverError
from slackwater_messaging.group import GroupMember
from slackwater_messaging.message import Place, ReceivedMessage
from slackwater_messaging.receiving.receipt import Inbox, Receipt
from slackwater_messaging.running import Closing, Exclusive

AnyConnection = TypeVar("AnyConnection")
T = TypeVar("T")

logger = logging.getLogger(__name__)

Connect = Callable[[], psycopg.Connection[Any]]
"""Opens a connection to the service's database that only the receiver uses."""
Handle = Callable[[psycopg.Connection[Any], ReceivedMessage], bytes | None]
"""Processes a message in the connection's transaction; returns the answer, if any."""
Reply = Callable[[Sequence[Receipt]], None]
"""Sends the answers of a batch, including those of repeats; returns when they have arrived."""


class ReceiverStep(StrEnum):
    """The steps of a receiver, for probes."""

    LOADED = "loaded"
    POLLED = "polled"
    RECEIVED = "received"
    """The inbox has determined which messages are repeats; the transaction is open."""
    HANDLED = "handled"
    COMMITTED = "committed"
    REPLIED = "replied"
    STORED = "stored"
    """The group's offsets were sent."""
    MAINTAINED = "maintained"


ReceiverProbe = Callable[[ReceiverStep], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """The settings of a receiver."""

    max_batch: int = 500
    """The maximum number of messages in one database transaction; 1: each message has its own."""
    latest: bool = False
    """Where a group without committed offsets begins: with new messages only, or with the oldest one."""
    patience: timedelta = timedelta(minutes=5)
    """How long a server may be unavailable before :class:`UnavailableError` is raised."""
    maintain_interval: timedelta = timedelta(seconds=10)
    """How often the inbox may do a small part of its periodic work."""


class Receiver(Closing):
    """Passes each message to a function once, in the transaction of its effect.

    A batch of messages is one transaction: the inbox determines which messages are repeats, the function
    handles the others, and effects, keys and answers are committed together. Then the answers are sent, and
    the offsets are committed. No effect is lost or repeated if the process ends at any moment, a server
    fails, or another member takes over a partition. Answers are sent at least once, and repeated answers are
    identical.

    Not thread-safe, except for :meth:`stop`: a second thread or task is refused. A batch must be finished
    within the group's ``max.poll.interval.ms``.

    Args:
        kafka: The brokers, and further librdkafka settings.
        topics: The topics to read.
        group: The consumer group. Each group needs its own inbox.
        inbox: Knows which messages were processed.
        connect: Opens connections; called again when one is lost.
        settings: The receiver's settings.
        probe: Called after each step, for tests.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Sequence[str],
        *,
        group: str,
        inbox: Inbox,
        connect: Connect,
        settings: ReceiverSettings | None = None,
        probe: ReceiverProbe = lambda step: None,
    ) -> None:
        self._settings = settings or ReceiverSettings()
        self._use = Exclusive(f"the receiver of group {group}", "give each thread and task its own")
        self._inbox = inbox
        self._probe = probe
        self._clock: Clock = SystemClock()
        self._connection = KeptConnection(connect)
        self._loaded: set[Place] = set()
        self._stop = threading.Event()
        self._maintain_at = self._clock.monotonic()
        self._member = GroupMember(
            kafka,
            topics,
            group,
            latest=self._settings.latest,
            patience=self._settings.patience,
            on_revoke=self._give_away,
        )

    def run(self, handle: Handle, *, reply: Reply | None = None) -> None:
        """Receives until :meth:`stop`; see :meth:`poll`."""
        while not self._stop.is_set():
            self.poll(handle, reply=reply)

    def stop(self) -> None:
        """Ends :meth:`run` after the current batch. May be called by any thread or signal handler."""
        self._stop.set()

    def poll(
        self, handle: Handle, *, reply: Reply | None = None, timeout: timedelta = timedelta(seconds=1)
    ) -> int:
        """Processes one batch, or waits for one for up to ``timeout``.

        An error of ``handle`` or ``reply`` rolls everything back and is passed on; the next call processes
        the same batch again. Connection errors, deadlocks and similar failures are retried automatically.

        Returns:
            The number of received messages, including repeats; also 0 if an attempt has to be repeated.

        Raises:
            ConfigError: ``reply`` is given, but the inbox does not store answers, or another thread
                or task uses the receiver.
            StateError: The next record is no longer in Kafka, or stored filters are damaged.
            UnavailableError: The database or Kafka was unavailable for too long.
        """
        if reply is not None and not self._inbox.keeps_answers:
            problem = f"reply= needs stored answers, but {type(self._inbox).__name__} does not store them"
            raise ConfigError(problem, "use a TableInbox or a FilteredInbox")
        with self._use.held():
            return self._poll(handle, reply, timeout.total_seconds())

    def close(self) -> None:
        """Saves the inbox for a fast restart, leaves the group, and closes the connection."""
        try:
            self._member.close()
        finally:
            self._connection.close()

    def _poll(self, handle: Handle, reply: Reply | None, seconds: float) -> int:
        """Tries to process a batch; returns 0 if it has to be tried again."""
        try:
            return self._receive(handle, reply, seconds)
        except TakenOverError as error:
            self._begin_again(error, is_broken=False)
        except LOST_CONNECTION as error:
            self._begin_again(error, is_broken=True)
        except KafkaException as error:
            if not is_silence(error):
                self._unload()
                raise
            self._begin_again(error, is_broken=False)
        except BaseException:
            self._unload()
            raise
        return 0

    def _receive(self, handle: Handle, reply: Reply | None, seconds: float) -> int:
        self._take_over()
        self._maintain()
        self._member.read(self._settings.max_batch, seconds)
        batch = list(self._member.batch)
        if batch:
            self._probe(ReceiverStep.POLLED)
            self._process(batch, handle, reply)
        self._member.commit()
        if batch:
            self._probe(ReceiverStep.STORED)
        self._member.succeeded()
        return len(batch)

    def _process(self, batch: Sequence[ReceivedMessage], handle: Handle, reply: Reply | None) -> None:
        connection = self._connection.open()
        with self._inbox.receive_batch(connection, batch) as receipts:
            self._probe(ReceiverStep.RECEIVED)
            for receipt in receipts:
                if not receipt.is_repeat and receipt.message is not None:
                    receipt.answer = _handled(handle, connection, receipt.message)
            self._probe(ReceiverStep.HANDLED)
        self._probe(ReceiverStep.COMMITTED)
        if reply is not None:
            reply(receipts)
            self._probe(ReceiverStep.REPLIED)
        self._member.done()

    def _take_over(self) -> None:
        """Loads assigned partitions that the inbox has not loaded, and begins to read new ones."""
        if not self._member.is_begun:
            self._unload()
        missing = [place for place in self._member.places if place not in self._loaded]
        if not missing:
            return
        positions = self._inbox.load(self._connection.open(), missing)
        self._loaded.update(missing)
        if not self._member.is_begun:
            self._member.begin(positions)
            self._probe(ReceiverStep.LOADED)

    def _maintain(self) -> None:
        now = self._clock.monotonic()
        if now >= self._maintain_at:
            self._maintain_at = now + self._settings.maintain_interval.total_seconds()
            self._inbox.maintain(self._connection.open())
            self._probe(ReceiverStep.MAINTAINED)

    def _give_away(self, places: Sequence[Place]) -> None:
        """Called before other members take over the partitions. A failure costs them only time."""
        given = [place for place in places if place in self._loaded]
        try:
            self._inbox.save(self._connection.open(), given)
        except (psycopg.Error, SlackwaterError) as error:
            logger.warning("the inbox could not be saved for %d revoked partitions: %s", len(given), error)
            self._connection.close()
        self._inbox.forget(given)
        self._loaded.difference_update(given)

    def _begin_again(self, error: Exception, *, is_broken: bool) -> None:
        """Waits, while it stays in the group, before the same batch is processed again."""
        if is_broken:
            self._connection.close()
        self._unload()
        self._member.wait_after(error)

    def _unload(self) -> None:
        self._inbox.forget(list(self._loaded))
        self._loaded.clear()


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
        self._bridge: Bridge | None = None
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
            SlackwaterError: The same errors as :meth:`Receiver.poll`.
        """

        def call(_: object, message: ReceivedMessage) -> bytes | None:
            bridge = cast("Bridge", self._bridge)
            try:
                return self._wait(handle(bridge.connection, message))
            except Exception as error:
                if (lost := bridge.lost(error)) is not None:
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
        self._bridge = bridge_of(self._wait(self._connect()), self._loop)
        return cast("psycopg.Connection[Any]", self._bridge)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _handled(handle: Handle, connection: psycopg.Connection[Any], message: ReceivedMessage) -> bytes | None:
    try:
        return handle(connection, message)
    except Exception as error:
        error.add_note(f"message at {message.topic}/{message.partition}, offset {message.offset}")
        raise
