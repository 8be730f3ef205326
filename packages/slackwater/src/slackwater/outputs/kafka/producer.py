"""A transactional producer with four kinds of failures: fenced, refused, failed, or a bug."""

from collections.abc import Callable
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException

from slackwater.kafka.retry import is_transient
from slackwater.kafka.transactions import DeliveryReport, Headers, KafkaTransactions, is_fenced
from slackwater.outputs.kafka.answers import refusal
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.pipeline.errors import run_overtaken
from slackwater.protocol import SlackwaterError, UnavailableError


class TransactionFailedError(UnavailableError):
    """A transaction failed, or its outcome is unknown: discard the producer, then read the progress topic."""

    def __init__(self, what: str, detail: str, *, is_transient: bool = False) -> None:
        super().__init__(f"{what}: {detail}")
        self.args = what, detail
        self.what = what
        self.detail = detail
        self.is_transient = is_transient
        """Whether another producer may succeed later without any intervention."""


class OutputProducer(Protocol):
    """The part of a producer that a sink needs.

    Use it from one thread. Every method may raise the errors of :class:`SinkProducer`.
    """

    def open(self) -> None:
        """Fences every earlier producer of the pipeline, and ends its open transaction. Blocks."""
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
        """Passes on a record.

        It blocks only while the queue is full. Without ``report``, only the commit reports a failure.
        """
        ...

    def serve(self) -> None:
        """Runs due delivery reports without waiting."""
        ...

    def flush(self, has_failed: Callable[[], bool] = lambda: False) -> None:
        """Returns when every record has its delivery report, or soon after one has failed. Blocks."""
        ...

    def check(self) -> None:
        """Raises the error that has ended the open transaction, if there is one. It sends no request."""
        ...

    def commit(self) -> None:
        """Makes the transaction visible. Blocks."""
        ...

    def abort(self) -> object:
        """Aborts the open transaction, so that readers do not have to wait for its time-out.

        Best effort, never raises. If it fails, it returns the reason.
        """
        ...

    def discard(self) -> None:
        """Releases the producer; never raises.

        An open transaction is aborted if Kafka answers at once; otherwise it is left to the next ``open()``.
        """
        ...


class SinkProducer(KafkaTransactions):
    """Writes under the transactional id of a pipeline.

    Every method raises :class:`OvertakenError` if Kafka has given the transactional id to another
    producer, or ended a transaction that was open for too long; :class:`OutputRefusedError` for what Kafka
    would reject again; and :class:`TransactionFailedError` for all other errors.
    """

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        super().__init__(
            settings.kafka,
            settings.transactional_id,
            transaction_timeout=settings.transaction_timeout,
            request_timeout=settings.request_timeout,
        )

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        reason: KafkaError = error.args[0]
        if is_fenced(reason):
            return run_overtaken(self._settings.pipeline, reason.str())
        if (refused := refusal(self._settings, what, reason)) is not None:
            return refused
        detail = f"{reason.name()}: {reason.str()}"
        return TransactionFailedError(what, detail, is_transient=is_transient(reason))
