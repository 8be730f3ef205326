"""The topic of leases: readers' leases, and the holds with which pipelines answer."""

import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Protocol

from slackwater.cuts.compacted_topic import CompactedTopic
from slackwater.protocol import (
    InputError,
    KafkaSettings,
    LeaseRecord,
    decode_lease_record,
    encode_lease_record,
    lease_record_key,
)
from slackwater.protocol.keys import LEASES_TOPIC

_log = logging.getLogger(__name__)


class LeaseLog(Protocol):
    """The leases of a cluster's readers and the holds of its pipelines.

    Written by both, read by all. Methods raise only
    :class:`~slackwater.cuts.errors.CompactedTopicUnavailableError`, and block for at most the time-out.
    Not thread-safe.
    """

    def ensure(self) -> None:
        """Creates the topic if it does not exist."""
        ...

    def read(self) -> list[LeaseRecord]:
        """Returns all records that were readable at the time of the call, oldest first.

        None if there is no topic. Records of others, or of a newer version, are skipped and logged.
        """
        ...

    def write(self, *records: LeaseRecord) -> None:
        """Writes records, each replacing an earlier one of its key; returns when they are acknowledged."""
        ...

    def remove(self, records: Iterable[LeaseRecord]) -> None:
        """Removes records; returns when that is acknowledged."""
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class KafkaLeaseLog:
    """Implements :class:`LeaseLog`; one topic for a cluster.

    Args:
        kafka: The cluster.
        timeout: How long one request may block, including transient errors.
        replication_factor: Used if the topic has to be created; -1 for the broker's default.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        timeout: timedelta = timedelta(seconds=5),
        replication_factor: int = -1,
    ) -> None:
        self._topic: CompactedTopic[LeaseRecord] = CompactedTopic(
            LEASES_TOPIC,
            decoded_lease_record,
            kafka.bootstrap,
            kafka=kafka.options,
            timeout=timeout,
            replication_factor=replication_factor,
        )

    def ensure(self) -> None:
        """See the protocol."""
        self._topic.ensure()

    def read(self) -> list[LeaseRecord]:
        """See the protocol."""
        return self._topic.read()

    def write(self, *records: LeaseRecord) -> None:
        """See the protocol."""
        values: Mapping[bytes, bytes] = {
            lease_record_key(each): encode_lease_record(each) for each in records
        }
        if values:
            self._topic.write("write", values)

    def remove(self, records: Iterable[LeaseRecord]) -> None:
        """See the protocol."""
        keys = [lease_record_key(each) for each in records]
        if keys:
            self._topic.write("removal", dict.fromkeys(keys))

    def close(self) -> None:
        """See the protocol."""
        self._topic.close()


def decoded_lease_record(value: bytes, offset: int, written_ms: int, key: bytes) -> LeaseRecord | None:
    """Returns a record; None, after logging it, if it is not ours."""
    del written_ms
    try:
        record = decode_lease_record(value)
    except InputError as error:
        reason = str(error)
    else:
        if lease_record_key(record) == key:
            return record
        reason = f"unknown key {key!r}"
    _log.warning("skipping the record at offset %d of %s: %s", offset, LEASES_TOPIC, reason)
    return None
