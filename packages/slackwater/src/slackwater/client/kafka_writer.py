"""Implements the Kafka transactions of a producer with confluent_kafka."""

from confluent_kafka import KafkaError, KafkaException

from slackwater.client.broker import ProducerSettings
from slackwater.client.errors import OutcomeUnknownError, TransactionLostError
from slackwater.kafka.retry import NeededRights
from slackwater.kafka.transactions import KafkaTransactions, is_fenced
from slackwater.protocol import (
    ConfigError,
    KafkaSettings,
    OvertakenError,
    SlackwaterError,
    StateError,
    UnavailableError,
)

_UNFIT = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
_ABSENT = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own codes have no other name
)
DROPPED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)  # noqa: SLF001
"""Codes of records that were dropped because their transaction had failed."""
_NOT_A_MEMBER = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
)


def failure(transactional_id: str, what: str, error: KafkaError) -> SlackwaterError:
    """Returns the error to raise for an error of Kafka in an operation of a producer."""
    code, problem = error.code(), f"{what} failed: {error.str()} ({error.name()})"
    if is_fenced(error):
        hint = (
            "another instance was opened after this one, or a transaction was open for longer than "
            "transaction_timeout; to write from this process again, create a new producer"
        )
        return OvertakenError(f"producer {transactional_id} can no longer write: {problem}", hint)
    needed = NeededRights(
        user="the producer's user",
        on_topics="Write on its topics",
        on_group="Read on the consumer's group",
        on_id=f"Write on the transactional id {transactional_id!r}",
    )
    advice = needed.advice(error)
    if code in _UNFIT:
        return ConfigError(problem, advice or "")
    if code in _ABSENT:
        return StateError(
            problem, "create the topic (make_table creates the topic of a table), or correct the name"
        )
    if code in _NOT_A_MEMBER:
        hint = "nothing was written; the new owner of its lane receives the transaction again"
        return TransactionLostError(
            f"the transaction that was read was handed to another member of the group: {problem}", hint
        )
    hint = advice or "nothing of the transaction is visible; try again when the brokers can be reached"
    return UnavailableError(problem, hint)


class KafkaWriter(KafkaTransactions):
    """Implements :class:`slackwater.client.broker.Writer`."""

    def __init__(self, kafka: KafkaSettings, transactional_id: str, settings: ProducerSettings) -> None:
        self._id = transactional_id
        super().__init__(
            kafka,
            transactional_id,
            transaction_timeout=settings.transaction_timeout,
            request_timeout=settings.request_timeout,
            queue={"queue.buffering.max.kbytes": max(1, settings.max_bytes // 1024)},
        )

    def commit(self) -> None:
        """See the protocol."""
        try:
            super().commit()
        except SlackwaterError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].txn_requires_abort():
                raise
            raise OutcomeUnknownError(str(error), "") from error

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        return failure(self._id, what, error.args[0])
