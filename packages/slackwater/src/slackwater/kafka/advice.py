"""Advice for errors of Kafka that another attempt would meet again, such as a missing right or a setting."""

from dataclasses import dataclass

from confluent_kafka import KafkaError

_LASTING = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "lower transaction_timeout in the settings, or raise the broker's transaction.max.timeout.ms"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes, or write smaller records",
    KafkaError.INVALID_RECORD: (
        "the broker's log names the rule that the record violates; a compacted topic, for example, accepts "
        "no records without a key"
    ),
    KafkaError.TOPIC_EXCEPTION: "use a name that Kafka accepts for the topic",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRights:
    """The rights of a client in the words of its messages, to be read after "grant"."""

    user: str
    """Such as ``the producer's user``."""
    on_topics: str
    """Such as ``Write on its topics``."""
    on_group: str = "Read on its group"
    on_id: str = "Write on its transactional id"

    def advice(self, error: KafkaError) -> str | None:
        """Returns what to do about an error; None if another attempt may succeed, or nothing is known."""
        missing = {
            KafkaError.TOPIC_AUTHORIZATION_FAILED: self.on_topics,
            # A user who may write to some topic may also write idempotently.
            KafkaError.CLUSTER_AUTHORIZATION_FAILED: self.on_topics,
            KafkaError.GROUP_AUTHORIZATION_FAILED: self.on_group,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: self.on_id,
        }.get(error.code())
        return _LASTING.get(error.code()) if missing is None else f"grant {self.user} {missing}"
