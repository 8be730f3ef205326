"""Evaluates keys at points, and derives documents, rows and partials from the differences between them.

No result is stored: the result before a batch is evaluated again, from the rows as they were.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from slackwater.engine.evaluate.touched_keys import Transitions
from slackwater.engine.payloads import Outcome, pack_change
from slackwater.engine.settings import PartEvaluator
from slackwater.sql.plan import DocumentsOutput, Edge, Output, PartialsOutput, RowsOutput
from slackwater.sql.row_codec import RowCodec
from slackwater.sql.stage_evaluation import OPEN_LSN, ResultPoints, ResultRows, RowVersions

BEFORE: Final = 0
"""The LSN of the point before the batch; all commits have higher LSNs."""

Route = Callable[[ResultPoints, ResultRows, Outcome], None]
"""Adds the differences of a statement's results between consecutive points to the outcome.

The results of one key may be passed in several calls, if the last point of each call is the first of the
next.
"""


def route_of(output: Output, stage: int) -> Route:
    """Returns the route for the results of a stage's part; the stage's own partials stay in the bucket."""
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
        changes = [
            (lsn, old.keys() - new.keys(), new.keys() - old.keys())
            for lsn, old, new in _differences(points, rows)
        ]
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
        self._output = output

    def __call__(self, points: ResultPoints, rows: ResultRows, outcome: Outcome) -> None:
        documents, with_before = outcome.view(self._output.view), self._output.with_before
        for lsn, old, new in _differences(points, rows):
            for key in sorted(old.keys() | new.keys()):
                before, after = old.get(key), new.get(key)
                if before != after:
                    change = pack_change(before, after) if with_before else after
                    documents.append((lsn, key.encode(), change))


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


def _differences(
    points: ResultPoints, rows: ResultRows
) -> Iterator[tuple[int, dict[str, bytes], dict[str, bytes]]]:
    """Yields LSN, earlier and new rows of each point that differs from the previous one, by key or text."""
    at_points: list[dict[str, bytes] | None] = [None] * len(points)
    for row in rows:
        at_point = at_points[row[0]]
        if at_point is None:
            at_points[row[0]] = {row[1]: row[-1]}
        else:
            at_point[row[1]] = row[-1]
    nothing: dict[str, bytes] = {}
    for number, before, lsn in points.news():
        old = (at_points[before] if before >= 0 else None) or nothing
        new = at_points[number] or nothing
        if old != new:
            yield lsn, old, new


_pack = msgspec.msgpack.Encoder().encode

MAX_ROWS_PER_CALL: Final = 200_000
"""Limits the memory of one call: the approximate number of rows, each counted for every point at which it is
live."""

RowVersion = tuple[int, bytes, int, int]
"""``(input, row, from LSN, to LSN)``: a row with the commits ``[from, to)`` between which it was live."""


def row_versions(number: int, stored: bytes | None, transitions: Transitions) -> Iterator[RowVersion]:
    """Yields the versions of a changed row of an input, including the version before the batch."""
    row, start = stored, 0
    for lsn, changed in transitions:
        if row is not None:
            yield number, row, start, lsn
        row, start = changed, lsn
    if row is not None:
        yield number, row, start, OPEN_LSN


@dataclass(slots=True)
class RowColumns:
    """Packed rows of one input, with their keys and the commits ``[from, to)`` at which they were live."""

    keys: list[int] = field(default_factory=list)
    """The numbers of the rows' keys in the call."""
    rows: list[bytes] = field(default_factory=list)
    from_lsns: list[int] = field(default_factory=list)
    to_lsns: list[int] = field(default_factory=list)
    """This column and ``from_lsns`` are empty in calls that only contain live rows."""


class Call:
    """The keys of one call, their points, and the rows of each input."""

    def __init__(self, inputs: int) -> None:
        self.keys: list[bytes] = []
        self.rows = [RowColumns() for _ in range(inputs)]
        self.points = ResultPoints()

    def add(self, key: bytes, lsns: Sequence[int] = (), *, is_fresh: bool = False) -> int:
        """Adds a key with its points, and returns the key's number.

        A key is fresh if it had no result before, so that already its first point is a change. LSNs ascend.
        """
        number = len(self.keys)
        self.keys.append(key)
        self.points.groups += [number] * len(lsns)
        self.points.lsns += lsns
        if is_fresh:
            self.points.fresh.add(number)
        return number

    def versions(self, codecs: Sequence[RowCodec]) -> list[RowVersions]:
        """Returns the rows of each input, with the commits at which they were live, if it is not always."""
        return [
            RowVersions(
                rows.keys, codec.unpack_columns(rows.rows), rows.from_lsns or None, rows.to_lsns or None
            )
            for rows, codec in zip(self.rows, codecs, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class KeyVersions:
    """The rows of a key during a batch.

    Attributes:
        key: The packed key.
        versions: All rows that are live at some point.
        lsns: The LSNs of the points after the first one, ascending; not empty.
        is_fresh: Whether the key had no result before, not even that of an empty set of rows.
    """

    key: bytes
    versions: Sequence[RowVersion]
    lsns: Sequence[int]
    is_fresh: bool = False

    @property
    def points(self) -> Sequence[int]:
        """The LSNs of all points."""
        return self.lsns if self.is_fresh else (BEFORE, *self.lsns)


class PointCalls:
    """Evaluates a part's statement at points. Use it from one thread.

    Methods raise EvaluationError if the SQL fails on the rows of a key; the error names it.
    """

    def __init__(
        self, evaluator: PartEvaluator, codecs: Sequence[RowCodec], *, max_rows: int = MAX_ROWS_PER_CALL
    ) -> None:
        """Prepares the calls for a part, given the codecs of its inputs; `max_rows` limits their size."""
        self._evaluator = evaluator
        self._codecs = codecs
        self._max_rows = max_rows

    def evaluate(self, keys: Iterator[KeyVersions]) -> Iterator[tuple[ResultPoints, ResultRows]]:
        """Yields the results of all keys, in the form that a `Route` accepts."""
        call, rows = Call(len(self._codecs)), 0
        for of_key in keys:
            size = len(of_key.versions) * (1 + len(of_key.lsns))
            if rows and rows + size > self._max_rows:
                yield self.results(call)
                call, rows = Call(len(self._codecs)), 0
            if size > self._max_rows:
                yield from self._in_parts(of_key)
                continue
            _add(call, of_key.key, of_key.versions, of_key.points, is_fresh=of_key.is_fresh)
            rows += size
        if rows or call.keys:
            yield self.results(call)

    def results(self, call: Call) -> tuple[ResultPoints, ResultRows]:
        """Returns the results of one call."""
        versions = call.versions(self._codecs)
        return call.points, self._evaluator.at_points(versions, call.points, call.keys)

    def _in_parts(self, of_key: KeyVersions) -> Iterator[tuple[ResultPoints, ResultRows]]:
        """Evaluates a large key, some of its points at a time; a part begins where the previous one ended."""
        step = max(1, self._max_rows // len(of_key.versions) - 1)
        for start in range(0, max(1, len(of_key.points) - 1), step):
            points = of_key.points[start : start + step + 1]
            live = [v for v in of_key.versions if v[2] <= points[-1] and v[3] > points[0]]
            call = Call(len(self._codecs))
            _add(call, of_key.key, live, points, is_fresh=of_key.is_fresh and start == 0)
            yield self.results(call)


def _add(
    call: Call, key: bytes, versions: Sequence[RowVersion], lsns: Sequence[int], *, is_fresh: bool
) -> None:
    number = call.add(key, lsns, is_fresh=is_fresh)
    for of_input, row, from_lsn, to_lsn in versions:
        columns = call.rows[of_input]
        columns.keys.append(number)
        columns.rows.append(row)
        columns.from_lsns.append(from_lsn)
        columns.to_lsns.append(to_lsn)
