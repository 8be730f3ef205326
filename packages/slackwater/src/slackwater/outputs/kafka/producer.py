"""A transactional producer with four kinds of failures: fenced, refused, failed, or a bug."""

from confluent_kafka import KafkaError, KafkaException

from slackwater.kafka.retry import is_transient
from slackwater.kafka.transactions import KafkaTransactions, is_fenced
from slackwater.outputs.errors import run_overtaken
from slackwater.outputs.kafka.answers import refusal
from slackwater.outputs.kafka.settings import KafkaSinkSettings
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
