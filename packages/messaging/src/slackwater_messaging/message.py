"""A message on its way to Kafka."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a service wants to be in a topic."""

    topic: str
    value: bytes | None
    """None: a tombstone."""
    key: bytes | None = None
    """Messages of one key keep their order. None: any partition, and no order."""
    headers: tuple[tuple[str, bytes], ...] = ()
