"""A cut log for tests."""

import uuid
from collections.abc import Sequence

from slackwater_markers.cut_log import LoggedRecord, beyond_end, cuts_of
from slackwater_markers.errors import CutLogTruncatedError
from slackwater_protocol import Cut, LogRecord, PublishedCut
from slackwater_protocol.keys import cut_log_topic


class InMemoryCutLog:
    """Implements :class:`~slackwater_markers.cut_log.CutLog` in this process."""

    def __init__(self, source: str) -> None:
        self._topic = cut_log_topic(source)
        self._records: list[LoggedRecord] = []
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
        return cuts_of([r for r in self._records if from_offset <= r.log_offset < to_offset])

    def tail(self, after_offset: int, *, limit: int | None = None) -> list[PublishedCut]:
        """See the protocol."""
        return cuts_of(self.records(after_offset))[:limit]

    def records(
        self, after_offset: int, *, limit: int | None = None, with_cuts: bool = True
    ) -> list[LoggedRecord]:
        """See the protocol."""
        if 0 <= self._end <= after_offset:
            raise beyond_end(self._topic, self._end, after_offset + 1)
        return [
            r
            for r in self._records
            if r.log_offset > after_offset and (with_cuts or not isinstance(r.record, Cut))
        ][:limit]

    def newest(self) -> PublishedCut | None:
        """See the protocol."""
        cuts = cuts_of(self._records)
        if not cuts and self._begin:
            raise CutLogTruncatedError(self._topic, 0, self._begin)
        return cuts[-1] if cuts else None

    def begin(self) -> int:
        """See the protocol."""
        return self._begin

    def end(self) -> int:
        """See the protocol."""
        return self._end

    def identity(self) -> str | None:
        """See the protocol."""
        return self._identity

    def delete_before(self, offset: int) -> None:
        """Loses the records below ``offset``, as an operator could."""
        self._begin = min(offset, self._end)
        self._records = [r for r in self._records if r.log_offset >= offset]

    def make_anew(self) -> None:
        """Loses everything and becomes another log, as when its topic is deleted and made again."""
        self._records, self._begin, self._end = [], 0, 0
        self._identity = uuid.uuid4().hex

    def close(self) -> None:
        """See the protocol."""
