"""Writes the transactions of a producer with confluent_kafka."""

from dataclasses import dataclass
from datetime import timedelta

from confluent_kafka import KafkaError, KafkaException

from slackwater.client.errors import OutcomeUnknownError, TransactionLostError
from slackwater.kafka.retry import ABSENT_CODES, NeededRights
from slackwater.kafka.transactions import KafkaTransactions, is_fenced
from slackwater.protocol import (
    ConfigError,
    KafkaSettings,
    OvertakenError,
    SlackwaterError,
    StateError,
    UnavailableError,
)

DROPPED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)  # noqa: SLF001
"""Codes of records that were dropped because their transaction had failed."""
NOT_A_MEMBER = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
)
"""Codes of a group that has removed a member, or is about to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The settings of a producer."""

    transaction_timeout: timedelta = timedelta(seconds=60)
    """How long a transaction may be open, and therefore how long readers wait for a producer that died and is
    not restarted. Brokers allow up to 15 minutes by default."""
    request_timeout: timedelta = timedelta(seconds=60)
    """How long to wait for Kafka's answer to one call."""
    max_bytes: int = 64 * 1024 * 1024
    """Memory for records that have not been sent yet. While it is full, writing a record blocks."""
    partitions: int = 4
    """Partitions of the topics that the producer creates for tables."""


class KafkaWriter(KafkaTransactions):
    """Writes the transactions of a producer.

    Methods raise only :class:`SlackwaterError`; :class:`OvertakenError` means that another writer has opened
    the same id, and :class:`OutcomeUnknownError` that it is not known whether a commit succeeded; then only
    :meth:`discard` may follow. After other errors of a commit, the transaction was not committed. Sending
    offsets raises :class:`TransactionLostError` if the group has removed the member.
    """

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
        """See :meth:`KafkaTransactions.commit`."""
        try:
            super().commit()
        except SlackwaterError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].txn_requires_abort():
                raise
            raise OutcomeUnknownError(str(error), "") from error

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        return failure(self._id, what, error.args[0])


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
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
        return ConfigError(problem, advice or "")
    if code in ABSENT_CODES:
        return StateError(
            problem, "create the topic (make_table creates the topic of a table), or correct the name"
        )
    if code in NOT_A_MEMBER:
        hint = "nothing was written; the new owner of its lane receives the transaction again"
        return TransactionLostError(
            f"the transaction that was read was handed to another member of the group: {problem}", hint
        )
    hint = advice or "nothing of the transaction is visible; try again when the brokers can be reached"
    return UnavailableError(problem, hint)
