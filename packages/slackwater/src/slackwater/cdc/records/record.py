"""A record of a topic as Kafka's client returns it, its place, and the error that names it."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from slackwater.cdc import BadInputError

_SHOWN_BYTES: Final = 200
"""The number of a value's first bytes that an error shows."""

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Record(Protocol):
    """The part of ``confluent_kafka.Message`` that is used here."""

    def topic(self) -> str | None:
        """Returns the name of the topic."""

    def partition(self) -> int | None:
        """Returns the number of the partition."""

    def offset(self) -> int | None:
        """Returns the place in the partition."""

    def timestamp(self) -> tuple[int, int]:
        """Returns the kind of its time, and the time in milliseconds since the epoch."""

    def key(self) -> bytes | None:
        """Returns the key; None if the record has none."""

    def value(self) -> bytes | None:
        """Returns the value; None in a tombstone."""

    def headers(
        self,
    ) -> Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] | None:
        """Returns names and values of the headers; None if there are none."""


def place_of(record: Record) -> Place:
    """Returns the place of a record that was read from Kafka."""
    return record.topic() or "", record.partition() or 0, record.offset() or 0


def bad_input(record: Record, problem: str) -> BadInputError:
    """Returns the error for a record, with its place and the first bytes of its value."""
    return BadInputError(*place_of(record), problem, (record.value() or b"")[:_SHOWN_BYTES])
