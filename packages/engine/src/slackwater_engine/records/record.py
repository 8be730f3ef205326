"""A record of a topic, as Kafka's client hands it over."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Record(Protocol):
    """What the engine reads of ``confluent_kafka.Message``."""

    def topic(self) -> str | None:
        """Name of the topic."""
        ...

    def partition(self) -> int | None:
        """Number of the partition."""
        ...

    def offset(self) -> int | None:
        """Place in the partition."""
        ...

    def key(self) -> bytes | None:
        """The key; None if the record has none."""
        ...

    def value(self) -> bytes | None:
        """The value; None in a tombstone."""
        ...

    def headers(
        self,
    ) -> Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] | None:
        """Names and values; None if there are none."""
        ...
