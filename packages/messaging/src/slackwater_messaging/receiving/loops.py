"""The loops of services that process messages: in their database, or within Kafka alone."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Generic, TypeVar, cast

import psycopg
from confluent_kafka import KafkaException, TopicPartition

from slackwater.kafka.retry import is_silence, is_transient, kafka_error
from slackwater.protocol import (
    Clock,
    ConfigError,
    KafkaSettings,
    SlackwaterError,
    SystemClock,
    UnavailableError,
)
from slackwater_messaging.database import LOST_CONNECTION, Bridge, Database, KeptConnection, bridge_of
from slackwater_messaging.dead_letters import DeadLetters
from slackwater_messaging.kafka import SenderProducer, SenderSettings
from slackwater_messaging.message import Message, Place, ReceivedMessage
from slackwater_messaging.reading import GroupMember, ends_of
from slackwater_messaging.receiving.attempts import AttemptFailed, Attempts, Handle, Reply
from slackwater_messaging.receiving.inbox import Inbox, Receipt, TakenOverError
from slackwater_messaging.running import Closing, Exclusive, in_thread, run_in_thread, wait_in
from slackwater_messaging.tracing import processing, with_trace

AnyConnection = TypeVar("AnyConnection")
T = TypeVar("T")

logger = logging.getLogger(__name__)

Connect = Callable[[], Database]
"""Opens a connection to the service's database that only the receiver uses."""


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
    RETRIED = "retried"
    """A dead letter that was handed back is processed and committed; its answer was not sent yet."""


ReceiverProbe = Callable[[ReceiverStep], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoopSettings:
    max_batch: int = 500
    """The maximum number of messages in one transaction; 1: each message has its own."""
    latest: bool = False
    """Where a group without committed offsets begins: with new messages only, or with the oldest one."""
    patience: timedelta = timedelta(minutes=5)
    """How long a server may be unavailable before :class:`UnavailableError` is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings(_LoopSettings):
    """The settings of a receiver. A batch is one transaction of the database."""

    maintain_interval: timedelta = timedelta(seconds=10)
    """How often the inbox may do a small part of its periodic work, and a dead letter is processed."""
    dead_letters: DeadLetters | None = None
    """Where messages go that the function cannot process; None: its error ends ``run``."""


class _Loop(Closing):
    """Works on batches of a group's messages until it is stopped; one call at a time."""

    def __init__(self, what: str, hint: str, member: GroupMember) -> None:
        self._use, self._member = Exclusive(what, hint), member
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ends :meth:`run` after the current batch. May be called by any thread or signal handler."""
        self._stop.set()


class Receiver(_Loop):
    """Passes each message to a function once, in the transaction of its effect.

    A batch of messages is one transaction: the inbox determines which messages are repeats, the function
    handles the others, and effects, keys and answers are committed together. Then the answers are sent, and
    the offsets are committed. No effect is lost or repeated if the process ends at any moment, a server
    fails, or another member takes over a partition. Answers are sent at least once, and repeated answers are
    identical.

    Not thread-safe, except for :meth:`stop`: a second thread or task is refused. A batch must be finished
    within the group's ``max.poll.interval.ms``.

    Args:
        group: The consumer group. Each group needs its own inbox.
        connect: Opens connections; called again when one is lost.
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
        self._inbox, self._probe = inbox, probe
        self._clock: Clock = SystemClock()
        letters = self._settings.dead_letters
        self._connection = KeptConnection(connect, letters.check) if letters else KeptConnection(connect)
        self._attempts, self._has_letters = Attempts(letters, group), False
        self._loaded: set[Place] = set()
        self._maintain_at = self._clock.monotonic()
        member = GroupMember(
            kafka,
            topics,
            group,
            latest=self._settings.latest,
            patience=self._settings.patience,
            on_revoke=self._give_away,
        )
        super().__init__(f"the receiver of group {group}", "give each thread and task its own", member)

    def run(self, handle: Handle, *, reply: Reply | None = None) -> None:
        """Receives until :meth:`stop`; see :meth:`poll`."""
        while not self._stop.is_set():
            self.poll(handle, reply=reply)

    def poll(
        self, handle: Handle, *, reply: Reply | None = None, timeout: timedelta = timedelta(seconds=1)
    ) -> int:
        """Processes one batch, or waits for one for up to ``timeout``.

        An error of ``handle`` or ``reply`` rolls everything back and is passed on; the next call processes
        the same batch again. With dead letters, an error of ``handle`` is retried as well, and after some
        attempts, counted by this member, the message becomes a dead letter. Connection errors, deadlocks and
        similar failures are retried automatically.

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
        except (TakenOverError, AttemptFailed) as error:
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
        if self._has_letters:
            note = partial(self._probe, ReceiverStep.RETRIED)
            self._has_letters = self._attempts.retry_one(
                self._connection.open(), self._inbox, handle, reply, note
            )
        self._member.read(self._settings.max_batch, 0 if self._has_letters else seconds)
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
            self._attempts.handle(connection, receipts, handle)
            self._probe(ReceiverStep.HANDLED)
        self._attempts.settle()
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
            self._has_letters = True
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

    For the arguments, see :class:`Receiver`. ``connect`` opens connections of psycopg or asyncpg, and
    ``probe`` is called in the thread.
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

    async def __aexit__(self, *_: object) -> None:
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
                return wait_in(self._loop, handle(bridge.connection, message))
            except Exception as error:
                if (lost := bridge.lost(error)) is not None:
                    raise lost from error
                raise

        def send(receipts: Sequence[Receipt]) -> None:
            if reply is not None:
                wait_in(self._loop, reply(receipts))

        receiver = self._receiver
        run = partial(receiver.run, call, reply=None if reply is None else send)
        await run_in_thread(run, receiver.stop)

    def stop(self) -> None:
        """Ends :meth:`run` after the current batch."""
        self._receiver.stop()

    async def close(self) -> None:
        """Does what :meth:`Receiver.close` does."""
        await in_thread(self._receiver.close)

    def _bridged(self) -> Database:
        self._bridge = bridge_of(wait_in(self._loop, self._connect()), self._loop)
        return cast("Database", self._bridge)


Process = Callable[[ReceivedMessage], Iterable[Message]]
"""Returns the outputs of a message. It may be called again, so it must have no other effects."""
AsyncProcess = Callable[[ReceivedMessage], Coroutine[Any, Any, Iterable[Message]]]
"""Does what :data:`Process` does, as a coroutine."""


class ProcessorStep(StrEnum):
    """The steps of a processor, for probes."""

    POLLED = "polled"
    BEGUN = "begun"
    PRODUCED = "produced"
    OFFSETS_SENT = "offsets_sent"
    """The transaction contains outputs and offsets, but is not committed."""
    COMMITTED = "committed"


ProcessorProbe = Callable[[ProcessorStep], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSettings(_LoopSettings):
    """The settings of a processor. A batch is one transaction of Kafka."""

    timeout: timedelta = timedelta(seconds=10)
    """The limit for one request; after that the outcome of the transaction is checked."""


class TransactionalProcessor(_Loop):
    """Turns input messages into outputs exactly once: outputs and offsets share a Kafka transaction.

    Readers of the outputs with ``isolation.level=read_committed`` see the outputs of a batch at once, and
    never twice. Only effects in Kafka are covered: any other effect of ``process`` can be repeated. Messages
    that a producer has written twice are not recognised, and produce two outputs.

    Not thread-safe, except for :meth:`stop`: a second thread or task is refused.

    Args:
        transactional_id: The transactional id of this process alone, and the same after a restart. A new
            process with this id ends the transaction that the previous one has left open.

    Raises:
        KafkaException: Kafka cannot be reached, or a right is missing.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Sequence[str],
        *,
        group: str,
        transactional_id: str,
        settings: ProcessorSettings | None = None,
        probe: ProcessorProbe = lambda step: None,
    ) -> None:
        self._settings = settings or ProcessorSettings()
        self._probe = probe
        limits = SenderSettings(request_timeout=self._settings.timeout)
        self._producer = SenderProducer(kafka, transactional_id, limits)
        used = self._settings
        member = GroupMember(kafka, topics, group, latest=used.latest, patience=used.patience)
        hint = "give each thread and task its own, with its own transactional id"
        super().__init__(f"processor {transactional_id}", hint, member)

    def run(self, process: Process) -> None:
        """Processes until :meth:`stop`; see :meth:`poll`."""
        while not self._stop.is_set():
            self.poll(process)

    async def run_async(self, process: AsyncProcess) -> None:
        """Does what :meth:`run` does in a thread, with a coroutine function, until the task is cancelled.

        ``process`` runs in the caller's event loop, one message at a time. A cancellation ends the loop after
        the current batch.
        """
        loop = asyncio.get_running_loop()

        def call(message: ReceivedMessage) -> Iterable[Message]:
            return wait_in(loop, process(message))

        await run_in_thread(partial(self.run, call), self.stop)

    def poll(self, process: Process, *, timeout: timedelta = timedelta(seconds=1)) -> int:
        """Processes one batch, or waits for one for up to ``timeout``.

        An error of ``process`` aborts the transaction and is passed on; the next call processes the same
        batch again.

        Returns:
            The number of processed messages; also 0 if an attempt has to be repeated.

        Raises:
            ConfigError: Kafka rejects an output, a right is missing, or the processor is in use by
                another thread or task.
            StateError: Another process uses the transactional id, or the next record is no longer in
                Kafka.
            UnavailableError: Kafka was unavailable for too long.
            KafkaException: Kafka rejects another request.
        """
        with self._use.held():
            return self._poll(process, timeout.total_seconds())

    def close(self) -> None:
        """Leaves the group. An open transaction is aborted, or left to its time-out."""
        self._producer.close()
        self._member.close()

    def _poll(self, process: Process, seconds: float) -> int:
        """Tries to process a batch; returns 0 if it has to be tried again."""
        try:
            self._take_over()  # first: it ends the transaction that hides the group's offsets
            if not self._member.is_begun:
                self._member.begin({})
            self._member.read(self._settings.max_batch, seconds)
            processed = self._process(process) if self._member.batch else 0
        except BaseException as error:
            self._producer.close()  # after an error the outcome of its transaction is not known
            if not isinstance(error, KafkaException | UnavailableError) or not _may_pass(error):
                raise
            self._member.wait_after(error)
            return 0
        self._member.succeeded()
        return processed

    def _process(self, process: Process) -> int:
        batch = self._member.batch
        self._probe(ProcessorStep.POLLED)

        def outputs() -> Iterator[tuple[Message, None]]:
            self._probe(ProcessorStep.BEGUN)
            for received in batch:
                with processing(received):
                    for message in process(received):
                        yield with_trace(message), None

        self._producer.write(outputs())
        self._probe(ProcessorStep.PRODUCED)
        ends = [TopicPartition(*place, end) for place, end in ends_of(batch).items()]
        self._producer.send_offsets(ends, self._member.metadata())
        self._probe(ProcessorStep.OFFSETS_SENT)
        self._producer.commit()
        self._probe(ProcessorStep.COMMITTED)
        self._member.batch = []
        return len(batch)

    def _take_over(self) -> None:
        """Ends the previous transaction, unless that is certain.

        Messages that this transaction has committed are removed from the batch, because the answer to its
        commit may have been lost.
        """
        if not self._producer.is_open:
            self._producer.open()
            self._member.drop_below(self._member.committed())


def _may_pass(error: KafkaException | UnavailableError) -> bool:
    """Returns whether another transaction may succeed: Kafka is silent, or the group has changed."""
    found = kafka_error(error.__cause__ or error)
    return found is not None and (is_transient(found) or found.txn_requires_abort())
