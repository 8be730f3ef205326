"""The codec of everything that Slackwater publishes: compact JSON with a version.

The form of each record is declared, by its class or by the struct of its fields here: what has another form
never becomes a record. Golden vectors are in ``tests/vectors``. Transaction tables are coded as three columns
of differences, so that a cut of 10,000 transactions takes about 100 KB. Every decoder refuses versions that
it does not know.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from enum import StrEnum
from functools import lru_cache, partial
from importlib.resources import files
from itertools import accumulate, chain, pairwise
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Meta, field

from slackwater.protocol.clock import END_OF_TIME_MS
from slackwater.protocol.errors import InputError, MalformedRecordError
from slackwater.protocol.records import (
    AheadMarkers,
    CommitRecord,
    CommittedTransaction,
    Count,
    Cut,
    LogRecord,
    Marker,
    Moment,
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
_SEVERAL: Final = (tuple, list, frozenset)
_OUT_OF_RANGE: Final = re.compile(r"Expected `int` [<>]=? -?\d+ - at `\$\.(.+)`")

_Version = Annotated[int, Meta(ge=0, le=PROTOCOL_VERSION)]
_AtLeastMinus1 = Annotated[int, Meta(ge=-1)]

T = TypeVar("T")


def encode_cut(cut: Cut) -> bytes:
    """Encodes a cut, as in the cut log and in the Redis stream."""
    return dump(
        {
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


def encode_log_record(record: LogRecord) -> bytes:
    """Encodes a record of a cut log; a cut as :func:`encode_cut` does."""
    if isinstance(record, Cut):
        return encode_cut(record)
    if isinstance(record, AheadMarkers):
        return dump(_ahead_fields(record), "markers")
    return _OTHER_LOG_RECORDS.encode(record)


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


def encode_progress_record(record: ProgressRecord) -> bytes:
    """Encodes the value of a record in a progress topic."""
    topics = {name: [t.topic_id, t.start, t.end] for name, t in record.topics.items()}
    raised = {name: [t.lag_ms, t.raised_ms] for name, t in record.topics.items() if t.lag_ms is not None}
    views = {name: t.views for name, t in record.topics.items() if t.views}
    return _encoded(_ProgressFields, record, topics=topics, raised=raised, views=views)


def encode_marker(marker: Marker) -> bytes:
    """Encodes a field of the ``markers`` hash.

    It fills a template: a cut of a thousand partitions has a thousand of them.
    """
    return (
        f'{{"v":{PROTOCOL_VERSION},"lsn":{marker.safe_commit_lsn},"offset":{marker.safe_offset}}}'
    ).encode()


def encode_open_transaction(transaction: OpenTransaction) -> bytes:
    """Encodes a field of the ``open`` hash."""
    return _encoded(_OpenFields, transaction)


def _encoded(form: type["_Fields"], record: Any, **others: Any) -> bytes:
    """Encodes a record with the members of its form, of which some are others than its own."""
    own = {each.name: getattr(record, each.name) for each in fields(record)}
    return dump(msgspec.to_builtins(form(v=PROTOCOL_VERSION, **(own | others))))


def _members(found: "_Fields") -> dict[str, Any]:
    members = msgspec.structs.asdict(found)
    _check_sizes(members.values())
    del members["v"]
    return members


class _Fields(msgspec.Struct, kw_only=True, gc=False):
    """What every record has on the wire."""

    v: _Version


class _AnyVersion(msgspec.Struct):
    v: int


class _KindOf(_Fields):
    kind: str = "cut"


class _TableFields(_Fields):
    """The transaction table, as columns of differences."""

    source: str
    timeline: Count
    lsn: Count
    previous_lsn: Count = field(name="previous")
    xids: list[int]
    lsns: list[int]
    times: list[int]
    repeated: frozenset[Count]

    def members(self) -> dict[str, Any]:
        """Returns the record's fields, with the rows of the table: xid, commit LSN, commit time."""
        found = _members(self)
        columns = (
            _sums(found.pop("xids"), "xids"),
            _sums(found.pop("lsns"), "lsns", self.previous_lsn),
            _sums(found.pop("times"), "times", below=END_OF_TIME_MS),
        )
        rows = tuple(CommittedTransaction(*row) for row in zip(*columns, strict=True))
        return {**found, "transactions": rows}


class _CutFields(_TableFields):
    commit_ts_ms: Moment = field(name="commit_ts")
    event_count: Count = field(name="events")
    end_offsets: dict[str, tuple[Count, ...]] = field(name="end")
    transaction_offset: Count = field(name="tx_end")
    skipped: tuple[Count, ...] = ()
    late_snapshots: tuple[Count, ...] = ()
    has_incremental_rows: bool = field(name="incremental", default=False)
    without_snapshot: tuple[str, ...] = field(name="no_snapshot", default=())
    barrier_lsn: Count = field(name="barrier", default=0)
    ended_ms: Moment = field(name="ended", default=0)


class _AheadFields(_TableFields):
    markers: list[tuple[str, Count, Count, Count]]


class _CommitFields(_Fields):
    """A commit record as it is written: consumers read one for every few documents."""

    pipeline: str
    source: str
    timeline: Count
    commit_lsn: Count
    previous_lsn: Count
    xid: Count | None
    commit_ts_ms: Moment = field(name="commit_ts")
    offsets: dict[str, dict[int, tuple[Count, Count, Count]]]
    skipped: tuple[Count, ...] = ()
    id: str = ""
    commit_ts_ns: int | msgspec.UnsetType = msgspec.UNSET
    record_count: int = -1
    record_counts: dict[str, int] = {}
    schemas: dict[str, tuple[str, ...]] = {}


class _ProgressFields(_Fields, omit_defaults=True):
    pipeline: str
    query_id: str
    batch_id: _AtLeastMinus1
    source: str
    timeline: Count
    commit_lsn: Count
    run: str = ""
    topics: dict[str, tuple[str, tuple[Count, ...], tuple[Count, ...]]] = {}
    raised: dict[str, tuple[Moment, Moment]] = {}
    views: dict[str, tuple[str, ...]] = {}
    state: str = ""
    root: str = ""
    first_lsn: Count = 0


class _MarkerFields(_Fields):
    safe_commit_lsn: Count = field(name="lsn")
    safe_offset: Count = field(name="offset")


class _OpenFields(_Fields):
    xid: Count
    commit_lsn: Count | None
    since_ms: Moment = field(name="since")
    expected: dict[str, Count]
    received: dict[str, Count]
    hint: str
    places: dict[str, tuple[_AtLeastMinus1, _AtLeastMinus1]] = {}


_KIND = msgspec.json.Decoder(_KindOf)
_CUT = msgspec.json.Decoder(_CutFields)
_AHEAD = msgspec.json.Decoder(_AheadFields)
_COMMIT = msgspec.json.Decoder(_CommitFields)
_PROGRESS = msgspec.json.Decoder(_ProgressFields)
_MARKER = msgspec.json.Decoder(_MarkerFields)
_OPEN = msgspec.json.Decoder(_OpenFields)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VERSION = msgspec.json.Decoder(_AnyVersion)


class DeclaredRecords(Generic[T]):
    """The codec of records whose classes are their form on the wire; every one of their fields is written.

    Args:
        what: What the records are, for errors.
        kinds: The class of each kind; with one kind that is empty, the records do not name it.
        added: Fields that records of older versions do not have.
    """

    def __init__(self, what: str, kinds: Mapping[str, type[Any]], added: Iterable[str] = ()) -> None:
        self._what = what
        self._added = frozenset(added)
        self._names = {record: kind for kind, record in kinds.items()}
        self._decoders = {kind: msgspec.json.Decoder(record) for kind, record in kinds.items()}
        self._required = {
            kind: {each.name for each in fields(record)} - self._added for kind, record in kinds.items()
        }

    def encode(self, record: T) -> bytes:
        """Encodes a record."""
        return dump(asdict(record), self._names[type(record)])  # type: ignore[call-overload]

    def kind(self, record: T) -> str:
        """Returns the kind of a record."""
        return self._names[type(record)]

    def decode(self, data: bytes) -> T:
        """Decodes a record; raises like :func:`decode_cut`."""
        return _read(self._what, self.decode_known, data)

    def decode_known(self, data: bytes) -> T:
        """Decodes a record of a known version; raises what the caller turns into an error."""
        kind = _KIND.decode(data).kind  # and checks the version
        if "" in self._decoders:
            kind = ""
        if kind not in self._decoders:
            raise ValueError(f"kind is {kind!r}")
        members = _MEMBERS.decode(data)
        if missing := self._required[kind].difference(members):
            raise ValueError(f"{min(missing)} is missing")
        if any(bytes(members.get(name, b"")) == b"null" for name in self._added):
            raise ValueError("what is not known must not be there")
        found: T = self._decoders[kind].decode(data)
        _check_sizes(asdict(found).values())  # type: ignore[call-overload]
        return found


_OTHER_LOG_RECORDS: DeclaredRecords[SkipDecision | TimelineDecision | PassDecision | Refusal] = (
    DeclaredRecords(
        "record of the cut log",
        {"skip": SkipDecision, "timeline": TimelineDecision, "pass": PassDecision, "refused": Refusal},
    )
)


def _log_record(data: bytes) -> LogRecord:
    kind = _KIND.decode(data).kind
    if kind == "cut":
        return _cut(data)
    return _ahead(data) if kind == "markers" else _OTHER_LOG_RECORDS.decode_known(data)


def _cut(data: bytes) -> Cut:
    return Cut(**_CUT.decode(data).members())


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


def _ahead(data: bytes) -> AheadMarkers:
    members = _AHEAD.decode(data).members()
    markers = {(topic, number): Marker(*each) for topic, number, *each in members.pop("markers")}
    return AheadMarkers(markers=markers, **members)


def _commit_record(data: bytes) -> CommitRecord:
    d = _COMMIT.decode(data)
    commit_ts_ns = None if d.commit_ts_ns is msgspec.UNSET else d.commit_ts_ns
    numbers = [d.timeline, d.commit_lsn, d.previous_lsn, d.xid or 0, *d.skipped]
    ranges = [held for partitions in d.offsets.values() for held in partitions.values()]
    _check_range([*numbers, *chain.from_iterable(ranges)], "a field")
    record = CommitRecord(
        pipeline=d.pipeline,
        source=d.source,
        timeline=d.timeline,
        commit_lsn=d.commit_lsn,
        previous_lsn=d.previous_lsn,
        xid=d.xid,
        commit_ts_ms=d.commit_ts_ms,
        offsets={
            topic: {partition: OffsetRange(*held) for partition, held in partitions.items()}
            for topic, partitions in d.offsets.items()
        },
        skipped=d.skipped,
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


def _progress_record(data: bytes) -> ProgressRecord:
    members = _members(_PROGRESS.decode(data))
    raised, topics, views = (members.pop(name) for name in ("raised", "topics", "views"))
    states = {}
    for name, (topic_id, start, end) in topics.items():
        if len(start) != len(end):
            raise ValueError(f"topic {name} has different partitions at the start and at the end")
        lag_ms, raised_ms = raised.get(name, (None, 0))
        states[name] = TopicState(topic_id, start, end, lag_ms, raised_ms, views.get(name, ()))
    return ProgressRecord(topics=states, **members)


def _marker(data: bytes) -> Marker:
    found = _MARKER.decode(data)
    _check_sizes((found.safe_commit_lsn, found.safe_offset))
    return Marker(found.safe_commit_lsn, found.safe_offset)


def _open_transaction(data: bytes) -> OpenTransaction:
    return OpenTransaction(**_members(_OPEN.decode(data)))


def _differences(values: Iterable[int], start: int = 0) -> list[int]:
    return [value - before for before, value in pairwise(chain((start,), values))]


def _sums(differences: Sequence[int], name: str, start: int = 0, below: int = _TOO_LARGE) -> list[int]:
    found = list(accumulate(differences, initial=start))[1:]
    _check_range(found, name, below)
    return found


def _check_range(numbers: Sequence[int], name: str, below: int = _TOO_LARGE) -> None:
    """Checks numbers; a list of thousands is checked without a loop."""
    if numbers and not (min(numbers) >= 0 and max(numbers) < below):
        raise ValueError(f"{name} holds a number out of range")


def _check_sizes(values: Iterable[Any]) -> None:
    """Refuses numbers that 64 bits cannot hold, which no declaration of a type can do."""
    for value in values:
        kind = type(value)
        if kind is dict:
            _check_sizes(value.values())
        elif kind in _SEVERAL and value:
            if {int}.issuperset(map(type, value)):  # thousands are checked without a loop
                value = max(value)
            else:
                _check_sizes(value)
        if type(value) is int and value >= _TOO_LARGE:
            raise ValueError("a field holds a number out of range")


def dump(members: Mapping[str, Any], kind: str = "") -> bytes:
    """Encodes a record's fields as compact JSON."""
    return msgspec.json.encode({"v": PROTOCOL_VERSION, **({"kind": kind} if kind else {}), **members})


_UNREADABLE = (ValueError, KeyError, RecursionError, msgspec.MsgspecError)


def _read(what: str, decode: Callable[[bytes], T], data: bytes) -> T:
    """Decodes a record; what a newer version has changed is no damage."""
    try:
        return decode(data)
    except _UNREADABLE as error:
        try:
            version = _VERSION.decode(data).v
        except _UNREADABLE:
            version = 0
        if PROTOCOL_VERSION < version < _TOO_LARGE:
            known = f"but this version reads up to {PROTOCOL_VERSION}"
            problem = f"{what} has protocol version {version}, {known}"
            raise InputError(problem, "upgrade the readers before the sidecar") from error
        reason = _OUT_OF_RANGE.sub(r"\1 holds a number out of range", str(error))
        raise MalformedRecordError(what, f"{type(error).__name__}: {reason} in {data[:200]!r}") from error


decode_cut = partial(_read, "cut", _cut)
"""Decodes a cut.

Raises:
    MalformedRecordError: The bytes are not a cut.
    InputError: A newer version wrote it.
"""
decode_log_record = partial(_read, "record of the cut log", _log_record)
"""Decodes a record of a cut log; raises like :func:`decode_cut`, as the others do."""
decode_commit_record = partial(_read, "commit record", _commit_record)
decode_progress_record = partial(_read, "progress record", _progress_record)
decode_marker = partial(_read, "marker", _marker)
decode_open_transaction = partial(_read, "open transaction", _open_transaction)


class SchemaLanguage(StrEnum):
    """The languages in which the schema of commit records is shipped, for readers in any language."""

    JSON = "json"
    """JSON Schema, draft 2020-12, of the values in commit topics."""
    AVRO = "avro"
    """Avro, record ``commit``, of the values in topics of commit records in Avro."""


_FILES = {SchemaLanguage.JSON: "commit.schema.json", SchemaLanguage.AVRO: "commit.avsc"}


def commit_schema(language: SchemaLanguage) -> str:
    """Returns the schema of a commit record, as JSON text."""
    return files("slackwater.protocol").joinpath("schemas", _FILES[language]).read_text("utf-8")
