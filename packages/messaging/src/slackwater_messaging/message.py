"""A message to send to Kafka, and the partitions in which messages are."""

from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that a service sends to a topic."""

    topic: str
    value: bytes | None
    """None: a tombstone."""
    key: bytes | None = None
    """Messages with the same key keep their order. None: any partition, and no order."""
    headers: tuple[tuple[str, bytes], ...] = ()
