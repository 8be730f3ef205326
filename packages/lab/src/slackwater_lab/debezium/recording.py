"""Topics as a consumer found them: kept in a file, and read again in any order; and the judge of cuts.

The oracle judges cuts by what is in the topics, independently of how they were found.
"""

import gzip
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from slackwater.cdc.frontier import Frontier
from slackwater.cdc.postgres import parse_transaction_id
from slackwater.protocol import SNAPSHOT_XID, Cut
from slackwater.protocol.keys import notification_topic, transaction_topic

Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(slots=True)
class Oracle:
    """Knows every row of every commit and all places where it is."""

    commits: list[tuple[int, int]] = field(default_factory=list)
    """(commit LSN, xid) of all commits with rows, in commit order."""
    places: dict[int, dict[object, list[Place]]] = field(default_factory=dict)
    """Commit LSN, then row, to the places of the row."""

    def add_commit(self, xid: int, commit_lsn: int) -> None:
        self.commits.append((commit_lsn, xid))
        self.places.setdefault(commit_lsn, {})

    def add_row(self, commit_lsn: int, row: object, place: Place) -> None:
        """Declares that a row is somewhere; once more for each repeat."""
        self.places.setdefault(commit_lsn, {}).setdefault(row, []).append(place)

    def complaints(self, cuts: Sequence[Cut], start: Cut | None = None) -> list[str]:
        """Everything that is wrong with a chain of cuts that continues from ``start``."""
        found: list[str] = []
        previous = start
        for cut in cuts:
            found += self._chain(cut, previous)
            found += self._table(cut)
            found += self._rows(cut, previous)
            previous = cut
        found += self._repeats(cuts, start)
        return found

    def _chain(self, cut: Cut, previous: Cut | None) -> Iterable[str]:
        lsn = previous.lsn if previous else 0
        if cut.previous_lsn != lsn or cut.lsn <= lsn:
            yield f"cut {cut.previous_lsn}..{cut.lsn} does not follow {lsn}"
        if previous is not None and any(
            end < _end(previous.end_offsets, topic, n)
            for topic, ends in cut.end_offsets.items()
            for n, end in enumerate(ends)
        ):
            yield f"end offsets of cut {cut.lsn} go back"

    def _table(self, cut: Cut) -> Iterable[str]:
        expected = [(lsn, xid) for lsn, xid in self.commits if cut.previous_lsn < lsn <= cut.lsn]
        actual = [(t.commit_lsn, t.xid) for t in cut.transactions]
        if actual != expected:
            yield f"cut {cut.lsn} names {actual}, expected {expected}"

    def _rows(self, cut: Cut, previous: Cut | None) -> Iterable[str]:
        """Every row of a commit of the cut is in the range of the cut."""
        for lsn, _ in self.commits:
            if not cut.previous_lsn < lsn <= cut.lsn:
                continue
            for row, places in self.places[lsn].items():
                if not any(_within(p, previous, cut) for p in places):
                    yield f"row {row} of commit {lsn} is not in cut {cut.previous_lsn}..{cut.lsn}"

    def _repeats(self, cuts: Sequence[Cut], start: Cut | None) -> Iterable[str]:
        """A reader of several cuts at once meets repeated rows only of the commits that the cuts name."""
        if not cuts:
            return
        named = frozenset().union(*(c.repeated for c in cuts))
        from_lsn = start.lsn if start else 0
        for lsn, _ in self.commits:
            if from_lsn < lsn <= cuts[-1].lsn and lsn not in named:
                for row, places in self.places[lsn].items():
                    if sum(_within(p, start, cuts[-1]) for p in places) > 1:
                        yield f"row {row} of commit {lsn} is repeated, no cut says so"


def _within(place: Place, previous: Cut | None, cut: Cut) -> bool:
    topic, partition, offset = place
    return (
        _end(previous.end_offsets if previous else {}, topic, partition)
        <= offset
        < _end(cut.end_offsets, topic, partition)
    )


def _end(ends: Mapping[str, tuple[int, ...]], topic: str, partition: int) -> int:
    offsets = ends.get(topic, ())
    return offsets[partition] if partition < len(offsets) else 0


Spot = tuple[str, int]
"""Topic and partition."""
RowIdentity = tuple[int, str, str, str]
"""LSN, table, operation and key: the same change, however often it is in Kafka."""

_NULL = "null"
_ROUNDS = 20
"""How often end offsets are answered at the end of a reading."""


class RecordedRecord(NamedTuple):
    """One record. ``run`` is its header ``__debezium.context.runId``, empty when it has none."""

    offset: int
    timestamp_ms: int
    run: str
    key: bytes | None
    value: bytes | None


class LocatedRow(NamedTuple):
    """One change event in a data topic."""

    xid: int
    identity: RowIdentity
    spot: Spot
    offset: int


@dataclass(frozen=True, slots=True)
class Recording:
    """All topics of one source."""

    source: str
    topics: Mapping[Spot, Sequence[RecordedRecord]]
    ends: Mapping[Spot, int] = field(default_factory=dict)
    """End offsets, where they differ from the offset after the last record."""

    @classmethod
    def load(cls, path: Path, source: str) -> "Recording":
        topics: dict[Spot, list[RecordedRecord]] = {}
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            for line in file:
                topic, number, offset, ts_ms, run, key, value = line.rstrip("\n").split("\t")
                record = RecordedRecord(int(offset), int(ts_ms), run, _bytes(key), _bytes(value))
                topics.setdefault((topic, int(number)), []).append(record)
        return cls(source, topics)

    def save(self, path: Path) -> None:
        """Writes one record a line: topic, partition, offset, time, run, key, value; JSON has no tabs."""
        with gzip.GzipFile(path, "wb", mtime=0) as file:
            for (topic, number), records in sorted(self.topics.items()):
                for record in records:
                    place = f"{topic}\t{number}\t{record.offset}\t{record.timestamp_ms}\t{record.run}"
                    file.write(f"{place}\t{_text(record.key)}\t{_text(record.value)}\n".encode())

    def end(self, spot: Spot) -> int:
        records = self.topics.get(spot, ())
        return self.ends.get(spot, records[-1].offset + 1 if records else 0)

    def rows(self) -> Iterator[LocatedRow]:
        """All change events of transactions, as often as they are there."""
        for spot, record, document in self._changes():
            source = document["source"]
            if document.get("transaction") is not None and document["op"] != "m":
                yield LocatedRow(source["txId"], _identity(document, record.key), spot, record.offset)

    def snapshot_rows(self) -> Iterator[LocatedRow]:
        """The rows of the newest initial snapshot."""
        rows = [
            LocatedRow(SNAPSHOT_XID, _identity(document, record.key), spot, record.offset)
            for spot, record, document in self._changes()
            if document["op"] == "r" and document["source"].get("lsn") is not None
        ]
        newest = max((row.identity[0] for row in rows), default=0)
        return (row for row in rows if row.identity[0] == newest)

    def ends_of_transactions(self) -> dict[int, list[tuple[int, int]]]:
        """Returns commit LSN and number of tables' change events of each END record, by xid."""
        found: dict[int, list[tuple[int, int]]] = {}
        for record in self.topics.get((transaction_topic(self.source), 0), ()):
            document = _document(record.value)
            if document.get("status") == "END":
                xid, lsn = parse_transaction_id(document["id"])
                collections = document["data_collections"] or []
                count = sum(
                    c["event_count"]
                    for c in collections
                    if not c["data_collection"].startswith("io.debezium.")
                )
                found.setdefault(xid, []).append((lsn, count))
        return found

    def undercounted(self) -> dict[int, tuple[int, int]]:
        """Transactions of which every END counts fewer rows than are there: xid to largest count, rows."""
        rows: dict[int, set[RowIdentity]] = {}
        for row in self.rows():
            rows.setdefault(row.xid, set()).add(row.identity)
        largest = {xid: max(n for _, n in ends) for xid, ends in self.ends_of_transactions().items()}
        return {
            xid: (largest[xid], len(found))
            for xid, found in rows.items()
            if xid in largest and largest[xid] < len(found)
        }

    def oracle(self, truth: Mapping[int, Iterable[RowIdentity]] | None = None) -> Oracle:
        """Judges cuts by these topics.

        Args:
            truth: The rows of each committed xid as the database knows them; None: those found here.
        """
        oracle = Oracle()
        lsns = {xid: ends[0][0] for xid, ends in self.ends_of_transactions().items()}
        rows = [row for row in self.rows() if row.xid in lsns]
        if truth is None:
            known: dict[int, set[RowIdentity]] = {}
            for row in rows:
                known.setdefault(row.xid, set()).add(row.identity)
            truth = known
        snapshot = list(self.snapshot_rows())
        if snapshot:
            oracle.add_commit(SNAPSHOT_XID, snapshot[0].identity[0])
        for row in snapshot:
            oracle.add_row(row.identity[0], row.identity, (*row.spot, row.offset))
        for xid in sorted(truth, key=lsns.__getitem__):
            oracle.add_commit(xid, lsns[xid])
            oracle.places[lsns[xid]].update((identity, []) for identity in truth[xid])
        for row in rows:
            oracle.add_row(lsns[row.xid], row.identity, (*row.spot, row.offset))
        return oracle

    def _changes(self) -> Iterator[tuple[Spot, RecordedRecord, dict[str, Any]]]:
        others = {transaction_topic(self.source), notification_topic(self.source)}
        for spot, records in self.topics.items():
            for record in records if spot[0] not in others else ():
                document = _document(record.value)
                if document.get("op"):
                    yield spot, record, document


def follow(
    recording: Recording,
    rng: random.Random,
    *,
    transactions_first: bool = False,
    longest: int = 200,
    before: Sequence[Cut] = (),
) -> list[Cut]:
    """Returns the cuts of a frontier that reads a recording in a random interleaving of its partitions.

    Args:
        recording: The topics.
        rng: Chooses the next partition.
        transactions_first: Whether the transaction topic is read whole before any row.
        longest: At most this many records of a partition are read before the next cut.
        before: The cuts that an earlier frontier has published: it continues from the last one.
    """
    done = [transaction for cut in before for transaction in cut.transactions]
    start = before[-1] if before else None
    empty = frozenset(topic.removeprefix(f"{recording.source}.") for topic, _ in recording.topics)
    frontier = Frontier(recording.source, start=start, done=done, complete_tables=empty)
    reading = _Reading(recording, frontier, start)
    cuts: list[Cut] = []
    while left := reading.left():
        if transactions_first and (reading.transactions, 0) in left:
            left = [(reading.transactions, 0)]
        reading.read(rng.choice(left), rng.randint(1, longest))
        cuts += reading.cuts()
    for _ in range(_ROUNDS):
        reading.rest()
        cuts += reading.cuts()
    return cuts


class _Reading:
    """Feeds a frontier."""

    def __init__(self, recording: Recording, frontier: Frontier, start: Cut | None) -> None:
        self._recording = recording
        self._frontier = frontier
        self.transactions = transaction_topic(recording.source)
        self._notifications = notification_topic(recording.source)
        self._starts = {} if start is None else starts_of(start)
        self._positions = {
            spot: sum(record.offset < self._starts.get(spot, 0) for record in records)
            for spot, records in recording.topics.items()
        }
        self._ends = {spot: recording.end(spot) for spot in recording.topics}
        self._partitions = {
            (topic, number): frontier.add_partition(topic, number, self._starts.get((topic, number), 0))
            for topic, last in sorted(recording.topics)
            if topic not in (self.transactions, self._notifications)
            for number in range(last + 1)
        }

    def left(self) -> list[Spot]:
        return [spot for spot, at in self._positions.items() if at < len(self._recording.topics[spot])]

    def read(self, spot: Spot, count: int) -> None:
        first = self._positions[spot]
        records = self._recording.topics[spot][first : first + count]
        self._positions[spot] = first + len(records)
        if spot[0] == self.transactions:
            self._frontier.read_transactions((r.offset, r.value, r.timestamp_ms) for r in records)
        elif spot[0] == self._notifications:
            self._frontier.read_notifications((r.offset, r.value) for r in records)
        else:
            self._read_rows(spot, records)
        if first + len(records) == len(self._recording.topics[spot]):
            self._skip_rest(spot)

    def cuts(self) -> list[Cut]:
        self._frontier.advance()
        if self._frontier.end_offsets_wanted:
            self._frontier.end_offsets(self._ends)
            self._frontier.advance()
        return self._frontier.cuts()

    def rest(self) -> None:
        for spot in self._ends:
            self._skip_rest(spot)
        self._frontier.rest(self._ends)

    def _skip_rest(self, spot: Spot) -> None:
        """No record follows, but offsets may: ends and leavings of Kafka transactions."""
        if spot[0] == self.transactions:
            self._frontier.skip_transactions_to(self._ends[spot])
        elif spot[0] == self._notifications:
            self._frontier.skip_notifications_to(self._ends[spot])
        else:
            self._partitions[spot].skip_to(self._ends[spot])

    def _read_rows(self, spot: Spot, records: Sequence[RecordedRecord]) -> None:
        for run, group in groupby(records, key=lambda record: record.run):
            written = list(group)
            self._partitions[spot].read(
                [(r.offset, r.value) for r in written],
                run,
                timestamp_ms=written[-1].timestamp_ms,
                is_keyless=any(r.key is None and r.value is not None for r in written),
            )


def starts_of(cut: Cut) -> dict[Spot, int]:
    """Returns the offsets to read on from after a cut; notifications are read from their beginning."""
    starts = {
        (topic, number): end for topic, ends in cut.end_offsets.items() for number, end in enumerate(ends)
    }
    starts[transaction_topic(cut.source), 0] = cut.transaction_offset
    return starts


def _identity(document: Mapping[str, Any], key: bytes | None) -> RowIdentity:
    source = document["source"]
    values = "" if key is None else ",".join(str(value) for value in json.loads(key).values())
    return source["lsn"], f"{source['schema']}.{source['table']}", document["op"], values


def _document(value: bytes | None) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(value) if value else {}
    payload: dict[str, Any] = document.get("payload", document)
    return payload


def _text(data: bytes | None) -> str:
    return _NULL if data is None else data.decode()


def _bytes(text: str) -> bytes | None:
    return None if text == _NULL else text.encode()
