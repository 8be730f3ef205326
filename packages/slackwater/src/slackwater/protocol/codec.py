"""The codec of everything that Slackwater publishes: compact JSON with a version.

Golden vectors are in ``tests/vectors``. Transaction tables are coded as three columns of differences, so
that a cut of 10,000 transactions takes about 100 KB. Every decoder refuses versions it does not know.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, TypeVar

import msgspec

from slackwater.protocol.clock import END_OF_TIME_MS
from slackwater.protocol.errors import MalformedRecordError, unsupported_version
from slackwater.protocol.records import (
    AheadMarkers,
    CommitRecord,
    CommittedTransaction,
    Cut,
    LogRecord,
    Marker,
    OffsetRange,
    OpenTransaction,
    PassDecision,
    ProgressRecord,
    Refusal,
    SkipDecision,
    TimelineDecision,
    TopicState,
)

PROTOCOL_VERSION = 2
"""Version 2 added ``skipped``, ``places``, and the records of the cut log that are not cuts."""

_TOO_LARGE = 2**64

_KINDS = {SkipDecision: "skip", TimelineDecision: "timeline", PassDecision: "pass", Refusal: "refused"}

T = TypeVar("T")


def encode_cut(cut: Cut) -> bytes:
    """Encodes a cut, as in the cut log and in the Redis stream."""
    return dump(
        {
            "v": PROTOCOL_VERSION,
            "source": cut.source,
            "timeline": cut.timeline,
            "lsn": cut.lsn,
            "previous": cut.previous_lsn,
            "commit_ts": cut.commit_ts_ms,
            "events": cut.event_count,
            "xids": _differences(t.xid for t in cut.transactions),
            "lsns": _differences((t.commit_lsn for t in cut.transactions), cut.previous_lsn),
            "times": _differences(t.commit_ts_ms for t in cut.transactions),
            "end": {topic: list(offsets) for topic, offsets in cut.end_offsets.items()},
            "tx_end": cut.transaction_offset,
            "repeated": sorted(cut.repeated),
            "skipped": cut.skipped,
            "late_snapshots": cut.late_snapshots,
            "incremental": cut.has_incremental_rows,
            **({"no_snapshot": cut.without_snapshot} if cut.without_snapshot else {}),
            **({"barrier": cut.barrier_lsn} if cut.barrier_lsn else {}),
            **({"ended": cut.ended_ms} if cut.ended_ms else {}),
        }
    )


def decode_cut(data: bytes) -> Cut:
    """Decodes a cut.

    Raises:
        MalformedRecordError: The bytes are not a cut.
        InputError: A newer version wrote it.
    """
    return load("cut", data, _cut)


def encode_log_record(record: LogRecord) -> bytes:
    """Encodes a record of a cut log; a cut as :func:`encode_cut` does."""
    if isinstance(record, Cut):
        return encode_cut(record)
    if isinstance(record, AheadMarkers):
        return dump({"v": PROTOCOL_VERSION, "kind": "markers", **_ahead_fields(record)})
    return dump({"v": PROTOCOL_VERSION, "kind": _KINDS[type(record)], **asdict(record)})


def decode_log_record(data: bytes) -> LogRecord:
    """Decodes a record of a cut log; raises like :func:`decode_cut`."""
    return load("record of the cut log", data, _log_record)


def encode_commit_record(record: CommitRecord) -> bytes:
    """Encodes the value of a record in a commit topic.

    It is written piece by piece: a sink that emits every commit writes hundreds of thousands in a batch.
    """
    xid = "null" if record.xid is None else record.xid
    offsets = ",".join([f"{_text(topic)}:{_ranges(ranges)}" for topic, ranges in record.offsets.items()])
    skipped = ",".join(map(str, record.skipped))
    return (
        f'{{"v":{PROTOCOL_VERSION},"pipeline":{_text(record.pipeline)},"source":{_text(record.source)},'
        f'"timeline":{record.timeline},"commit_lsn":{record.commit_lsn},'
        f'"previous_lsn":{record.previous_lsn},"xid":{xid},"commit_ts":{record.commit_ts_ms},'
        f'"offsets":{{{offsets}}},"skipped":[{skipped}]{_described(record)}}}'
    ).encode()


def _described(record: CommitRecord) -> str:
    """What readers that share no code with us need besides; records of older versions have none of it."""
    described = ""
    if record.commit_ts_ns is not None:
        counts = record.record_counts
        by_topic = ",".join([f"{_text(topic)}:{count}" for topic, count in counts.items()])
        described = (
            f',"id":"{record.commit_id}","commit_ts_ns":{record.commit_ts_ns},'
            f'"record_count":{sum(counts.values())},"record_counts":{{{by_topic}}}'
        )
    if record.schemas:
        names = [f"{_text(t)}:[{','.join(map(_text, each))}]" for t, each in record.schemas.items()]
        described += f',"schemas":{{{",".join(names)}}}'
    return described


def _ranges(ranges: Mapping[int, OffsetRange]) -> str:
    items = [f'"{p}":[{r.count},{r.first_offset},{r.last_offset}]' for p, r in ranges.items()]
    return "{" + ",".join(items) + "}"


@lru_cache(maxsize=256)
def _text(text: str) -> str:
    return msgspec.json.encode(text).decode()


def decode_commit_record(data: bytes) -> CommitRecord:
    """Decodes a commit record; raises like :func:`decode_cut`."""
    kind = "commit record"
    try:
        return _commit_record(_COMMIT_DECODER.decode(data))
    except _UNREADABLE as error:
        load(kind, data, lambda _: None)  # what a newer version has changed is no damage
        raise _malformed(kind, data, error) from error


def encode_progress_record(record: ProgressRecord) -> bytes:
    """Encodes the value of a record in a progress topic."""
    topics = {name: [t.topic_id, t.start, t.end] for name, t in record.topics.items()}
    raised = {name: [t.lag_ms, t.raised_ms] for name, t in record.topics.items() if t.lag_ms is not None}
    return dump(
        {
            "v": PROTOCOL_VERSION,
            "pipeline": record.pipeline,
            "query_id": record.query_id,
            "batch_id": record.batch_id,
            "source": record.source,
            "timeline": record.timeline,
            "commit_lsn": record.commit_lsn,
            **({"run": record.run} if record.run else {}),
            **({"topics": topics} if topics else {}),
            **({"raised": raised} if raised else {}),
            **({"state": record.state} if record.state else {}),
        }
    )


def decode_progress_record(data: bytes) -> ProgressRecord:
    """Decodes a progress record; raises like :func:`decode_cut`."""
    return load("progress record", data, _progress_record)


def encode_marker(marker: Marker) -> bytes:
    """Encodes a field of the ``markers`` hash.

    It fills a template: a cut of a thousand partitions has a thousand of them.
    """
    return (
        f'{{"v":{PROTOCOL_VERSION},"lsn":{marker.safe_commit_lsn},"offset":{marker.safe_offset}}}'
    ).encode()


def decode_marker(data: bytes) -> Marker:
    """Decodes a marker; raises like :func:`decode_cut`."""
    return load("marker", data, _marker)


def encode_open_transaction(transaction: OpenTransaction) -> bytes:
    """Encodes a field of the ``open`` hash."""
    return dump(
        {
            "v": PROTOCOL_VERSION,
            "xid": transaction.xid,
            "commit_lsn": transaction.commit_lsn,
            "since": transaction.since_ms,
            "expected": transaction.expected,
            "received": transaction.received,
            "hint": transaction.hint,
            "places": transaction.places,
        }
    )


def decode_open_transaction(data: bytes) -> OpenTransaction:
    """Decodes an open transaction; raises like :func:`decode_cut`."""
    return load("open transaction", data, _open_transaction)


class Fields:
    """The fields of a JSON object, each of the requested type.

    All methods raise ``ValueError`` or ``KeyError`` if a field is missing or has another type: damaged or
    foreign data must never become a record.
    """

    def __init__(self, fields: Any) -> None:
        if type(fields) is not dict:
            raise ValueError(f"an object is expected, not {type(fields).__name__}")
        self._fields: dict[str, Any] = fields

    def has(self, name: str) -> bool:
        """Returns whether the field exists: older versions omit some."""
        return name in self._fields

    def number(self, name: str, least: int = 0) -> int:
        """Returns a whole number that fits in 64 bits."""
        return _number(self._fields[name], name, least)

    def moment(self, name: str) -> int:
        """Returns milliseconds since the epoch."""
        return _number(self._fields[name], name, below=END_OF_TIME_MS)

    def moment_or_none(self, name: str) -> int | None:
        """Returns milliseconds since the epoch; None for null."""
        return None if self._fields[name] is None else self.moment(name)

    def number_or_none(self, name: str) -> int | None:
        """Returns a whole number; None for null."""
        return None if self._fields[name] is None else self.number(name)

    def text(self, name: str) -> str:
        """Returns a text that can be written again."""
        found = _typed(self._fields[name], str, name)
        found.encode()  # half a surrogate pair could not be written again
        return found

    def flag(self, name: str) -> bool:
        """Returns true or false; false if the field is not there, as in version 1."""
        return _typed(self._fields.get(name, False), bool, name)

    def numbers(self, name: str) -> list[int]:
        """Returns a list of whole numbers."""
        return _numbers(self._fields[name], name)

    def numbers_or_none(self, name: str) -> list[int]:
        """Returns numbers; none if the field is not there, as in version 1."""
        return self.numbers(name) if name in self._fields else []

    def mapping(self, name: str) -> dict[str, Any]:
        """Returns an object; its values are unchecked."""
        found: dict[str, Any] = _typed(self._fields[name], dict, name)
        "".join(found).encode()
        return found

    def lists(self, name: str) -> list[list[Any]]:
        """Returns a list of lists; their values are unchecked."""
        return _typed_list(self._fields[name], list, name)

    def text_list(self, name: str) -> tuple[str, ...]:
        """Returns a list of texts."""
        found = _typed_list(self._fields[name], str, name)
        "".join(found).encode()
        return tuple(found)

    def objects(self, name: str) -> list["Fields"]:
        """Returns a list of objects."""
        return [Fields(each) for each in _typed_list(self._fields[name], dict, name)]

    def object_or_none(self, name: str) -> "Fields | None":
        """Returns an object; None for null."""
        return None if self._fields[name] is None else Fields(self._fields[name])

    def counts(self, name: str) -> dict[str, int]:
        """Returns an object whose values are whole numbers."""
        found = self.mapping(name)
        _numbers(list(found.values()), name)
        return found

    def places(self) -> dict[str, tuple[int, int]]:
        """Returns pairs of offsets; version 1 does not have them."""
        pairs = self.mapping("places") if "places" in self._fields else {}
        return {place: _pair(pair) for place, pair in pairs.items()}

    def kind(self) -> Any:
        """Returns the kind of a record of the cut log."""
        return self._fields.get("kind", "cut")

    def table(self, previous: int) -> Iterable[tuple[int, int, int]]:
        """Yields the rows of a transaction table: xid, commit LSN, commit time."""
        columns = [
            _numbers(_sums(_typed_list(self._fields[name], int, name), start), name, below=below)
            for name, start, below in (
                ("xids", 0, _TOO_LARGE),
                ("lsns", previous, _TOO_LARGE),
                ("times", 0, END_OF_TIME_MS),
            )
        ]
        return zip(*columns, strict=True)


def _typed(value: Any, expected: type[T], name: str) -> T:
    if type(value) is not expected:
        raise ValueError(f"{name} is a {type(value).__name__}, expected {expected.__name__}")
    return value


def _typed_list(values: Any, expected: type[T], name: str) -> list[T]:
    found: list[T] = _typed(values, list, name)
    if not {expected}.issuperset(map(type, found)):
        raise ValueError(f"{name} must hold values of type {expected.__name__} only")
    return found


def _number(value: Any, name: str, least: int = 0, below: int = _TOO_LARGE) -> int:
    """Checks one whole number."""
    if type(value) is not int:
        raise ValueError(f"{name} is a {type(value).__name__}, expected int")
    if not least <= value < below:
        raise ValueError(f"{name} holds a number out of range")
    return value


def _numbers(values: Any, name: str, least: int = 0, below: int = _TOO_LARGE) -> list[int]:
    """Checks whole numbers of 64 bits; a list of thousands is checked without a loop."""
    found = _typed_list(values, int, name)
    if found:
        _check_range(found, name, below, least)
    return found


def _check_range(numbers: list[int], name: str, below: int = _TOO_LARGE, least: int = 0) -> None:
    if not (least <= min(numbers) and max(numbers) < below):
        raise ValueError(f"{name} holds a number out of range")


def _cut(d: Fields) -> Cut:
    previous_lsn = d.number("previous")
    return Cut(
        source=d.text("source"),
        timeline=d.number("timeline"),
        lsn=d.number("lsn"),
        previous_lsn=previous_lsn,
        commit_ts_ms=d.moment("commit_ts"),
        event_count=d.number("events"),
        transactions=tuple(CommittedTransaction(*row) for row in d.table(previous_lsn)),
        end_offsets={topic: tuple(_numbers(ends, topic)) for topic, ends in d.mapping("end").items()},
        transaction_offset=d.number("tx_end"),
        repeated=frozenset(d.numbers("repeated")),
        skipped=tuple(d.numbers_or_none("skipped")),
        late_snapshots=tuple(d.numbers_or_none("late_snapshots")),
        has_incremental_rows=d.flag("incremental"),
        without_snapshot=d.text_list("no_snapshot") if d.has("no_snapshot") else (),
        barrier_lsn=d.number("barrier") if d.has("barrier") else 0,
        ended_ms=d.moment("ended") if d.has("ended") else 0,
    )


def _log_record(d: Fields) -> LogRecord:
    kind = d.kind()
    if kind == "cut":
        return _cut(d)
    if kind == "markers":
        return _ahead(d)
    if kind == "skip":
        return SkipDecision(timeline=d.number("timeline"), to_lsn=d.number("to_lsn"), **_decided(d))
    if kind == "timeline":
        offset = d.number("transaction_offset")
        return TimelineDecision(timeline=d.number("timeline"), transaction_offset=offset, **_decided(d))
    if kind == "pass":
        return PassDecision(log_offset=d.number("log_offset"), **_decided(d))
    if kind == "refused":
        return Refusal(
            source=d.text("source"),
            timeline=d.number("timeline"),
            since_lsn=d.number("since_lsn"),
            newest_lsn=d.number("newest_lsn"),
            reason=d.text("reason"),
        )
    raise ValueError(f"kind is {kind!r}")


def _decided(d: Fields) -> dict[str, Any]:
    """Reads the fields that all decisions have."""
    return {
        "source": d.text("source"),
        "wall_ms": d.moment("wall_ms"),
        "decided_by": d.text("decided_by"),
        "reason": d.text("reason"),
    }


def _ahead_fields(markers: AheadMarkers) -> dict[str, Any]:
    return {
        "source": markers.source,
        "timeline": markers.timeline,
        "lsn": markers.lsn,
        "previous": markers.previous_lsn,
        "xids": _differences(t.xid for t in markers.transactions),
        "lsns": _differences((t.commit_lsn for t in markers.transactions), markers.previous_lsn),
        "times": _differences(t.commit_ts_ms for t in markers.transactions),
        "markers": [[t, p, m.safe_commit_lsn, m.safe_offset] for (t, p), m in markers.markers.items()],
        "repeated": sorted(markers.repeated),
    }


def _ahead(d: Fields) -> AheadMarkers:
    previous_lsn = d.number("previous")
    markers = {}
    for topic, *numbers in d.lists("markers"):
        partition, lsn, offset = _numbers(numbers, "markers")
        _typed(topic, str, "markers").encode()
        markers[topic, partition] = Marker(lsn, offset)
    return AheadMarkers(
        source=d.text("source"),
        timeline=d.number("timeline"),
        lsn=d.number("lsn"),
        previous_lsn=previous_lsn,
        transactions=tuple(CommittedTransaction(*row) for row in d.table(previous_lsn)),
        markers=markers,
        repeated=frozenset(d.numbers("repeated")),
    )


class _CommitFields(msgspec.Struct, gc=False):
    """A commit record as it is written: consumers read one for every few documents."""

    v: int
    pipeline: str
    source: str
    timeline: int
    commit_lsn: int
    previous_lsn: int
    xid: int | None
    commit_ts: int
    offsets: dict[str, dict[int, tuple[int, int, int]]]
    skipped: list[int] = []
    id: str = ""
    commit_ts_ns: int | msgspec.UnsetType = msgspec.UNSET
    record_count: int = -1
    record_counts: dict[str, int] = {}
    schemas: dict[str, tuple[str, ...]] = {}


_COMMIT_DECODER = msgspec.json.Decoder(_CommitFields)


def _commit_record(d: _CommitFields) -> CommitRecord:
    if d.v > PROTOCOL_VERSION:
        raise ValueError(f"version {d.v}")
    commit_ts_ns = None if d.commit_ts_ns is msgspec.UNSET else d.commit_ts_ns
    numbers = [d.v, d.timeline, d.commit_lsn, d.previous_lsn, d.xid or 0, *d.skipped]
    ranges = [held for partitions in d.offsets.values() for held in partitions.values()]
    _check_range([*numbers, *chain.from_iterable(ranges)], "a field")
    _check_range([d.commit_ts], "commit_ts", END_OF_TIME_MS)
    record = CommitRecord(
        pipeline=d.pipeline,
        source=d.source,
        timeline=d.timeline,
        commit_lsn=d.commit_lsn,
        previous_lsn=d.previous_lsn,
        xid=d.xid,
        commit_ts_ms=d.commit_ts,
        offsets={
            topic: {partition: OffsetRange(*held) for partition, held in partitions.items()}
            for topic, partitions in d.offsets.items()
        },
        skipped=tuple(d.skipped),
        commit_ts_ns=commit_ts_ns,
        schemas=d.schemas,
    )
    if commit_ts_ns is not None:
        _check_described(d, record)
    return record


def _check_described(d: _CommitFields, record: CommitRecord) -> None:
    """Refuses a record that contradicts itself: what follows from other fields is never guessed."""
    if record.commit_ts_ns is not None and record.commit_ts_ns // 1_000_000 != record.commit_ts_ms:
        raise ValueError("commit_ts_ns does not match commit_ts")
    if d.id != record.commit_id:
        raise ValueError(f"id is not {record.commit_id}")
    counts = record.record_counts
    if d.record_counts != counts or d.record_count != sum(counts.values()):
        raise ValueError("the record counts do not match the offsets")


def _pair(values: Any) -> tuple[int, int]:
    first, position = _numbers(values, "places", least=-1)
    return first, position


def _topic_state(values: Any) -> TopicState:
    topic_id, start, end = _typed(values, list, "topics")
    state = TopicState(
        _typed(topic_id, str, "topics"), tuple(_numbers(start, "topics")), tuple(_numbers(end, "topics"))
    )
    state.topic_id.encode()
    if len(state.start) != len(state.end):
        raise ValueError("topics has different partitions at the start and at the end")
    return state


def _topic_states(d: Fields) -> dict[str, TopicState]:
    states = {name: _topic_state(state) for name, state in d.mapping("topics").items()}
    for name, raised in (d.mapping("raised") if d.has("raised") else {}).items():
        lag_ms, raised_ms = _numbers(raised, "raised", below=END_OF_TIME_MS)
        states[name] = replace(states[name], lag_ms=lag_ms, raised_ms=raised_ms)
    return states


def _progress_record(d: Fields) -> ProgressRecord:
    return ProgressRecord(
        pipeline=d.text("pipeline"),
        query_id=d.text("query_id"),
        batch_id=d.number("batch_id", least=-1),
        source=d.text("source"),
        timeline=d.number("timeline"),
        commit_lsn=d.number("commit_lsn"),
        run=d.text("run") if d.has("run") else "",
        topics=_topic_states(d) if d.has("topics") else {},
        state=d.text("state") if d.has("state") else "",
    )


def _marker(d: Fields) -> Marker:
    return Marker(d.number("lsn"), d.number("offset"))


def _open_transaction(d: Fields) -> OpenTransaction:
    return OpenTransaction(
        xid=d.number("xid"),
        commit_lsn=d.number_or_none("commit_lsn"),
        since_ms=d.moment("since"),
        expected=d.counts("expected"),
        received=d.counts("received"),
        hint=d.text("hint"),
        places=d.places(),
    )


def _differences(values: Iterable[int], start: int = 0) -> list[int]:
    result = []
    for value in values:
        result.append(value - start)
        start = value
    return result


def _sums(differences: Sequence[int], start: int = 0) -> list[int]:
    return list(accumulate(differences, initial=start))[1:]


def dump(fields: dict[str, Any]) -> bytes:
    """Encodes a record's fields as compact JSON."""
    return msgspec.json.encode(fields)


_UNREADABLE = (ValueError, KeyError, RecursionError, msgspec.MsgspecError)


def load(kind: str, data: bytes, build: Callable[[Fields], T]) -> T:
    """Decodes a record of a kind; raises like :func:`decode_cut`."""
    try:
        fields = Fields(msgspec.json.decode(data))
        version = fields.number("v")
        if version > PROTOCOL_VERSION:
            raise unsupported_version(kind, version, PROTOCOL_VERSION)
        return build(fields)
    except _UNREADABLE as error:
        raise _malformed(kind, data, error) from error


def _malformed(kind: str, data: bytes, error: Exception) -> MalformedRecordError:
    return MalformedRecordError(kind, f"{type(error).__name__}: {error} in {data[:200]!r}")
