"""Cut log, marker store, and the topics of pipelines and of leases, in this process."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater.cuts import FrontierStatus, LeaseLog, PipelineLog, RedisMarkerStore, StoredPosition
from slackwater.cuts.compacted_topic import CompactedTopic, Entry
from slackwater.cuts.cut_log import CutLog, LoggedRecord, cuts_of, may_be_cut
from slackwater.protocol import (
    Clock,
    CommitPosition,
    Cut,
    KafkaSettings,
    LeaseRecord,
    LogRecord,
    Marker,
    OpenTransaction,
    PassDecision,
    PipelineEntry,
    PublishedCut,
    SystemClock,
    epoch_ms,
)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Bytes from another writer."""

    value: bytes | None
    log_offset: int


class InMemoryCutLog(CutLog):
    """A cut log in this process."""

    def __init__(self, source: str) -> None:
        super().__init__(source, KafkaSettings(""))
        self._records: list[LoggedRecord | _Bytes] = []
        self._first = self._next = 0
        self._identity = uuid.uuid4().hex

    def ensure_topic(self, *, replication_factor: int = -1) -> None:
        """There is nothing to create."""

    def identity(self) -> str | None:
        return self._identity

    def append_bytes(self, value: bytes | None) -> int:
        """Writes bytes that are not a record, as anyone could; returns their offset."""
        self._records.append(_Bytes(value, self._next))
        self._next += 1
        return self._next - 1

    def delete_before(self, offset: int) -> None:
        """Loses the records below ``offset``, as an operator could."""
        self._first = max(self._first, min(offset, self._next))
        self._records = [r for r in self._records if r.log_offset >= offset]

    def recreate(self) -> None:
        """Loses everything and becomes another log, as if its topic were deleted and recreated."""
        self._records, self._first, self._next = [], 0, 0
        self._identity = uuid.uuid4().hex

    def close(self) -> None:
        """There is nothing to free."""

    def _append(self, records: Sequence[LogRecord]) -> list[tuple[int, int]]:
        places = [(self._next + index, 0) for index in range(len(records))]
        self._records += [
            LoggedRecord(each, offset) for each, (offset, _) in zip(records, places, strict=True)
        ]
        self._next += len(places)
        return places

    def _bounds(self) -> tuple[int, int]:
        return self._first, self._next

    def _newest(self) -> PublishedCut | None:
        places = (each.log_offset for each in reversed(self._records))
        found = (cuts_of(self._read(at, at + 1, frozenset((True,)))) for at in places)
        return next((cuts[0] for cuts in found if cuts), None)

    def _read(
        self, from_offset: int, to_offset: int, wanted: frozenset[bool], limit: int | None = None
    ) -> list[LoggedRecord]:
        found: list[LoggedRecord] = []
        for each in self._records:
            if len(found) == limit:
                break
            if not from_offset <= each.log_offset < to_offset:
                continue
            if isinstance(each, LoggedRecord):
                found += [each] if isinstance(each.record, Cut) in wanted else []
            elif may_be_cut(each.value) in wanted:
                decoded = self._decoder.decode(each.value, each.log_offset)
                found += [] if decoded is None else [decoded]
        return found

    def _decisions(self, after_offset: int) -> list[PassDecision]:
        records = [
            r.record for r in self._records if isinstance(r, LoggedRecord) and r.log_offset > after_offset
        ]
        return [record for record in records if isinstance(record, PassDecision)]


class _InMemoryTopic(CompactedTopic[Entry]):
    """Does in this process what a compacted topic does in Kafka."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._entries: dict[bytes, Entry] = {}
        self._end = 0

    def ensure(self) -> None:
        """There is nothing to create."""

    def read(self) -> list[Entry]:
        return list(self._entries.values())

    def put(self, operation: str, values: Mapping[bytes, bytes | None]) -> int:
        return max(self.append(key, value) for key, value in values.items())

    def send(self, key: bytes, value: bytes) -> None:
        self.append(key, value)

    def append(self, key: bytes, value: bytes | None) -> int:
        """Writes any bytes, as anyone could; returns their offset."""
        offset, self._end = self._end, self._end + 1
        self._entries.pop(key, None)
        if value is not None:
            entry = self._entry(value, offset, epoch_ms(self._clock.now()), key)
            if entry is not None:
                self._entries[key] = entry
        return offset

    def close(self) -> None:
        """There is nothing to free."""


class InMemoryPipelineLog(_InMemoryTopic[PipelineEntry], PipelineLog):
    """A topic of pipelines in this process."""


class InMemoryLeaseLog(_InMemoryTopic[LeaseRecord], LeaseLog):
    """A topic of leases in this process."""


class InMemoryMarkerStore(RedisMarkerStore):
    """A marker store in this process; keeps every cut."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[str, int], list[PublishedCut]] = {}
        self._timelines: dict[str, int] = {}
        self._positions: dict[str, StoredPosition] = {}
        self._markers: dict[str, dict[tuple[str, int], Marker]] = {}
        self._status: dict[str, FrontierStatus] = {}
        self._open: dict[str, list[OpenTransaction]] = {}
        self._log_ids: dict[str, str] = {}
        self.bound = ""
        """The id of the bound cut log; empty if there is none."""

    def bind(self, log_id: str) -> None:
        self.bound = log_id

    def adopt(self, source: str) -> bool:
        if not self.bound:
            return False
        is_foreign = self._is_of_another_log(source)
        if is_foreign:
            self.clear(source, 0)
        self._claim(source)
        return is_foreign

    def clear(self, source: str, timeline: int) -> None:
        for key in [key for key in self._cuts if key[0] == source]:
            del self._cuts[key]
        held: list[dict[str, Any]] = [self._timelines, self._positions, self._markers, self._status]
        for of_source in (*held, self._open, self._log_ids):
            of_source.pop(source, None)

    def put_cut(self, cut: PublishedCut, status: FrontierStatus) -> bool:
        source, timeline = cut.cut.source, cut.cut.timeline
        if self._is_of_another_log(source) or timeline < self._timelines.get(source, timeline):
            return False
        cuts = self._cuts.setdefault((source, timeline), [])
        if cuts and cut.cut.lsn <= cuts[-1].cut.lsn:
            return False
        cuts.append(cut)
        self._timelines[source] = timeline
        self._positions[source] = StoredPosition(cut.cut.position, cut.log_offset, status.sidecar)
        held = self._status.get(source)
        self._status[source] = replace(status, connector=None if held is None else held.connector)
        self._claim(source)
        return True

    def position(self, source: str) -> StoredPosition | None:
        return None if self._is_of_another_log(source) else self._positions.get(source)

    def set_markers(
        self, source: str, position: CommitPosition, markers: Mapping[tuple[str, int], Marker]
    ) -> bool:
        held = self._positions.get(source)
        if self._is_of_another_log(source) or (held is not None and held.position > position):
            return False
        self._markers[source] = dict(markers)
        self._claim(source)
        return True

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        cuts = self._cuts_of(source, timeline)
        return cuts[-1] if cuts else None

    def cuts_after(self, source: str, timeline: int, lsn: int, *, limit: int) -> list[PublishedCut]:
        return [c for c in self._cuts_of(source, timeline) if c.cut.lsn > lsn][:limit]

    def markers(self, source: str) -> dict[tuple[str, int], Marker]:
        return {} if self._is_of_another_log(source) else dict(self._markers.get(source, {}))

    def set_status(self, source: str, status: FrontierStatus) -> None:
        self._status[source] = status

    def status(self, source: str) -> FrontierStatus | None:
        return self._status.get(source)

    def set_open(self, source: str, transactions: Sequence[OpenTransaction]) -> None:
        self._open[source] = list(transactions)

    def open(self, source: str) -> list[OpenTransaction]:
        return sorted(self._open.get(source, ()), key=lambda t: (t.since_ms, t.xid))

    def close(self) -> None:
        """See the class."""

    def _cuts_of(self, source: str, timeline: int) -> list[PublishedCut]:
        return [] if self._is_of_another_log(source) else self._cuts.get((source, timeline), [])

    def _is_of_another_log(self, source: str) -> bool:
        return bool(self.bound) and self._log_ids.get(source, self.bound) != self.bound

    def _claim(self, source: str) -> None:
        if self.bound:
            self._log_ids[source] = self.bound
