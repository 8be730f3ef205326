"""Pending things hold back the end offsets of cuts: they stand in the topics and are not done yet."""

from collections.abc import Mapping
from typing import ClassVar, Protocol

EndOffsets = Mapping[tuple[str, int], int]
"""(topic, partition) to the first offset that was not readable when it was asked for."""


class Pending(Protocol):
    """Something whose records hold back the end offsets of cuts until it is done.

    Its owner changes it; the queues of partitions only ask.
    """

    is_done: bool
    """Whether the frontier has passed it, or it turned out to be void."""
    sequence: int | None
    """The place in the commit order; None while that is unknown."""
    fence: EndOffsets | None
    """End offsets that were asked for when everything else pointed to completeness."""

    @property
    def is_transaction(self) -> bool:
        """True if it is a transaction: those stand in the order of their commits in every partition."""
        ...


class Waiting:
    """Implements :class:`Pending` for everything that is no transaction."""

    __slots__ = ("fence", "is_done", "sequence")

    is_transaction: ClassVar[bool] = False

    def __init__(self) -> None:
        self.is_done = False
        self.sequence: int | None = None
        self.fence: EndOffsets | None = None


class Obstacle(Waiting):
    """A record that cannot be attributed to a transaction: no cut ever passes it."""

    __slots__ = ("detail", "is_misconfiguration", "offset", "partition", "topic")

    def __init__(
        self, topic: str, partition: int, offset: int, detail: str, *, is_misconfiguration: bool
    ) -> None:
        super().__init__()
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.detail = detail
        self.is_misconfiguration = is_misconfiguration
        """Whether the connector lacks a setting, as opposed to an unreadable value."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} offset {self.offset}: {self.detail}"
