"""A cut log for tests."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_markers.cut_log import LoggedRecord, RecordDecoder, beyond_end, cuts_of, is_no_cut
from slackwater_markers.errors import CutLogTruncatedError
from slackwater_protocol import Cut, LogRecord, PassDecision, PublishedCut
from slackwater_protocol.keys import cut_log_topic


@dataclass(frozen=True, slots=True)
class _Bytes:
    """What somebody else wrote."""

    value: bytes | None
    log_offset: int


class InMemoryCutLog:
    """Implements :class:`~slackwater_markers.cut_log.CutLog` in this process."""

    def __init__(self, source: str) -> None:
        self._topic = cut_log_topic(source)
        self._decoder = RecordDecoder(source)
        self._records: list[LoggedRecord | _Bytes] = []
        self._begin = self._end = 0
        self._identity = uuid.uuid4().hex

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        """See the protocol."""
        return [PublishedCut(*pair) for pair in zip(cuts, self.append_records(cuts), strict=True)]

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        """See the protocol."""
        offsets = [self._end + index for index in range(len(records))]
        self._records += map(LoggedRecord, records, offsets)
        self._end += len(offsets)
        return offsets

    def read_range(self, from_offset: int, to_offset: int) -> list[PublishedCut]:
        """See the protocol."""
        if from_offset >= to_offset:
            return []
        if from_offset < self._begin:
            raise CutLogTruncatedError(self._topic, from_offset, self._begin)
        if to_offset > self._end:
            raise beyond_end(self._topic, self._end, to_offset)
        return cuts_of(self._read(from_offset, to_offset))

    def tail(self, after_offset: int, *, limit: int | None = None) -> list[PublishedCut]:
        """See the protocol."""
        return cuts_of(self.records(after_offset))[:limit]

    def records(
        self, after_offset: int, *, limit: int | None = None, with_cuts: bool = True
    ) -> list[LoggedRecord]:
        """See the protocol."""
        if 0 < self._end <= after_offset:
            raise beyond_end(self._topic, self._end, after_offset + 1)
        return self._read(after_offset + 1, self._end, with_cuts=with_cuts)[:limit]

    def newest(self) -> PublishedCut | None:
        """See the protocol."""
        for record in reversed(self._records):
            if cuts := cuts_of(self._read(record.log_offset, record.log_offset + 1)):
                return cuts[0]
        if self._begin:
            raise CutLogTruncatedError(self._topic, 0, self._begin)
        return None

    def begin(self) -> int:
        """See the protocol."""
        return self._begin

    def end(self) -> int:
        """See the protocol."""
        return self._end

    def identity(self) -> str | None:
        """See the protocol."""
        return self._identity

    def append_bytes(self, value: bytes | None) -> int:
        """Writes what is no record, as anybody could; returns its offset."""
        self._records.append(_Bytes(value, self._end))
        self._end += 1
        return self._end - 1

    def delete_before(self, offset: int) -> None:
        """Loses the records below ``offset``, as an operator could."""
        self._begin = max(self._begin, min(offset, self._end))
        self._records = [r for r in self._records if r.log_offset >= offset]

    def make_anew(self) -> None:
        """Loses everything and becomes another log, as when its topic is deleted and made again."""
        self._records, self._begin, self._end = [], 0, 0
        self._identity = uuid.uuid4().hex

    def close(self) -> None:
        """See the protocol."""

    def _read(self, low: int, high: int, *, with_cuts: bool = True) -> list[LoggedRecord]:
        found: list[LoggedRecord] = []
        for each in self._records:
            if not low <= each.log_offset < high:
                continue
            if isinstance(each, _Bytes):
                found += self._decoded(each) if with_cuts or is_no_cut(each.value or b"") else []
            elif with_cuts or not isinstance(each.record, Cut):
                found.append(each)
        return found

    def _decoded(self, each: _Bytes) -> list[LoggedRecord]:
        records = [r.record for r in self._records if isinstance(r, LoggedRecord)]
        self._decoder.passed = frozenset(r.log_offset for r in records if isinstance(r, PassDecision))
        record = self._decoder.decode(each.value, each.log_offset)
        return [record] if record else []
