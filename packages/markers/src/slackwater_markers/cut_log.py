"""The cut log: every cut of a source, in order, for ever; and what else its sidecars have to know."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slackwater_markers.errors import CutLogReplacedError
from slackwater_protocol import Cut, LogRecord, PublishedCut


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record together with where the cut log keeps it."""

    record: LogRecord
    log_offset: int
    """Its offset in the cut log."""


class CutLog(Protocol):
    """The durable record of cuts; one partition, offsets rise with each record and may have gaps.

    Besides cuts it holds markers of partitions ahead of the frontier, and decisions of operators. Methods
    that return cuts pass over everything else.

    Several sidecars may append, so cuts may be repeated and interleave. All methods block, for at most the
    log's time-out, and raise only :class:`~slackwater_markers.errors.CutLogError` and protocol errors. Not
    thread-safe.
    """

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        """Writes cuts and returns when all of them are acknowledged, with their offsets.

        When it raises, any prefix of the cuts may have been written.
        """
        ...

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        """Writes records of any kind; returns their offsets when all are acknowledged.

        When it raises, any prefix of the records may have been written.
        """
        ...

    def read_range(self, from_offset: int, to_offset: int) -> list[PublishedCut]:
        """The cuts at offsets in ``[from_offset, to_offset)``, ascending.

        Raises:
            CutLogTruncatedError: the log starts above ``from_offset``.
            CutLogReplacedError: the log ends below ``to_offset``.
        """
        ...

    def tail(self, after_offset: int, *, limit: int | None = None) -> list[PublishedCut]:
        """The cuts that were readable above ``after_offset`` at the time of the call, ascending.

        Args:
            after_offset: Exclusive; -1: everything. A log that starts above it is read from its start.
            limit: At most so many, the oldest.

        Raises:
            CutLogReplacedError: the log ends at or below ``after_offset``, at which there was a record.
        """
        ...

    def records(
        self, after_offset: int, *, limit: int | None = None, with_cuts: bool = True
    ) -> list[LoggedRecord]:
        """All that was readable above ``after_offset`` at the time of the call, ascending.

        Args:
            after_offset: As for :meth:`tail`.
            limit: At most so many, the oldest.
            with_cuts: False: only what is no cut; cuts are passed over without being decoded.

        Raises:
            CutLogReplacedError: the log ends at or below ``after_offset``, at which there was a record.
        """
        ...

    def newest(self) -> PublishedCut | None:
        """The last cut in the log; None when it has none or does not exist.

        Raises:
            CutLogTruncatedError: it has none any more, since its records were deleted.
        """
        ...

    def begin(self) -> int:
        """The first offset that the log still has, or had; 0 unless records were deleted."""
        ...

    def end(self) -> int:
        """The offset that the next record will at least have; 0 when the log does not exist."""
        ...

    def identity(self) -> str | None:
        """What tells this log from every other, also of the same name: made anew, or in another cluster.

        None when the log does not exist.
        """
        ...

    def close(self) -> None:
        """Frees connections. The log must not be used afterwards."""
        ...


def cuts_of(records: Sequence[LoggedRecord]) -> list[PublishedCut]:
    """The cuts among records."""
    return [PublishedCut(r.record, r.log_offset) for r in records if isinstance(r.record, Cut)]


def beyond_end(topic: str, end: int, read_to: int) -> CutLogReplacedError:
    """For a log that ends below an offset up to which it was read."""
    return CutLogReplacedError(topic, f"it ends at offset {end}, but was read up to {read_to}")
