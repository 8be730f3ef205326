"""The one codec of everything Slackwater publishes: compact JSON, versioned.

Golden vectors are in ``tests/vectors``. Transaction tables are coded as three columns of differences, so
that a cut of 10,000 transactions takes about 100 KB. Every decoder refuses versions it does not know.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar

from slackwater_protocol.commit_record import BatchHeader, CommitRecord, OffsetRange, ProgressRecord
from slackwater_protocol.cut import CommittedTransaction, Cut
from slackwater_protocol.decision import SkipDecision, TimelineDecision
from slackwater_protocol.errors import MalformedRecordError, UnsupportedVersionError
from slackwater_protocol.marker import AheadMarkers, Marker, OpenTransaction

PROTOCOL_VERSION = 2
"""2 added ``skipped``, ``places``, and the records of the cut log that are no cuts."""

LogRecord = Cut | AheadMarkers | SkipDecision | TimelineDecision
"""What may stand in a cut log."""

T = TypeVar("T")


def encode_cut(cut: Cut) -> bytes:
    """One cut, as in the cut log and in the Redis stream."""
    return _dump(
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
        }
    )


def decode_cut(data: bytes) -> Cut:
    """Inverse of :func:`encode_cut`.

    Raises:
        MalformedRecordError: no cut.
        UnsupportedVersionError: written by a newer version.
    """
    return _load("cut", data, _cut)


def encode_log_record(record: LogRecord) -> bytes:
    """Anything that stands in a cut log; a cut as :func:`encode_cut` has it."""
    if isinstance(record, Cut):
        return encode_cut(record)
    if isinstance(record, AheadMarkers):
        return _dump({"v": PROTOCOL_VERSION, "kind": "markers", **_ahead_fields(record)})
    kind = "skip" if isinstance(record, SkipDecision) else "timeline"
    return _dump({"v": PROTOCOL_VERSION, "kind": kind, **asdict(record)})


def decode_log_record(data: bytes) -> LogRecord:
    """Inverse of :func:`encode_log_record`; raises like :func:`decode_cut`."""
    return _load("record of the cut log", data, _log_record)


def encode_batch_header(header: BatchHeader) -> bytes:
    """A batch header, as it travels through a query."""
    return _dump(
        {
            "v": PROTOCOL_VERSION,
            "source": header.source,
            "timeline": header.timeline,
            "from": header.from_lsn,
            "to": header.to_lsn,
            "commit_ts": header.commit_ts_ms,
            "events": header.event_count,
            "xids": _differences(t[0] for t in header.transactions),
            "lsns": _differences((t[1] for t in header.transactions), header.from_lsn),
            "times": _differences(t[2] for t in header.transactions),
            "skipped": header.skipped,
        }
    )


def decode_batch_header(data: bytes) -> BatchHeader:
    """Inverse of :func:`encode_batch_header`; raises like :func:`decode_cut`."""
    return _load("batch header", data, _batch_header)


def encode_commit_record(record: CommitRecord) -> bytes:
    """The value of a record in a commit topic.

    Written piece by piece: a sink that emits every commit writes hundreds of thousands in a batch.
    """
    xid = "null" if record.xid is None else record.xid
    offsets = ",".join([f"{_text(topic)}:{_ranges(ranges)}" for topic, ranges in record.offsets.items()])
    skipped = ",".join(map(str, record.skipped))
    return (
        f'{{"v":{PROTOCOL_VERSION},"pipeline":{_text(record.pipeline)},"source":{_text(record.source)},'
        f'"timeline":{record.timeline},"commit_lsn":{record.commit_lsn},'
        f'"previous_lsn":{record.previous_lsn},"xid":{xid},"commit_ts":{record.commit_ts_ms},'
        f'"offsets":{{{offsets}}},"skipped":[{skipped}]}}'
    ).encode()


def _ranges(ranges: Mapping[int, OffsetRange]) -> str:
    items = [f'"{p}":[{r.count},{r.first_offset},{r.last_offset}]' for p, r in ranges.items()]
    return "{" + ",".join(items) + "}"


@lru_cache(maxsize=256)
def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def decode_commit_record(data: bytes) -> CommitRecord:
    """Inverse of :func:`encode_commit_record`; raises like :func:`decode_cut`."""
    return _load("commit record", data, _commit_record)


def encode_progress_record(record: ProgressRecord) -> bytes:
    """The value of a record in a progress topic."""
    return _dump(
        {
            "v": PROTOCOL_VERSION,
            "pipeline": record.pipeline,
            "query_id": record.query_id,
            "batch_id": record.batch_id,
            "source": record.source,
            "timeline": record.timeline,
            "commit_lsn": record.commit_lsn,
        }
    )


def decode_progress_record(data: bytes) -> ProgressRecord:
    """Inverse of :func:`encode_progress_record`; raises like :func:`decode_cut`."""
    return _load("progress record", data, _progress_record)


def encode_marker(marker: Marker) -> bytes:
    """A field of the ``markers`` hash.

    By a template: a cut of a thousand partitions has a thousand of them.
    """
    return (
        f'{{"v":{PROTOCOL_VERSION},"lsn":{marker.safe_commit_lsn},"offset":{marker.safe_offset}}}'
    ).encode()


def decode_marker(data: bytes) -> Marker:
    """Inverse of :func:`encode_marker`; raises like :func:`decode_cut`."""
    return _load("marker", data, lambda d: Marker(d["lsn"], d["offset"]))


def encode_open_transaction(transaction: OpenTransaction) -> bytes:
    """A field of the ``open`` hash."""
    return _dump(
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
    """Inverse of :func:`encode_open_transaction`; raises like :func:`decode_cut`."""
    return _load("open transaction", data, _open_transaction)


def _cut(d: dict[str, Any]) -> Cut:
    columns = _sums(d["xids"]), _sums(d["lsns"], d["previous"]), _sums(d["times"])
    return Cut(
        source=d["source"],
        timeline=d["timeline"],
        lsn=d["lsn"],
        previous_lsn=d["previous"],
        commit_ts_ms=d["commit_ts"],
        event_count=d["events"],
        transactions=tuple(CommittedTransaction(*row) for row in zip(*columns, strict=True)),
        end_offsets={topic: tuple(offsets) for topic, offsets in d["end"].items()},
        transaction_offset=d["tx_end"],
        repeated=frozenset(d["repeated"]),
        skipped=tuple(d.get("skipped", ())),
        late_snapshots=tuple(d.get("late_snapshots", ())),
        has_incremental_rows=d.get("incremental", False),
    )


def _log_record(d: dict[str, Any]) -> LogRecord:
    kind, fields = d.get("kind", "cut"), {k: v for k, v in d.items() if k not in ("v", "kind")}
    if kind == "cut":
        return _cut(d)
    if kind == "markers":
        return _ahead(d)
    if kind == "skip":
        return SkipDecision(**fields)
    if kind == "timeline":
        return TimelineDecision(**fields)
    raise MalformedRecordError("record of the cut log", f"kind is {kind!r}")


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


def _ahead(d: dict[str, Any]) -> AheadMarkers:
    columns = _sums(d["xids"]), _sums(d["lsns"], d["previous"]), _sums(d["times"])
    return AheadMarkers(
        source=d["source"],
        timeline=d["timeline"],
        lsn=d["lsn"],
        previous_lsn=d["previous"],
        transactions=tuple(CommittedTransaction(*row) for row in zip(*columns, strict=True)),
        markers={(topic, partition): Marker(lsn, offset) for topic, partition, lsn, offset in d["markers"]},
        repeated=frozenset(d["repeated"]),
    )


def _batch_header(d: dict[str, Any]) -> BatchHeader:
    columns = _sums(d["xids"]), _sums(d["lsns"], d["from"]), _sums(d["times"])
    return BatchHeader(
        source=d["source"],
        timeline=d["timeline"],
        from_lsn=d["from"],
        to_lsn=d["to"],
        commit_ts_ms=d["commit_ts"],
        event_count=d["events"],
        transactions=tuple(zip(*columns, strict=True)),
        skipped=tuple(d.get("skipped", ())),
    )


def _commit_record(d: dict[str, Any]) -> CommitRecord:
    return CommitRecord(
        pipeline=d["pipeline"],
        source=d["source"],
        timeline=d["timeline"],
        commit_lsn=d["commit_lsn"],
        previous_lsn=d["previous_lsn"],
        xid=d["xid"],
        commit_ts_ms=d["commit_ts"],
        offsets={
            topic: {int(p): OffsetRange(*r) for p, r in ranges.items()}
            for topic, ranges in d["offsets"].items()
        },
        skipped=tuple(d.get("skipped", ())),
    )


def _progress_record(d: dict[str, Any]) -> ProgressRecord:
    return ProgressRecord(
        pipeline=d["pipeline"],
        query_id=d["query_id"],
        batch_id=d["batch_id"],
        source=d["source"],
        timeline=d["timeline"],
        commit_lsn=d["commit_lsn"],
    )


def _open_transaction(d: dict[str, Any]) -> OpenTransaction:
    return OpenTransaction(
        xid=d["xid"],
        commit_lsn=d["commit_lsn"],
        since_ms=d["since"],
        expected=d["expected"],
        received=d["received"],
        hint=d["hint"],
        places={place: (first, position) for place, (first, position) in d.get("places", {}).items()},
    )


def _differences(values: Iterable[int], start: int = 0) -> list[int]:
    result = []
    for value in values:
        result.append(value - start)
        start = value
    return result


def _sums(differences: Sequence[int], start: int = 0) -> list[int]:
    return list(accumulate(differences, initial=start))[1:]


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _load(kind: str, data: bytes, build: Callable[[dict[str, Any]], T]) -> T:
    try:
        fields = json.loads(data)
        version = fields["v"]
        if not isinstance(version, int):
            raise MalformedRecordError(kind, f"version is {version!r}")
        if version > PROTOCOL_VERSION:
            raise UnsupportedVersionError(kind, version, PROTOCOL_VERSION)
        return build(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedRecordError(kind, f"{type(error).__name__}: {error} in {data[:200]!r}") from error
