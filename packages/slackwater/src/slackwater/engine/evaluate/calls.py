"""Calls of an evaluator, of limited size: one run of a part's statement over many keys, column by column."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from slackwater.engine.evaluate.evaluators import PartEvaluator, ResultRows
from slackwater.engine.evaluate.results import BEFORE, ResultPoints
from slackwater.engine.evaluate.touched_keys import Transitions
from slackwater.sql.row_codec import RowCodec
from slackwater.sql.stage_evaluation import OPEN_LSN, RowVersions

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
    """The keys of one call, their points, and the rows of each input.

    Attributes:
        keys: The packed keys.
        rows: The rows by input.
        points: The points of all keys.
    """

    def __init__(self, inputs: int) -> None:
        self.keys: list[bytes] = []
        self.rows = [RowColumns() for _ in range(inputs)]
        self.points = ResultPoints()

    def add(self, key: bytes, lsns: Sequence[int] = (), *, is_fresh: bool = False) -> int:
        """Adds a key with its points, and returns the key's number.

        Args:
            key: The packed key.
            lsns: The LSNs of its points, ascending.
            is_fresh: Whether the key had no result before, so that already its first point is a change.
        """
        number = len(self.keys)
        self.keys.append(key)
        self.points.groups += [number] * len(lsns)
        self.points.lsns += lsns
        if is_fresh:
            self.points.fresh.add(number)
        return number

    def versions(self, codecs: Sequence[RowCodec]) -> list[RowVersions]:
        """Returns the rows of each input, with the commits at which they were live."""
        return [
            RowVersions(rows.keys, codec.unpack_columns(rows.rows), rows.from_lsns, rows.to_lsns)
            for rows, codec in zip(self.rows, codecs, strict=True)
        ]

    def live_rows(self, codecs: Sequence[RowCodec]) -> list[RowVersions]:
        """Returns the rows of each input, all of which are live."""
        return [
            RowVersions(rows.keys, codec.unpack_columns(rows.rows))
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


class PointCalls:
    """Evaluates a part's statement at points. Use it from one thread."""

    def __init__(
        self,
        evaluator: PartEvaluator,
        codecs: Sequence[RowCodec],
        *,
        has_steps: bool,
        max_rows: int = MAX_ROWS_PER_CALL,
    ) -> None:
        """Prepares the calls for one part.

        Args:
            evaluator: The evaluator of the part.
            codecs: The codecs of its inputs.
            has_steps: Whether the results of the part are partials.
            max_rows: Limits the size of a call.
        """
        self._evaluator = evaluator
        self._codecs = codecs
        self._has_steps = has_steps
        self._max_rows = max_rows

    def evaluate(self, keys: Iterator[KeyVersions]) -> Iterator[tuple[ResultPoints, ResultRows]]:
        """Yields the results of all keys, in the form that a `Route` accepts.

        Raises:
            EvaluationError: The SQL fails on the rows of a key; the error names it.
        """
        call, rows = Call(len(self._codecs)), 0
        for of_key in keys:
            size = len(of_key.versions) * (1 + len(of_key.lsns))
            if rows and rows + size > self._max_rows:
                yield self.results(call)
                call, rows = Call(len(self._codecs)), 0
            if size > self._max_rows:
                yield from self._in_parts(of_key)
                continue
            lsns = of_key.lsns if of_key.is_fresh else (BEFORE, *of_key.lsns)
            _add(call, of_key.key, of_key.versions, lsns, is_fresh=of_key.is_fresh)
            rows += size
        if rows or call.keys:
            yield self.results(call)

    def results(self, call: Call) -> tuple[ResultPoints, ResultRows]:
        """Returns the results of one call.

        Raises:
            EvaluationError: The SQL fails on the rows of a key; the error names it.
        """
        points = call.points
        steps = points.steps() if self._has_steps else None
        return points, self._evaluator.at_points(call.versions(self._codecs), points, steps, call.keys)

    def _in_parts(self, of_key: KeyVersions) -> Iterator[tuple[ResultPoints, ResultRows]]:
        """Evaluates a large key, some of its points at a time; a part begins where the previous one ended."""
        step = max(1, self._max_rows // len(of_key.versions) - 1)
        lsns = of_key.lsns if of_key.is_fresh else (BEFORE, *of_key.lsns)
        for start in range(0, max(1, len(lsns) - 1), step):
            points = lsns[start : start + step + 1]
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
