"""A transactional producer whose failures have four meanings: fenced, refused, failed, or a bug.

librdkafka facts this module hides (2.16): with a delivery callback, ``poll()`` and ``flush()`` report fencing
as ``SystemError`` with the
``KafkaException`` as its cause; a commit that timed out must not be tried again on the same producer, since
its outcome is unknown.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from slackwater_markers.kafka_retry import is_transient
from slackwater_spark.errors import PipelineError, PipelineUnavailableError, RunOvertakenError
from slackwater_spark.sink.kafka.answers import refusal
from slackwater_spark.sink.kafka.settings import KafkaSinkSettings

Headers = list[tuple[str, str | bytes | None]]
DeliveryReport = Callable[[KafkaError | None, Message], None]

_FENCED = frozenset(
    (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)  # noqa: SLF001
)
_FULL_QUEUE_WAIT_SECONDS = 0.05
_ABORT_TIMEOUT_SECONDS = 5.0
_FLUSH_STEP_SECONDS = 0.5
_LARGEST_REQUEST_BYTES = 100_000_000
"""A broker takes requests of 100 MiB by default (``socket.request.max.bytes``)."""

_log = logging.getLogger(__name__)
_librdkafka_log = logging.getLogger(f"{__name__}.librdkafka")


class TransactionFailedError(PipelineUnavailableError):
    """A transaction failed, or its outcome is unknown: discard the producer, then ask the progress topic."""

    def __init__(self, what: str, detail: str, *, is_transient: bool = False) -> None:
        super().__init__(f"{what}: {detail}")
        self.args = what, detail
        self.what = what
        self.detail = detail
        self.is_transient = is_transient
        """Says that another producer may succeed later although nobody does anything about it."""


class OutputProducer(Protocol):
    """The part of a producer that a sink needs.

    One thread; every method may raise the errors of :class:`TransactionalProducer`.
    """

    def open(self) -> None:
        """Fences every earlier producer of the pipeline and ends its open transaction. Blocks."""
        ...

    def begin(self) -> None:
        """Starts a transaction."""
        ...

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: DeliveryReport | None,
    ) -> None:
        """Hands over a record.

        Blocks only while the queue is full. Without ``report``, only the commit tells of a failure.
        """
        ...

    def serve(self) -> None:
        """Runs due delivery reports without waiting."""
        ...

    def flush(self, has_failed: Callable[[], bool] = lambda: False) -> None:
        """Returns when every record has its delivery report, or soon after one of them has failed. Blocks."""
        ...

    def check(self) -> None:
        """Raises what has broken the open transaction, if anything has; asks nobody."""
        ...

    def commit(self) -> None:
        """Makes the transaction visible. Blocks."""
        ...

    def abort(self) -> None:
        """Ends the open transaction, so that readers need not wait for its time-out.

        Best effort, never raises.
        """
        ...

    def discard(self) -> None:
        """Frees the producer; an open transaction is left to the next ``open()``. Never raises."""
        ...


class TransactionalProducer:
    """librdkafka's transactional producer under the transactional id of a pipeline.

    Keys are partitioned as Kafka's Java producer does it (murmur2), so that other producers' conventions
    hold.

    How large a record may be is left to its topic, whose ``max.message.bytes`` counts compressed bytes.

    Every method raises :class:`RunOvertakenError` if Kafka has given the transactional id to another
    producer, or ended a transaction that stood open for too long; :class:`OutputRefusedError` for what
    Kafka would not take the next time either; and :class:`TransactionFailedError` for all else that it
    reports.
    """

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._timeout = settings.request_timeout.total_seconds()
        self._producer = Producer(self._config(settings), logger=_librdkafka_log)

    @staticmethod
    def _config(settings: KafkaSinkSettings) -> dict[str, object]:
        return {
            "linger.ms": 5,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            "message.max.bytes": _LARGEST_REQUEST_BYTES,
            **settings.kafka.client_config,
            "transactional.id": settings.transactional_id,
            "transaction.timeout.ms": int(settings.transaction_timeout.total_seconds() * 1000),
            "partitioner": "murmur2_random",
        }

    def open(self) -> None:
        """Fences earlier producers; their open transaction is aborted or completed when this returns."""
        with self._translated("init_transactions"):
            self._producer.init_transactions(self._timeout)

    def begin(self) -> None:
        """Starts a transaction; no round trip."""
        with self._translated("begin_transaction"):
            self._producer.begin_transaction()

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: DeliveryReport | None,
    ) -> None:
        """Queues a record; waits for room for at most the request time-out."""
        try:
            self._producer.produce(topic, value, key, headers=headers, on_delivery=report)
        except BufferError:
            self._produce_when_there_is_room(topic, key, value, headers, report)
        except KafkaException as error:
            raise self._meaning("produce", error) from error

    def _produce_when_there_is_room(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: DeliveryReport | None,
    ) -> None:
        for _ in range(int(self._timeout / _FULL_QUEUE_WAIT_SECONDS) + 1):
            with self._translated("produce"):
                self._producer.poll(_FULL_QUEUE_WAIT_SECONDS)
                with suppress(BufferError):
                    self._producer.produce(topic, value, key, headers=headers, on_delivery=report)
                    return
        raise TransactionFailedError(
            "produce", f"the queue of the producer stayed full for {self._timeout:g} s", is_transient=True
        )

    def serve(self) -> None:
        """Runs due delivery reports."""
        with self._translated("poll"):
            self._producer.poll(0)

    def flush(self, has_failed: Callable[[], bool] = lambda: False) -> None:
        """Waits for all delivery reports, as long as they come.

        When Kafka has refused a record, those that were not sent yet stay where they are until the
        transaction is aborted: they get no report.
        """
        left, idle = len(self._producer), 0.0
        while left and idle < self._timeout and not has_failed():
            step = min(_FLUSH_STEP_SECONDS, self._timeout)
            before = left
            with self._translated("flush"):
                left = self._producer.flush(step)
            idle = 0.0 if left < before else idle + step
        if left and not has_failed():
            raise TransactionFailedError(
                "flush", f"{left} record(s) not acknowledged after {self._timeout:g} s", is_transient=True
            )

    def check(self) -> None:
        """Raises what has broken the open transaction, if anything has; asks nobody.

        Records that were dropped for it have only that as their reason. librdkafka tells it to whoever wants
        to do something that the transaction's state does not allow.
        """
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 - librdkafka's name
                raise self._meaning("the transaction", error) from error

    def commit(self) -> None:
        """Commits; after :class:`TransactionFailedError` the outcome is unknown."""
        with self._translated("commit_transaction"):
            self._producer.commit_transaction(self._timeout)

    def abort(self) -> None:
        """Aborts if Kafka answers; otherwise the transaction is left to the next run or to its time-out."""
        try:
            with self._translated("abort_transaction"):
                self._producer.abort_transaction(_ABORT_TIMEOUT_SECONDS)
        except PipelineError as error:
            _log.warning("the open transaction could not be aborted: %s", error)

    def discard(self) -> None:
        """Drops queued records and lets go of the producer without ending its transaction."""
        with suppress(KafkaException, SystemError):
            self._producer.purge()
        del self._producer

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

    def _meaning(self, what: str, error: KafkaException) -> PipelineError:
        reason: KafkaError = error.args[0]
        if reason.code() in _FENCED:
            return RunOvertakenError(self._settings.pipeline, reason.str())
        if (refused := refusal(self._settings, what, reason)) is not None:
            return refused
        detail = f"{reason.name()}: {reason.str()}"
        return TransactionFailedError(what, detail, is_transient=is_transient(reason))
