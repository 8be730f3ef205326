"""Judges outputs by SQL that is true of every committed state, without LSNs or change topics."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from slackwater_certify.canonical import DocumentKey, DocumentReader, UnreadableValueError
from slackwater_certify.certificate import Findings, Kind
from slackwater_certify.errors import wrong_key
from slackwater_certify.history import UNREADABLE
from slackwater_certify.output import Commit, Output, describe
from slackwater_certify.specification import Invariant, Scope, Specification
from slackwater_certify.view import connect, quoted

BATCH = 5_000
MAX_STATES = 2_000
"""The most states that are judged; if there are more, they are sampled evenly."""

_ENCODE = msgspec.json.Encoder(enc_hook=str).encode
_DECODE = msgspec.json.Decoder(float_hook=str).decode


class InvariantJudge:
    """Judges each document as it arrives, and all states at the end."""

    def __init__(self, specification: Specification, reader: DocumentReader, findings: Findings) -> None:
        self._reader = reader
        self._findings = findings
        self._connection = connect()
        self._file = str(specification.file)
        self._invariants = specification.invariants
        self._batch: list[tuple[Output, str]] = []
        self._kept: list[_Kept] = []
        fields = {column.name: str(column.type) for column in reader.columns}
        self._structure = msgspec.json.encode(fields).decode()
        self._nested = {column.name for column in reader.columns if column.shape.children}
        self._columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in fields.items())
        self.largest_error = 0.0
        self.states = 0
        """The number of states of the whole output that were judged."""
        self.thinned = 0
        """The number of states that were left out."""

    def close(self) -> None:
        """Frees the database."""
        self._connection.close()

    def judge(self, outputs: Iterable[Output]) -> Iterator[Output]:
        """Judges outputs, and yields them."""
        by_document = self._of(Scope.DOCUMENT)
        keep = bool(self._of(Scope.STATE))
        for output in outputs:
            if keep:
                self._keep(output)
            if by_document and output.problem is None and output.document is not None:
                self._batch.append((output, self._text(output.document)))
                if len(self._batch) >= BATCH:
                    self._judge_batch()
            yield output
        self._judge_batch()

    def judge_states(self, commits: Sequence[Commit], snapshots: Sequence[int] | None) -> None:
        """Judges the whole output at every commit record, at every snapshot, or whenever time advances."""
        if not self._kept:
            return
        self._connection.execute(f"CREATE OR REPLACE TABLE output (_id BIGINT, {self._columns})")
        self._connection.execute("CREATE OR REPLACE TABLE latest AS FROM output LIMIT 0")
        states = _states(self._kept, commits, snapshots)
        chosen = _thinned(len(states))
        self.thinned = len(states) - len(chosen)
        ids: dict[DocumentKey, int] = {}
        pending: dict[DocumentKey, str | None] = {}
        for number, (text, changes) in enumerate(states):
            pending.update((change.key, change.document) for change in changes)
            if number in chosen:
                self._apply(pending, ids)
                self._judge_state(text)
                pending = {}

    def _of(self, scope: Scope) -> list[tuple[int, Invariant]]:
        return [each for each in enumerate(self._invariants) if each[1].scope is scope]

    def _keep(self, output: Output) -> None:
        if output.problem is not None:
            return
        try:
            if output.document is None:
                key = self._reader.read_key(output.key)
            else:
                key = self._reader.key_of(self._reader.document(output.document))
        except UnreadableValueError:
            return  # counted as torn
        document = None if output.document is None else self._text(output.document)
        self._kept.append(_Kept(output.place, output.visible_ms, key, document))

    def _text(self, document: Mapping[str, Any]) -> str:
        """Returns a document as JSON; lists and structs that are texts, as in change events, are decoded."""
        values = dict(document)
        for name in self._nested:
            if isinstance(values.get(name), str):
                with suppress(*UNREADABLE):
                    values[name] = _DECODE(values[name])
        return _ENCODE(values).decode()

    def _judge_batch(self) -> None:
        if not self._batch:
            return
        numbers, texts = range(len(self._batch)), [text for _, text in self._batch]
        self._connection.register("batch", pa.table({"_n": pa.array(numbers, pa.int64()), "_text": texts}))
        self._connection.execute(
            "CREATE OR REPLACE TEMP TABLE documents AS SELECT _n, unnest(document) FROM "
            "(SELECT _n, json_transform(_text, ?) AS document FROM batch)",
            [self._structure],
        )
        for number, invariant in self._of(Scope.DOCUMENT):
            error = f"CAST(({invariant.error}) AS DOUBLE)" if invariant.error else "NULL"
            query = f"SELECT _n, {error} FROM documents WHERE ({invariant.holds}) IS NOT TRUE ORDER BY _n"  # noqa: S608 - quoted names, and the user's own SQL
            for position, amount in self._rows(query, number):
                self._violation(self._batch[position], invariant.name, amount)
        self._batch.clear()

    def _violation(self, judged: tuple[Output, str], name: str, amount: float | None) -> None:
        output, text = judged
        self.largest_error = max(self.largest_error, abs(amount or 0.0))
        try:
            key = self._reader.key_of(self._reader.document(output.document or {}))
        except UnreadableValueError:
            key = None
        self._findings.add(Kind.INVARIANT_VIOLATIONS, f"{describe(output, key)} breaks {name!r}: {text}")

    def _apply(self, pending: dict[DocumentKey, str | None], ids: dict[DocumentKey, int]) -> None:
        if not pending:
            return
        numbers = [ids.setdefault(key, len(ids)) for key in pending]
        changes = pa.table(
            {"_id": pa.array(numbers, pa.int64()), "_text": pa.array(pending.values(), pa.string())}
        )
        self._connection.register("changes", changes)
        self._connection.execute("DELETE FROM output WHERE _id IN (SELECT _id FROM changes)")
        self._connection.execute(
            "INSERT INTO output SELECT _id, unnest(document) FROM "
            "(SELECT _id, json_transform(_text, ?) AS document FROM changes WHERE _text IS NOT NULL)",
            [self._structure],
        )

    def _judge_state(self, text: str) -> None:
        self.states += 1
        for number, invariant in self._of(Scope.STATE):
            if not all(row and row[0] is True for row in self._rows(invariant.holds, number)):
                self._findings.add(Kind.INVARIANT_VIOLATIONS, f"the state {text} breaks {invariant.name!r}")
                if invariant.error:
                    amounts = [
                        float(row[0]) for row in self._rows(invariant.error, number) if row[0] is not None
                    ]
                    self.largest_error = max([self.largest_error, *map(abs, amounts)])

    def _rows(self, query: str, number: int) -> list[Any]:
        try:
            return self._connection.execute(query).fetchall()
        except duckdb.Error as error:
            key = f"invariant[{number}]"
            raise wrong_key(self._file, key, f"DuckDB refuses it: {error}") from error


@dataclass(frozen=True, slots=True)
class _Kept:
    place: tuple[int, int]
    visible_ms: int
    key: DocumentKey
    document: str | None


State = tuple[str, list[_Kept]]


def _states(kept: list[_Kept], commits: Sequence[Commit], snapshots: Sequence[int] | None) -> list[State]:
    """Divides the kept outputs into the changes from state to state."""
    if snapshots is not None:
        states: list[State] = [(f"of snapshot {number}", []) for number in range(len(snapshots))]
        for each in kept:
            states[each.place[0]][1].append(each)
        return states
    if commits:
        return _states_by_commit(kept, commits)
    by_time = groupby(sorted(kept, key=lambda one: (one.visible_ms, one.place)), lambda one: one.visible_ms)
    return [(f"at {visible_ms} ms", list(changes)) for visible_ms, changes in by_time]


def _states_by_commit(kept: list[_Kept], commits: Sequence[Commit]) -> list[State]:
    partitions: defaultdict[int, deque[_Kept]] = defaultdict(deque)
    for each in kept:
        partitions[each.place[0]].append(each)
    states: list[State] = []
    for commit in commits:
        states.append((f"of commit {commit.lsn}", []))
        for covered in commit.ranges:
            records = partitions[covered.partition]
            while records and records[0].place[1] <= covered.last:
                states[-1][1].append(records.popleft())
    return states


def _thinned(count: int) -> set[int]:
    if count <= MAX_STATES:
        return set(range(count))
    return {round(i * (count - 1) / (MAX_STATES - 1)) for i in range(MAX_STATES)}
