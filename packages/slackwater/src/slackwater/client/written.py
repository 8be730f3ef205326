"""The records of a producer's transaction: change events, BEGIN and END, and a commit record. Pure.

Rows of Python values are encoded as JSON, in the format in which Debezium writes PostgreSQL's types.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from slackwater.cdc.change_writer import ChangeWriter, EventSource, TableChangeWriter, WrittenCommit
from slackwater.client.transaction import Commit
from slackwater.kafka.transactions import DeliveredOffsets, Headers
from slackwater.protocol import CommitPosition, CommitRecord, ConfigError
from slackwater.protocol.keys import HEADER_COMMIT_LSN, HEADER_PIPELINE, HEADER_XID, data_topic

Row = Mapping[str, Any]
"""Values by column."""

_encode = msgspec.json.Encoder().encode
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without a time zone is counted from here
_EPOCH_DAY: Final = _EPOCH.toordinal()
_US: Final = timedelta(microseconds=1)
_PLAIN: Final = frozenset((type(None), bool, str))
_MAX_INTEGER: Final = 2**63
_STEP: Final = 1 << 24
"""The distance of two commits whose positions the producer chooses, so that each change has its own LSN."""
_NS_PER_MS: Final = 1_000_000


def commit_after(source: str, newest: CommitRecord | None, given: Commit | None, now_ms: int) -> Commit:
    """Returns the commit that follows the newest one: a given one of another source, or one chosen here.

    The time of the latter is not before that of the newest commit, even if the clock goes back.

    Raises:
        ConfigError: The position of the given commit is not above the newest one.
    """
    timeline, lsn, newest_ms = (
        (1, 0, 0) if newest is None else (newest.timeline, newest.commit_lsn, newest.commit_ts_ms)
    )
    if given is None:
        now_ms = max(now_ms, newest_ms)
        return Commit(source=source, timeline=timeline, lsn=lsn + _STEP, xid=None, commit_ts_ms=now_ms)
    newest_position = CommitPosition(timeline, lsn)
    if newest is not None and given.position <= newest_position:
        hint = (
            "positions must increase; skip commits up to the producer's position, which are already written"
        )
        raise ConfigError(f"commit {given.position} is not above the newest commit, {newest_position}", hint)
    return given


class WrittenTransaction:
    """Creates the records of one transaction, and collects Kafka's delivery reports."""

    def __init__(self, source: str, commit: Commit, previous: CommitPosition | None, now_ms: int) -> None:
        self._source, self.commit = source, commit
        is_same = previous is not None and previous.timeline == commit.timeline
        self._previous = previous.lsn if previous is not None and is_same else 0
        written = WrittenCommit(commit.xid, commit.lsn, self._previous, commit.commit_ts_ms)
        self.changes = ChangeWriter(EventSource(source, source), written, now_ms)
        self._tables: dict[str, tuple[str, TableChangeWriter]] = {}
        self.reports = defaultdict[str, DeliveredOffsets](DeliveredOffsets)
        """The delivery reports of each topic."""
        self.handed_over = 0
        """The number of records for which a report is expected."""

    def change(
        self, table: str, key: Row, before: Row | None, after: Row | None, op: bytes = b""
    ) -> tuple[str, bytes, bytes]:
        """Returns the topic, key and value of a row's change event.

        Equal keys are equal bytes, whatever the order of their columns.

        Raises:
            ConfigError: The row contradicts its key, or a value cannot be written.
        """
        found = self._tables.get(table)
        if found is None:
            found = self._tables[table] = self._table(table)
        topic, writer = found
        record_key = encode_row(key if len(key) == 1 else dict(sorted(key.items())))
        old, new = (
            None if row is None else encode_row(_with_key(table, key, row)) for row in (before, after)
        )
        event = writer.event(old, new, op=op, lsn=self._previous + self.changes.total + 1)
        return topic, record_key, event

    @property
    def headers(self) -> Headers:
        """The headers that every record gets."""
        return [
            (HEADER_COMMIT_LSN, str(self.commit.lsn)),
            (HEADER_PIPELINE, self._source),
            (HEADER_XID, str(self.changes.xid)),
        ]

    def commit_record(self) -> CommitRecord:
        """Returns the commit record, with the offsets of all delivered records."""
        commit = self.commit
        return CommitRecord(
            pipeline=self._source,
            source=self._source,
            timeline=commit.timeline,
            commit_lsn=commit.lsn,
            previous_lsn=self._previous,
            xid=self.changes.xid,
            commit_ts_ms=commit.commit_ts_ms,
            offsets={topic: each.ranges() for topic, each in sorted(self.reports.items())},
            commit_ts_ns=commit.commit_ts_ms * _NS_PER_MS,
        )

    def _table(self, table: str) -> tuple[str, TableChangeWriter]:
        schema, dot, name = table.partition(".")
        if not (schema and dot and name):
            raise ConfigError(
                f"{table!r} is not the name of a table", "expected schema.table, for example public.invoice"
            )
        return data_topic(self._source, table), self.changes.table(schema, name)


def _with_key(table: str, key: Row, row: Row) -> Row:
    for name, value in key.items():
        if name in row and row[name] != value:
            problem = f"column {name} is {row[name]!r} in a row of {table}, but {value!r} in its key"
            raise ConfigError(
                problem, "to change a key, delete the row with the old key and insert one with the new key"
            )
    return {**key, **row}


def encode_row(row: Row) -> bytes:
    """Returns a row as a JSON object.

    Numbers, strings, booleans and None keep their form. All other values are encoded as Debezium does it: a
    ``date`` as days since 1970; a ``time``, a ``timedelta`` and a ``datetime`` without time zone as
    microseconds; a ``datetime`` with time zone as a string in UTC; ``Decimal`` and ``UUID`` as strings;
    ``bytes`` as Base64; a ``dict`` as the string of a JSON column; a list or tuple as an array.

    Raises:
        ConfigError: A value cannot be encoded; the error names its column.
    """
    for value in row.values():
        if type(value) not in _PLAIN:
            row = {name: _wire(name, value) for name, value in row.items()}
            break
    try:
        return _encode(row)
    except (TypeError, OverflowError, UnicodeEncodeError, ValueError) as error:
        raise ConfigError(f"a row cannot be written: {error}", "") from error


def _wire(name: str, value: Any) -> Any:
    """Returns the value of a column as a JSON value."""
    kind = type(value)
    if kind in _PLAIN or (kind is int and -_MAX_INTEGER <= value < _MAX_INTEGER):
        return value
    if kind is list or kind is tuple:
        return [_wire(name, each) for each in value]
    convert = _FORMS.get(kind)
    if convert is None:
        known = ", ".join(each.__name__ for each in (int, *_FORMS))
        hint = f"use None, bool, str, list or {known}; use Decimal for integers of more than 64 bits"
        raise ConfigError(f"column {name!r} has the value {value!r}, which cannot be written", hint)
    return convert(value)


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _time(value: time) -> int:
    of_day = timedelta(
        hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
    )
    return of_day // _US


def _datetime(value: datetime) -> int | str:
    if value.tzinfo is None:
        return (value - _EPOCH) // _US
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _decimal(value: Decimal) -> str:
    return format(value, "f")


_FORMS: Final[Mapping[type, Callable[[Any], Any]]] = {
    float: _float,
    Decimal: _decimal,
    datetime: _datetime,
    date: lambda value: value.toordinal() - _EPOCH_DAY,
    time: _time,
    timedelta: lambda value: value // _US,
    bytes: msgspec.to_builtins,
    dict: lambda value: _encode(value).decode(),
    UUID: str,
}
