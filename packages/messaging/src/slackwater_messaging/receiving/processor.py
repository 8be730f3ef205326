"""Consume, process and produce within Kafka alone, in Kafka transactions."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from slackwater.kafka.retry import is_transient, kafka_error
from slackwater.protocol import KafkaSettings, UnavailableError
from slackwater_messaging.bridge import run_in_thread
from slackwater_messaging.group import GroupMember, ends_of
from slackwater_messaging.message import Message, ReceivedMessage
from slackwater_messaging.running import Closing, Exclusive
from slackwater_messaging.sending.kafka import SenderProducer, SenderSettings

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
class ProcessorSettings:
    """The settings of a processor."""

    max_batch: int = 500
    """The maximum number of messages in one Kafka transaction."""
    latest: bool = False
    """Where a group without committed offsets begins: with new messages only, or with the oldest one."""
    timeout: timedelta = timedelta(seconds=10)
    """The limit for one request; after that the outcome of the transaction is checked."""
    patience: timedelta = timedelta(minutes=5)
    """How long a broker may be unavailable before :class:`UnavailableError` is raised."""


class TransactionalProcessor(Closing):
    """Turns input messages into outputs exactly once: outputs and offsets share a Kafka transaction.

    Readers of the outputs with ``isolation.level=read_committed`` see the outputs of a batch at once, and
    never twice. Only effects in Kafka are covered: any other effect of ``process`` can be repeated. Messages
    that a producer has written twice are not recognised, and produce two outputs.

    Not thread-safe, except for :meth:`stop`: a second thread or task is refused.

    Args:
        kafka: The brokers, and further librdkafka settings.
        topics: The topics to read.
        group: The consumer group.
        transactional_id: The transactional id of this process alone, and the same after a restart. A new
            process with this id ends the transaction that the previous one has left open.
        settings: The processor's settings.
        probe: Called after each step, for tests.

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
        hint = "give each thread and task its own, with its own transactional id"
        self._use = Exclusive(f"processor {transactional_id}", hint)
        self._probe = probe
        limits = SenderSettings(request_timeout=self._settings.timeout)
        self._producer = SenderProducer(kafka, transactional_id, limits)
        self._stop = threading.Event()
        self._member = GroupMember(
            kafka,
            topics,
            group,
            latest=self._settings.latest,
            patience=self._settings.patience,
        )

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
            return asyncio.run_coroutine_threadsafe(process(message), loop).result()

        await run_in_thread(partial(self.run, call), self.stop)

    def stop(self) -> None:
        """Ends :meth:`run` after the current batch. May be called by any thread or signal handler."""
        self._stop.set()

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
                for message in process(received):
                    yield message, None

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
