"""A message on its way to Kafka, and the places of messages there."""

from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a service wants to be in a topic."""

    topic: str
    value: bytes | None
    """None: a tombstone."""
    key: bytes | None = None
    """Messages of one key keep their order. None: any partition, and no order."""
    headers: tuple[tuple[str, bytes], ...] = ()
