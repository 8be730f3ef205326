"""Consume, process, produce: within Kafka alone, in its transactions."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from types import TracebackType

from confluent_kafka import KafkaException, TopicPartition

from slackwater_markers.kafka_retry import is_transient, kafka_error
from slackwater_markers.kafka_transactions import KafkaTransactions, is_fenced
from slackwater_messaging.errors import MessagingError, MessagingStateError, MessagingUnavailableError
from slackwater_messaging.message import Message
from slackwater_messaging.receiving.group import GroupMember, ends_of, is_passing
from slackwater_messaging.receiving.patience import Patience
from slackwater_messaging.receiving.receipt import ReceivedMessage
from slackwater_protocol import Clock, KafkaSettings, SystemClock

Process = Callable[[ReceivedMessage], Iterable[Message]]
"""Returns what a message leads to. Has no other effects: it may be called again for the same message."""

_TRANSACTION_TIMEOUT = timedelta(seconds=60)
"""So long a process that was killed holds back readers of its outputs, unless it is started again before."""


class ProcessorStep(StrEnum):
    """What a processor has done; a probe is told of each."""

    POLLED = "polled"
    BEGUN = "begun"
    PRODUCED = "produced"
    OFFSETS_SENT = "offsets_sent"
    """The transaction holds outputs and offsets, and is not committed."""
    COMMITTED = "committed"


ProcessorProbe = Callable[[ProcessorStep], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSettings:
    """How a processor works."""

    max_batch: int = 500
    """Messages in one Kafka transaction, at most."""
    latest: bool = False
    """Where a group without positions begins: at what comes from now on, or at all there is."""
    timeout: timedelta = timedelta(seconds=10)
    """For one request; then the transaction is looked at anew."""
    patience: timedelta = timedelta(minutes=5)
    """So long a broker may be away; then :class:`MessagingUnavailableError`."""


class TransactionalProcessor:
    """Turns messages into messages, each once: outputs and the group's offsets are one Kafka transaction.

    Readers of the outputs with ``isolation.level=read_committed`` see the outputs of a batch at once, and
    never twice. There is no database in it: what else ``process`` does can be repeated. Nor does it recognise
    what a producer has written twice: it has two outputs.

    Not thread-safe, but for :meth:`stop`.

    Args:
        kafka: The brokers, and further librdkafka settings.
        topics: What is read.
        group: The consumer group.
        transactional_id: Of this process alone, and the same after a restart: who comes later with it ends
            what the one before has left open.
        settings: How it works.
        probe: Told of each step, for tests.

    Raises:
        KafkaException: No connection, or a right is missing.
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
        self._kafka, self._id, self._probe = kafka, transactional_id, probe
        self._transactions: _Transactions | None = None
        self._stop = threading.Event()
        clock: Clock = SystemClock()
        self._patience = Patience(f"processor {transactional_id}", self._settings.patience, clock)
        self._member = GroupMember(
            kafka, topics, group, latest=self._settings.latest, on_revoke=lambda places: None
        )

    def __enter__(self) -> "TransactionalProcessor":
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the group."""
        self.close()

    def run(self, process: Process) -> None:
        """Processes until :meth:`stop`; see :meth:`poll`."""
        while not self._stop.is_set():
            self.poll(process)

    def stop(self) -> None:
        """Ends :meth:`run` after the batch that is being processed. May be called by any thread or signal."""
        self._stop.set()

    def poll(self, process: Process, *, timeout: timedelta = timedelta(seconds=1)) -> int:
        """Processes one batch, or waits for one so long.

        An error that ``process`` raises is passed on, after the transaction was given up; the next call tries
        the same batch again.

        Returns:
            How many messages were processed; 0 also where something has to be tried again.

        Raises:
            MessagingStateError: Another process has the transactional id, or what is to be read next is not
                in Kafka.
            MessagingUnavailableError: Kafka was away for too long.
            KafkaException: Kafka refuses, for example a right that is missing.
        """
        try:
            transactions = self._open()  # first: it ends what holds back the group's offsets
            if not self._member.is_begun:
                self._member.begin({})
            self._member.read(self._settings.max_batch, timeout.total_seconds())
            processed = self._process(transactions, process) if self._member.batch else 0
        except (KafkaException, _PassingError) as error:
            self._give_up()
            if isinstance(error, KafkaException) and not is_passing(error):
                raise
            self._member.wait(self._patience.note(error))
            return 0
        except BaseException:
            self._give_up()
            raise
        self._patience.reset()
        return processed

    def close(self) -> None:
        """Leaves the group. A transaction that is open is given up."""
        self._give_up()
        self._member.close()

    def _process(self, transactions: "_Transactions", process: Process) -> int:
        batch = self._member.batch
        self._probe(ProcessorStep.POLLED)
        transactions.begin()
        self._probe(ProcessorStep.BEGUN)
        for received in batch:
            for message in process(received):
                transactions.produce(message.topic, message.key, message.value, list(message.headers), None)
        self._probe(ProcessorStep.PRODUCED)
        ends = [TopicPartition(*place, end) for place, end in ends_of(batch).items()]
        transactions.send_offsets(ends, self._member.metadata())
        self._probe(ProcessorStep.OFFSETS_SENT)
        transactions.commit()
        self._probe(ProcessorStep.COMMITTED)
        self._member.batch = []
        return len(batch)

    def _open(self) -> "_Transactions":
        """Returns what writes transactions.

        A new one ends the transaction before it, in one way or the other. What that one has committed is left
        out of the batch: the answer to its commit may have been lost.
        """
        if self._transactions is None:
            transactions = _Transactions(
                self._kafka,
                self._id,
                transaction_timeout=_TRANSACTION_TIMEOUT,
                request_timeout=self._settings.timeout,
            )
            transactions.open()
            self._member.drop_below(self._member.committed())
            self._transactions = transactions
        return self._transactions

    def _give_up(self) -> None:
        """Drops the producer: after an error nobody knows whether its transaction was committed."""
        if self._transactions is not None:
            self._transactions.discard()
            self._transactions = None


class _PassingError(MessagingError):
    """Kafka does not answer, or the group has changed: another transaction may succeed."""


class _Transactions(KafkaTransactions):
    """Transactions whose failures say whether another one may succeed."""

    def _meaning(self, what: str, error: KafkaException) -> MessagingError:
        found = kafka_error(error)
        if found is None:
            return MessagingUnavailableError(f"{what} failed: {error}")
        if is_fenced(found):
            problem = f"{what}: another process has the transactional id: {found.str()}"
            return MessagingStateError(problem, "give each process one of its own")
        if is_transient(found) or found.txn_requires_abort():
            return _PassingError(f"{what} failed: {found.str()}")
        problem = f"{what}: Kafka refuses: {found.str()}"
        return MessagingUnavailableError(problem, "check address and rights of the client's user")
