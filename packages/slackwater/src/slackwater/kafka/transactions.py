"""librdkafka's transactional producer, with failures in the terms of its user.

librdkafka facts that this module hides (2.16): with a delivery callback, ``poll()`` and ``flush()`` report
fencing as ``SystemError`` with the ``KafkaException`` as its cause; a commit that timed out must not be
retried on the same producer, since its outcome is unknown; if a group's coordinator was away, sending offsets
to a transaction can wait for it for ever, whatever the time-out.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, partial
from queue import Empty, SimpleQueue
from struct import iter_unpack
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from slackwater.cdc.batch import Record
from slackwater.protocol import KafkaSettings, OffsetRange, SlackwaterError

Headers = list[tuple[str, str | bytes | None]]

_FENCED = frozenset(
    (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)  # noqa: SLF001
)
_FULL_QUEUE_WAIT_SECONDS = 0.05
_ABORT_TIMEOUT_SECONDS, _DISCARD_TIMEOUT_SECONDS = 5.0, 1.0
_FLUSH_STEP_SECONDS = 0.5
_FIRST_RETRY_MS, _LONGEST_RETRY_MS = 2, 50
"""A transaction that begins directly after another is refused until the broker has ended that one, which
takes some milliseconds; librdkafka's own 100 ms to 1 s would be many times as long as the transaction."""
_LARGEST_REQUEST_BYTES = 100_000_000
"""A broker takes requests of 100 MiB by default (``socket.request.max.bytes``)."""

_ANY = -1
"""librdkafka's number for the partition of the key."""
_WORD, _MURMUR = 0xFFFFFFFF, 0x5BD1E995

_log = logging.getLogger(__name__)
_librdkafka_log = logging.getLogger(f"{__name__}.librdkafka")


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition in which Kafka's Java producer puts a record with this key (murmur2)."""
    whole = len(key) & ~3
    found = 0x9747B28C ^ len(key)
    for (word,) in iter_unpack("<I", key[:whole]):
        mixed = word * _MURMUR & _WORD
        found = (found * _MURMUR & _WORD) ^ ((mixed ^ mixed >> 24) * _MURMUR & _WORD)
    if rest := key[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _MURMUR & _WORD
    found = (found ^ found >> 13) * _MURMUR & _WORD
    return ((found ^ found >> 15) & 0x7FFFFFFF) % partitions


def is_fenced(error: KafkaError) -> bool:
    """Returns whether Kafka has given the transactional id away, or ended an open transaction."""
    return error.code() in _FENCED


DeliveryReport = Callable[[KafkaError | None, Record], None]
"""Called with an error, or with the place at which a record was written."""


class DeliveredOffsets:
    """Counts delivery reports per partition.

    Reports come in the thread that polls or flushes the producer. One instance covers the documents of one
    commit record.
    """

    __slots__ = ("_ranges", "delivered", "first_error", "largest_failed")

    def __init__(self) -> None:
        self._ranges: dict[int, list[int]] = {}
        self.delivered = 0
        self.first_error: KafkaError | None = None
        self.largest_failed: tuple[int, bytes | None] | None = None
        """Bytes of the value, and key, of a record that failed for the same reason as the first one."""

    def report(self, error: KafkaError | None, message: Record) -> None:
        """The ``on_delivery`` callback. Never raises."""
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self._failed(error, message)
            return
        self.delivered += 1
        seen = self._ranges.get(partition)
        if seen is None:
            self._ranges[partition] = [1, offset, offset]
        else:
            seen[0] += 1
            if offset > seen[2]:
                seen[2] = offset
            elif offset < seen[1]:
                seen[1] = offset

    def _failed(self, error: KafkaError | None, message: Record) -> None:
        self.first_error = self.first_error or error
        if error is None or self.first_error is None or error.code() != self.first_error.code():
            return
        size = len(message.value() or b"")
        if self.largest_failed is None or size > self.largest_failed[0]:
            self.largest_failed = size, message.key()

    def ranges(self) -> dict[int, OffsetRange]:
        """Returns count, first and last offset by partition; partitions without a record are absent."""
        return {partition: OffsetRange(*seen) for partition, seen in sorted(self._ranges.items())}


class KafkaTransactions(ABC):
    """Writes Kafka transactions under one transactional id; from one thread.

    Methods block until Kafka has answered, but not longer than the request time-out. :meth:`_meaning` defines
    what they raise. Keys are partitioned as Kafka's Java producer does it (murmur2), so that other producers'
    conventions hold. The size of records is limited by their topic, whose ``max.message.bytes`` counts
    compressed bytes.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        transactional_id: str,
        *,
        transaction_timeout: timedelta,
        request_timeout: timedelta,
        queue: Mapping[str, int] | None = None,
    ) -> None:
        self._timeout = request_timeout.total_seconds()
        config: dict[str, str | int | float | bool] = {
            "linger.ms": 5,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            "message.max.bytes": _LARGEST_REQUEST_BYTES,
            "retry.backoff.ms": _FIRST_RETRY_MS,
            "retry.backoff.max.ms": _LONGEST_RETRY_MS,
            **(queue or {}),
            **kafka.client_config,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(transaction_timeout.total_seconds() * 1000),
            "partitioner": "murmur2_random",
        }
        self._producer = Producer(config, logger=_librdkafka_log)

    @abstractmethod
    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        """Returns what to raise for an error of Kafka in an operation."""

    def open(self) -> None:
        """Fences earlier writers. When it returns, their open transactions have ended."""
        with self._translated("init_transactions"):
            self._producer.init_transactions(self._timeout)

    def begin(self) -> None:
        """Begins a transaction, without a request to Kafka."""
        with self._translated("begin_transaction"):
            self._producer.begin_transaction()

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: DeliveryReport | None,
        partition: int = _ANY,
    ) -> None:
        """Queues a record; blocks only while the queue is full. The key determines the partition by default.

        The report is called during a later call of a method; without one, only the commit reports a failure.
        """
        try:
            self._producer.produce(topic, value, key, partition, headers=headers, on_delivery=report)
        except BufferError:
            send = partial(
                self._producer.produce, topic, value, key, partition, headers=headers, on_delivery=report
            )
            self._produce_when_there_is_room(send)
        except KafkaException as error:
            raise self._meaning("produce", error) from error

    def _produce_when_there_is_room(self, send: Callable[[], None]) -> None:
        for _ in range(int(self._timeout / _FULL_QUEUE_WAIT_SECONDS) + 1):
            with self._translated("produce"):
                self._producer.poll(_FULL_QUEUE_WAIT_SECONDS)
                with suppress(BufferError):
                    send()
                    return
        self._late("produce", f"the queue of the producer stayed full for {self._timeout:g} s")

    def serve(self) -> None:
        """Calls the reports of the deliveries that have finished. Does not block."""
        with self._translated("poll"):
            self._producer.poll(0)

    def flush(self, has_failed: Callable[[], bool] = lambda: False) -> None:
        """Waits for all delivery reports, as long as they arrive, or until shortly after one has failed.

        If Kafka has refused a record, those that were not sent yet stay queued until the transaction is
        aborted: they get no report.
        """
        left, idle = len(self._producer), 0.0
        while left and idle < self._timeout and not has_failed():
            step = min(_FLUSH_STEP_SECONDS, self._timeout)
            before = left
            with self._translated("flush"):
                left = self._producer.flush(step)
            idle = 0.0 if left < before else idle + step
        if left and not has_failed():
            self._late("flush", f"{left} record(s) not acknowledged after {self._timeout:g} s")

    def check(self) -> None:
        """Raises the error that has broken the open transaction, if there is one; sends no request.

        Records that were dropped because of it have only that as their reason. librdkafka returns it to any
        operation that the transaction's state does not allow.
        """
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 - librdkafka's name
                raise self._meaning("the transaction", error) from error

    def send_offsets(self, offsets: list[TopicPartition], member: Any) -> None:
        """Adds the offsets of a consumer group to the transaction; refused if the member has lost its place.

        Runs in a thread, since librdkafka may never return: then the producer has to be discarded, and the
        thread ends with it, or with the process.

        Args:
            offsets: Where the group continues.
            member: The result of the member's ``consumer_group_metadata``.
        """
        what, producer, timeout = "committing the consumer's offsets", self._producer, self._timeout
        outcome: SimpleQueue[BaseException | None] = SimpleQueue()

        def send() -> None:
            try:
                producer.send_offsets_to_transaction(offsets, member, timeout)
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                outcome.put(error)
            else:
                outcome.put(None)

        threading.Thread(target=send, name="send offsets", daemon=True).start()
        try:
            error = outcome.get(timeout=2 * timeout)
        except Empty:
            self._late(what, f"no answer for {2 * timeout:g} s")
        with self._translated(what):
            if error is not None:
                raise error

    def commit(self) -> None:
        """Makes the transaction visible; after an error that is not a refusal, the outcome is unknown."""
        with self._translated("commit_transaction"):
            self._producer.commit_transaction(self._timeout)

    def abort(self) -> SlackwaterError | None:
        """Aborts, and returns None, or the reason why that failed; then only :meth:`discard` may follow.

        It waits for Kafka only for some seconds.
        """
        try:
            with self._translated("abort_transaction"):
                self._producer.abort_transaction(_ABORT_TIMEOUT_SECONDS)
        except SlackwaterError as error:
            _log.warning("the open transaction could not be aborted: %s", error)
            return error
        return None

    def discard(self) -> None:
        """Drops queued records and releases the producer; never raises.

        An open transaction is aborted if Kafka answers at once; otherwise it is left to the next producer or
        its time-out. A commit whose outcome is unknown stays as it is. The abort is requested even if it is
        not needed: librdkafka 2.16.0 ends the whole process (``rd_kafka_txn_handle_AddPartitionsToTxn``, an
        assertion) if a producer is destroyed while it is adding partitions to its transaction, and it adds
        none after an abort was requested.
        """
        with suppress(KafkaException, SystemError):
            self._producer.purge()
        with suppress(KafkaException, SystemError):
            self._producer.abort_transaction(_DISCARD_TIMEOUT_SECONDS)
        del self._producer

    def _late(self, what: str, detail: str) -> NoReturn:
        late = KafkaException(KafkaError(KafkaError._TIMED_OUT, detail))  # noqa: SLF001 - librdkafka's name
        raise self._meaning(what, late) from late

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._meaning(what, error) from error
        except SystemError as error:
            if isinstance(error.__cause__, KafkaException):
                raise self._meaning(what, error.__cause__) from error
            raise
