"""Fences: end offsets of a moment. Whoever has read past them has read all that was readable then."""

from collections.abc import Iterable

from slackwater_cdc.partition_queues import PartitionQueue
from slackwater_cdc.pending import EndOffsets, Pending


class Fences:
    """Asks for end offsets in the name of whatever waits for them; one answer serves all that wait."""

    def __init__(self) -> None:
        self._waiting: list[Pending] = []

    @property
    def are_wanted(self) -> bool:
        """True if something waits for end offsets."""
        return bool(self._waiting)

    def answer(self, ends: EndOffsets) -> None:
        """Takes end offsets that were asked for after everything up to now was read."""
        for pending in self._waiting:
            pending.fence = ends
        self._waiting.clear()

    def fence(self, pending: Pending) -> EndOffsets | None:
        """The end offsets that something has to be read past; asks for them at the first time."""
        if pending.fence is None and pending not in self._waiting:
            self._waiting.append(pending)
        return pending.fence

    def is_read_past(self, pending: Pending, partitions: Iterable[PartitionQueue]) -> bool:
        """Returns whether partitions were read past the end offsets that something waits for."""
        fence = self.fence(pending)
        return fence is not None and all(p.position >= fence.get(p.key, 0) for p in partitions)
