"""The cut log: every cut of a source, in order, permanently, and the decisions of operators."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slackwater.cuts.errors import CutLogDamagedError, CutLogReplacedError
from slackwater.protocol import (
    Cut,
    LogRecord,
    MalformedRecordError,
    PassDecision,
    PublishedCut,
    decode_log_record,
)
from slackwater.protocol.keys import cut_log_topic

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record with its position in the cut log."""

    record: LogRecord
    log_offset: int
    """Its offset in the cut log."""
    written_ms: int = field(default=0, compare=False)
    """Its timestamp, milliseconds since the epoch; 0 if unknown."""


class CutLog(Protocol):
    """The durable record of cuts; one partition, offsets rise with each record and may have gaps.

    Besides cuts it contains markers of partitions ahead of the frontier, refusals, and decisions of
    operators. Methods that return cuts skip everything else, and all skip records that are not Slackwater's,
    see :class:`RecordDecoder`.

    Several sidecars may append, so cuts may be repeated and interleave. All methods block, for at most the
    log's time-out, and raise only the errors of :mod:`slackwater.cuts.errors` and protocol errors. Not
    thread-safe.
    """

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        """Writes cuts and returns when all of them are acknowledged, with their offsets.

        If it raises, any prefix of the cuts may have been written.
        """
        ...

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        """Writes records of any kind; returns their offsets when all are acknowledged.

        If it raises, any prefix of the records may have been written.
        """
        ...

    def read_range(self, from_offset: int, to_offset: int) -> list[PublishedCut]:
        """Returns the cuts at offsets in ``[from_offset, to_offset)``, ascending.

        Raises:
            RecordsGoneError: The log starts above ``from_offset``. CutLogReplacedError: The log ends
                below ``to_offset``.
        """
        ...

    def tail(self, after_offset: int, *, limit: int | None = None) -> list[PublishedCut]:
        """Returns the cuts that were readable above ``after_offset`` at the time of the call, ascending.

        Args:
            after_offset: Exclusive; -1 for everything. A log that starts above it is read from its start.
            limit: The most cuts to return, the oldest.

        Raises:
            CutLogReplacedError: The log ends at or below ``after_offset``, at which there was a record. A log
                that is empty, or briefly missing, is not evidence: :meth:`identity` is.
        """
        ...

    def records(
        self, after_offset: int, *, limit: int | None = None, with_cuts: bool = True
    ) -> list[LoggedRecord]:
        """Returns all that was readable above ``after_offset`` at the time of the call, ascending.

        Args:
            after_offset: As for :meth:`tail`.
            limit: The most records to return, the oldest.
            with_cuts: False to skip cuts without decoding them.

        Raises:
            CutLogReplacedError: The log ends at or below ``after_offset``, at which there was a record. A log
                that is empty, or briefly missing, is not evidence: :meth:`identity` is.
        """
        ...

    def newest(self) -> PublishedCut | None:
        """Returns the last cut in the log; None if it has none or does not exist.

        Raises:
            RecordsGoneError: It has none any more, since its records were deleted.
        """
        ...

    def begin(self) -> int:
        """Returns the first offset that the log still has, or had; 0 unless records were deleted."""
        ...

    def end(self) -> int:
        """Returns a lower bound of the next record's offset; 0 if the log does not exist."""
        ...

    def identity(self) -> str | None:
        """Returns an id that differs for every other log, even one of the same name, recreated or elsewhere.

        None if the log does not exist.
        """
        ...

    def close(self) -> None:
        """Frees connections. The log must not be used afterwards."""
        ...


def cuts_of(records: Sequence[LoggedRecord]) -> list[PublishedCut]:
    """Returns the cuts among records."""
    return [PublishedCut(r.record, r.log_offset, r.written_ms) for r in records if isinstance(r.record, Cut)]


def beyond_end(topic: str, end: int, read_to: int) -> CutLogReplacedError:
    """Returns the error for a log that ends below an offset up to which it was read."""
    return CutLogReplacedError(topic, f"it ends at offset {end}, but was read up to {read_to}")


class RecordDecoder:
    """Decodes the records of one log.

    Records that do not begin like ours (including tombstones), or are of another source, were written by
    something else: they are skipped and logged once. One that begins like ours and cannot be read may be a
    cut or a decision that others rely on: nothing is read past it until an operator has decided so.

    Args:
        source: The source whose log it is.
        decisions: Returns the operators' decisions that are written after an offset; called only for a
            damaged record.
    """

    def __init__(self, source: str, decisions: Callable[[int], Iterable[PassDecision]]) -> None:
        self._source = source
        self._decisions = decisions
        self._topic = cut_log_topic(source)
        self._told_up_to = -1
        self._passed: set[int] = set()
        """Offsets of damaged records that operators let pass, as far as they were read."""

    def decode(self, value: bytes | None, log_offset: int, written_ms: int = 0) -> LoggedRecord | None:
        """Returns a record; None if it is skipped.

        Args:
            value: The record's value.
            log_offset: Its offset.
            written_ms: Its timestamp; 0 if unknown.

        Raises:
            CutLogDamagedError: It cannot be read. slackwater.protocol.InputError: A newer
                version wrote it.
        """
        if value is None or not value.startswith(_BEGIN):
            self._log_passed(log_offset, "it is not a record of Slackwater")
            return None
        try:
            record = decode_log_record(value)
        except MalformedRecordError as error:
            if log_offset not in self._passed:
                self._passed.update(each.log_offset for each in self._decisions(log_offset))
            if log_offset in self._passed:
                self._log_passed(log_offset, "it is damaged, and an operator decided to skip it")
                return None
            raise CutLogDamagedError(self._topic, log_offset, error.reason) from error
        if record.source != self._source:
            self._log_passed(log_offset, f"it belongs to source {record.source!r}")
            return None
        return LoggedRecord(record, log_offset, written_ms)

    def decision(self, value: bytes | None, log_offset: int) -> PassDecision | None:
        """Returns a record that lets a damaged one pass; None for any other record, which is not decoded.

        Raises like :meth:`decode`.
        """
        logged = self.decode(value, log_offset) if value is not None and _PASS.match(value) else None
        return logged.record if logged is not None and isinstance(logged.record, PassDecision) else None

    def _log_passed(self, log_offset: int, reason: str) -> None:
        if log_offset > self._told_up_to:
            self._told_up_to = log_offset
            logger.warning(
                "skipping the record at offset %d of %s: %s",
                log_offset,
                self._topic,
                reason,
                extra={"source": self._source},
            )


def is_no_cut(value: bytes) -> bool:
    """Returns whether a record of ours is not a cut, by its first bytes, because a cut may be large."""
    return _OTHER_KIND.match(value) is not None


_BEGIN = b'{"v":'
_OTHER_KIND = re.compile(rb'\{"v":\d+,"kind":"(?!cut")')
_PASS = re.compile(rb'\{"v":\d+,"kind":"pass"')
