"""Where partitions begin and end: one request for all of them."""

from collections.abc import Collection

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # public in confluent_kafka.admin, but not typed so

Key = tuple[str, int]

_SECONDS = 3.0


def first_offsets(admin: AdminClient, keys: Collection[Key]) -> dict[Key, int]:
    """The first offset of each partition; blocks for a few seconds at most.

    Raises:
        KafkaException: the broker does not answer, or a partition does not exist.
    """
    return _offsets(admin, keys, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def high_watermarks(admin: AdminClient, keys: Collection[Key]) -> dict[Key, int]:
    """The offset after the last record of each partition, be its Kafka transaction committed or not.

    Everything whose writing any producer was acknowledged before the call lies below. Blocks for a few
    seconds at most.

    Raises:
        KafkaException: the broker does not answer, or a partition does not exist.
    """
    return _offsets(admin, keys, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def _offsets(admin: AdminClient, keys: Collection[Key], spec: OffsetSpec) -> dict[Key, int]:
    if not keys:
        return {}
    asked = {TopicPartition(*key): spec for key in keys}
    answers = admin.list_offsets(
        asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_SECONDS
    )
    try:
        return {(p.topic, p.partition): answer.result(2 * _SECONDS).offset for p, answer in answers.items()}
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - no public name
