"""Derives documents, rows and partials from the differences between consecutive points of a key.

No result is stored: the result before a batch is evaluated again, from the rows as they were.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from slackwater.engine.evaluate.evaluators import ResultRows
from slackwater.engine.payloads import Document, Outcome, pack_change
from slackwater.sql.plan import DocumentsOutput, Edge, Output, PartialsOutput, RowsOutput

BEFORE: Final = 0
"""The LSN of the point before the batch; all commits have higher LSNs."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The rows of ``STEPS_TABLE``, column by column: what each point adds to groups and subtracts."""

    points: list[int]
    lsns: list[int]
    weights: list[int]


@dataclass(slots=True)
class ResultPoints:
    """The points at which results are wanted. Points of one key are adjacent, ascending by LSN.

    The first point of a key is the result before the batch, and only serves to compare later points with it.

    Attributes:
        groups: For each point, the number of its key.
        lsns: For each point, its commit LSN.
        fresh: The numbers of keys that had no result before, so that already their first point is a change.
    """

    groups: list[int] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    fresh: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.lsns)

    def news(self) -> Iterator[tuple[int, int, int]]:
        """Yields ``(point, previous point or -1, commit LSN)`` for each point that is to be emitted."""
        last = None
        for number, (group, lsn) in enumerate(zip(self.groups, self.lsns, strict=True)):
            if group == last:
                yield number, number - 1, lsn
            elif group in self.fresh:
                yield number, -1, lsn
            last = group

    def steps(self) -> Steps:
        """Returns what each point adds at its own LSN, and subtracts of the previous point."""
        steps = Steps([], [], [])
        for number, before, lsn in self.news():
            for point, weight in ((number, 1), (before, -1)):
                if point >= 0:
                    steps.points.append(point)
                    steps.lsns.append(lsn)
                    steps.weights.append(weight)
        return steps


Route = Callable[[ResultPoints, ResultRows, Outcome], None]
"""Adds the differences of a statement's results between consecutive points to the outcome.

The results of one key may be passed in several calls, if the last point of each call is the first of the
next.
"""


def route_of(output: Output, stage: int) -> Route:
    """Returns the route for the results of a stage's part.

    Args:
        output: The output of the part.
        stage: The number of the stage; its own partials stay in the bucket.
    """
    match output:
        case RowsOutput():
            return _RowsRoute(output)
        case DocumentsOutput():
            return _DocumentsRoute(output)
        case PartialsOutput():
            return _PartialsRoute(output, stage)


def decoded_rows(texts: Sequence[str]) -> list[tuple[Any, ...]]:
    """Reads JSON arrays of wire values, all at once."""
    return _ROWS.decode("[" + ",".join(texts) + "]")


_ROWS: Final = msgspec.json.Decoder(list[tuple[Any, ...]])


class _RowsRoute:
    """Sends rows that disappear, appear or change to the inputs that receive them."""

    def __init__(self, output: RowsOutput) -> None:
        self._identity = output.identity
        self._edges = output.edges

    def __call__(self, points: ResultPoints, rows: ResultRows, outcome: Outcome) -> None:
        changes = list(_changed_texts(points, rows))
        numbers: dict[str, int] = {}
        for _, gone, come in changes:
            for text in (*gone, *come):
                numbers.setdefault(text, len(numbers))
        wire_rows = decoded_rows(list(numbers))
        width = self._identity
        identities = [_pack(row[:width]) for row in wire_rows]
        edges = [_EdgeRows(edge, wire_rows) for edge in self._edges]
        for lsn, gone, come in changes:
            old = {identities[number]: number for number in map(numbers.__getitem__, gone)}
            new = {identities[number]: number for number in map(numbers.__getitem__, come)}
            for identity in sorted(old.keys() | new.keys()):
                for edge in edges:
                    edge.send(lsn, identity, old.get(identity), new.get(identity), outcome)


class _EdgeRows:
    """The rows that are sent over an edge, by their numbers; None for those that the edge does not send."""

    def __init__(self, edge: Edge, wire_rows: Sequence[tuple[Any, ...]]) -> None:
        self._edge = edge
        keys = [tuple([row[position] for position in edge.key]) for row in wire_rows]
        self._keys: list[bytes | None] = [
            None if None in key and not edge.keeps_null_keys else _pack(key) for key in keys
        ]
        self._rows = [_pack(tuple([row[position] for position in edge.columns])) for row in wire_rows]

    def send(self, lsn: int, identity: bytes, old: int | None, new: int | None, outcome: Outcome) -> None:
        """Sends the change of one row, unless the columns of the edge do not change."""
        edge = self._edge
        old_key = None if old is None else self._keys[old]
        new_key = None if new is None else self._keys[new]
        if old_key is not None and old_key != new_key:
            outcome.event(edge.stage, lsn, edge.input, old_key, identity, None)
        if new_key is None or new is None:
            return
        if old is None or old_key != new_key or self._rows[old] != self._rows[new]:
            outcome.event(edge.stage, lsn, edge.input, new_key, identity, self._rows[new])


class _DocumentsRoute:
    """Emits documents that disappear, appear or change."""

    def __init__(self, output: DocumentsOutput) -> None:
        self._view = output.view
        self._changed = _document_changes if output.with_before else _changed_documents

    def __call__(self, points: ResultPoints, rows: ResultRows, outcome: Outcome) -> None:
        at_points: list[dict[str, bytes] | None] = [None] * len(points)
        for point, key, document in rows:
            at_point = at_points[point]
            if at_point is None:
                at_points[point] = {key: document}
            else:
                at_point[key] = document
        documents = outcome.view(self._view)
        nothing: dict[str, bytes] = {}
        for number, before, lsn in points.news():
            old = (at_points[before] if before >= 0 else None) or nothing
            new = at_points[number] or nothing
            if old != new:
                documents += self._changed(lsn, old, new)


class _PartialsRoute:
    """Emits partials, which contain what changes add to groups."""

    def __init__(self, output: PartialsOutput, stage: int) -> None:
        self._key = output.key
        self._stage = output.stage
        self._is_own = output.stage == stage

    def __call__(self, points: ResultPoints, rows: ResultRows, outcome: Outcome) -> None:
        width = self._key
        values = decoded_rows([row[2] for row in rows])
        partials = sorted(
            (lsn, number, _pack(value[:width]), _pack(value[width:]))
            for (lsn, number, _), value in zip(rows, values, strict=True)
        )
        if self._is_own:
            outcome.partials += partials
            return
        for lsn, number, key, rest in partials:
            outcome.event(self._stage, lsn, number, key, b"", rest)


def _changed_texts(points: ResultPoints, rows: ResultRows) -> Iterator[tuple[int, set[str], set[str]]]:
    """Yields the LSN of each point that differs from the previous one, what disappeared and what appeared."""
    at_points: list[set[str] | None] = [None] * len(points)
    for point, text in rows:
        at_point = at_points[point]
        if at_point is None:
            at_points[point] = {text}
        else:
            at_point.add(text)
    nothing: set[str] = set()
    for number, before, lsn in points.news():
        old = (at_points[before] if before >= 0 else None) or nothing
        new = at_points[number] or nothing
        if old != new:
            yield lsn, old - new, new - old


def _changed_documents(lsn: int, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Iterator[Document]:
    for key in sorted(old.keys() | new.keys()):
        document = new.get(key)
        if old.get(key) != document:
            yield lsn, key.encode(), document


def _document_changes(lsn: int, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Iterator[Document]:
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before != after:
            yield lsn, key.encode(), pack_change(before, after)


_pack = msgspec.msgpack.Encoder().encode
