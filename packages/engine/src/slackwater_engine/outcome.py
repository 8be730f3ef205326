"""The outcome of a batch for a bucket: changes of its entries, and what it hands on, by receiver."""

from collections.abc import Iterator

from slackwater_engine.payloads import (
    Document,
    Event,
    PackedRow,
    bucket_of,
    document_payloads,
    documents_stage,
    event_payloads,
    sequence_from,
)
from slackwater_engine.state.entry import Change

PackedPayload = tuple[int, int, int, bytes]
"""``(stage, bucket, sequence, payload)``: a packed row."""

Partial = tuple[int, int, bytes, bytes]
"""``(commit LSN, number, packed key of the group, packed rest)``: a change's addition to a group."""


class Outcome:
    """Collects changes of entries, events for later stages, partials for the own accumulators, and documents.

    Attributes:
        changes: Of entries; each name at most once.
        live_bytes: By how much names and values of the live entries grow.
        documents: By view, in the order in which they were added.
        partials: For the accumulate part of the same bucket.
    """

    def __init__(self, buckets: int) -> None:
        """Makes an empty outcome.

        Args:
            buckets: The number of buckets of every stage of the pipeline.
        """
        self.changes: list[Change] = []
        self.live_bytes = 0
        self.documents: dict[int, list[Document]] = {}
        self.partials: list[Partial] = []
        self._buckets = buckets
        self._events: dict[tuple[int, int], list[Event]] = {}

    def change(self, name: bytes, old: bytes | None, new: bytes | None) -> None:
        """Changes an entry, unless it stays as it is."""
        if old != new:
            self.changes.append((name, new))
            before = 0 if old is None else len(name) + len(old)
            self.live_bytes += (0 if new is None else len(name) + len(new)) - before

    def event(self, stage: int, lsn: int, number: int, key: bytes, identity: bytes, row: PackedRow) -> None:
        """Adds an event for a later stage."""
        bucket = bucket_of(key, self._buckets)
        event = (lsn, number, key, identity, row, 0)
        of_bucket = self._events.get((stage, bucket))
        if of_bucket is None:
            self._events[stage, bucket] = [event]
        else:
            of_bucket.append(event)

    def view(self, number: int) -> list[Document]:
        """Returns the list to which the documents of a view are added."""
        return self.documents.setdefault(number, [])

    def payloads(self, stage: int, bucket: int) -> Iterator[PackedPayload]:
        """Yields all that leaves the bucket, packed: a pure function of what was added.

        Args:
            stage: Number of the sending stage.
            bucket: The sending bucket.
        """
        sequence = sequence_from(stage, bucket)
        for target in sorted(self._events):
            for payload in event_payloads(self._events[target]):
                yield (*target, sequence, payload)
        for view in sorted(self.documents):
            for part, payload in enumerate(document_payloads(self.documents[view])):
                yield documents_stage(view), bucket, part, payload
