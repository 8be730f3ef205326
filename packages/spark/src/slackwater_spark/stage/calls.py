"""Evaluates the rows part of a stage over many keys in few calls of bounded size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from slackwater_spark.stage.results import BEFORE, ResultPoints, ResultRows
from slackwater_spark.stage.row_changes import RowVersion
from slackwater_sql.row_codec import RowCodec
from slackwater_sql.stage_evaluation import PointColumns, RowVersions, StepColumns

MAX_ROWS_PER_CALL: Final = 200_000
"""Rows times points at which they are live, roughly, that one call may have to look at: bounds its memory."""


class PartEvaluator(Protocol):
    """See :class:`slackwater_sql.stage_evaluation.RowsEvaluator`."""

    def at_points(
        self,
        versions: Sequence[RowVersions],
        points: PointColumns,
        steps: StepColumns | None,
        keys: Sequence[bytes],
    ) -> ResultRows:
        """The result of the part's statement at points."""
        ...

    def latest(self, rows: Sequence[RowVersions], keys: Sequence[bytes], lsns: Sequence[int]) -> ResultRows:
        """The result over rows that all are live; `lsns` are those of the keys' newest changes."""
        ...


@dataclass(frozen=True, slots=True)
class KeyVersions:
    """The rows of a key during a batch.

    Attributes:
        key: Packed.
        versions: All rows that are live at some point.
        lsns: Of the points after the first, ascending; not empty.
        is_fresh: There was no result before, not even that of no rows.
    """

    key: bytes
    versions: Sequence[RowVersion]
    lsns: Sequence[int]
    is_fresh: bool = False


@dataclass(slots=True)
class _Call:
    """Keys of one call, as columns."""

    inputs: int
    keys: list[bytes] = field(default_factory=list)
    groups: list[list[int]] = field(init=False)
    rows: list[list[bytes]] = field(init=False)
    from_lsns: list[list[int]] = field(init=False)
    to_lsns: list[list[int]] = field(init=False)
    point_groups: list[int] = field(default_factory=list)
    point_lsns: list[int] = field(default_factory=list)
    fresh: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.groups = [[] for _ in range(self.inputs)]
        self.rows = [[] for _ in range(self.inputs)]
        self.from_lsns = [[] for _ in range(self.inputs)]
        self.to_lsns = [[] for _ in range(self.inputs)]

    def add(self, key: bytes, versions: Sequence[RowVersion], lsns: Sequence[int], *, is_fresh: bool) -> None:
        group = len(self.keys)
        self.keys.append(key)
        for number, row, from_lsn, to_lsn in versions:
            self.groups[number].append(group)
            self.rows[number].append(row)
            self.from_lsns[number].append(from_lsn)
            self.to_lsns[number].append(to_lsn)
        self.point_groups += [group] * len(lsns)
        self.point_lsns += lsns
        if is_fresh:
            self.fresh.add(group)


class PointCalls:
    """Evaluates a part's statement at points; for one thread."""

    def __init__(
        self,
        evaluator: PartEvaluator,
        codecs: Sequence[RowCodec],
        *,
        has_steps: bool,
        max_rows: int = MAX_ROWS_PER_CALL,
    ) -> None:
        """Calls of one part.

        Args:
            evaluator: Of the part.
            codecs: Of its inputs.
            has_steps: The part's results are partials.
            max_rows: Bounds the size of a call.
        """
        self._evaluator = evaluator
        self._codecs = codecs
        self._has_steps = has_steps
        self._max_rows = max_rows

    def evaluate(self, keys: Iterator[KeyVersions]) -> Iterator[tuple[ResultPoints, ResultRows]]:
        """The results of all keys, as a `Route` takes them.

        Raises:
            EvaluationError: the SQL fails on the rows of a key; names it.
        """
        call, rows = _Call(len(self._codecs)), 0
        for of_key in keys:
            size = len(of_key.versions) * (1 + len(of_key.lsns))
            if rows and rows + size > self._max_rows:
                yield self._results(call)
                call, rows = _Call(len(self._codecs)), 0
            if size > self._max_rows:
                yield from self._in_parts(of_key)
                continue
            lsns = of_key.lsns if of_key.is_fresh else (BEFORE, *of_key.lsns)
            call.add(of_key.key, of_key.versions, lsns, is_fresh=of_key.is_fresh)
            rows += size
        if rows or call.keys:
            yield self._results(call)

    def _in_parts(self, of_key: KeyVersions) -> Iterator[tuple[ResultPoints, ResultRows]]:
        """One large key with many points, some of them at a time; each part begins where the last ended."""
        step = max(1, self._max_rows // len(of_key.versions) - 1)
        lsns = of_key.lsns if of_key.is_fresh else (BEFORE, *of_key.lsns)
        for start in range(0, max(1, len(lsns) - 1), step):
            points = lsns[start : start + step + 1]
            live = [v for v in of_key.versions if v[2] <= points[-1] and v[3] > points[0]]
            call = _Call(len(self._codecs))
            call.add(of_key.key, live, points, is_fresh=of_key.is_fresh and start == 0)
            yield self._results(call)

    def _results(self, call: _Call) -> tuple[ResultPoints, ResultRows]:
        points = ResultPoints(call.point_groups, call.point_lsns, frozenset(call.fresh))
        versions = [
            RowVersions(groups, codec.unpack_columns(rows), from_lsns, to_lsns)
            for codec, groups, rows, from_lsns, to_lsns in zip(
                self._codecs, call.groups, call.rows, call.from_lsns, call.to_lsns, strict=True
            )
        ]
        steps = points.steps() if self._has_steps else None
        return points, self._evaluator.at_points(versions, points, steps, call.keys)
