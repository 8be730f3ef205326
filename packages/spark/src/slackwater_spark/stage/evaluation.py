"""Evaluates the view over many groups in few calls."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, overload

from slackwater_spark.stage.group import GroupHistory, RowVersion
from slackwater_spark.stage.packing import PackingSpec
from slackwater_sql.evaluation import InputVersions, Points
from slackwater_sql.row_codec import RowCodec

G = TypeVar("G")

MAX_ROWS_PER_CALL: Final = 200_000
"""Rows times points at which they are live, roughly, that one call may have to look at: bounds its memory."""


class ViewEvaluator(Protocol):
    """See :class:`slackwater_sql.evaluation.Evaluator`."""

    def evaluate(self, versions: Mapping[str, InputVersions], points: Points) -> list[bytes | None]:
        """For each point the document there, or None."""
        ...


class KeyNames(Sequence[str]):
    """The keys of groups as a person reads them, made when one is asked for: only errors name keys."""

    def __init__(self, groups: Sequence[Any], name: Callable[[Any], str]) -> None:
        self._groups = groups
        self._name = name

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> "KeyNames": ...

    def __getitem__(self, index: int | slice) -> "str | KeyNames":
        if isinstance(index, slice):
            return KeyNames(self._groups[index], self._name)
        return self._name(self._groups[index])


class _Groups:
    """Groups of one call, as columns."""

    def __init__(self, inputs: int, names: KeyNames) -> None:
        self.names = names
        self.numbers: list[list[int]] = [[] for _ in range(inputs)]
        self.rows: list[list[bytes]] = [[] for _ in range(inputs)]
        self.from_lsns: list[list[int]] = [[] for _ in range(inputs)]
        self.to_lsns: list[list[int]] = [[] for _ in range(inputs)]
        self.point_groups: list[int] = []
        self.point_lsns: list[int] = []
        self.count = 0

    def add(self, versions: Sequence[RowVersion], points: Sequence[int]) -> None:
        number, self.count = self.count, self.count + 1
        for version in versions:
            of_input = version.name[0] - 1
            self.numbers[of_input].append(number)
            self.rows[of_input].append(version.row)
            self.from_lsns[of_input].append(version.from_lsn)
            self.to_lsns[of_input].append(version.to_lsn)
        for lsn in points:
            self.point_groups.append(number)
            self.point_lsns.append(lsn)


class EvaluationBatches:
    """Cuts groups into calls of bounded size."""

    def __init__(
        self,
        evaluator: ViewEvaluator,
        spec: PackingSpec,
        codecs: Sequence[RowCodec],
        *,
        every_commit: bool,
        max_rows: int = MAX_ROWS_PER_CALL,
    ) -> None:
        self._evaluator = evaluator
        self._aliases = [i.alias for i in spec.inputs]
        self._codecs = codecs
        self._every_commit = every_commit
        self._max_rows = max_rows

    def evaluate(
        self, groups: Iterable[G], history: Callable[[G], GroupHistory], name: Callable[[G], str]
    ) -> Iterator[tuple[G, list[bytes | None]]]:
        """Each group with its documents at its points, in the order given.

        Raises:
            EvaluationError: the view's SQL fails on a group; has its name.
        """
        pending: list[tuple[G, GroupHistory]] = []
        rows = 0
        for group in groups:
            of_group = history(group)
            size = len(of_group.versions) * len(of_group.points)
            if pending and rows + size > self._max_rows:
                yield from self._call(pending, name)
                pending, rows = [], 0
            pending.append((group, of_group))
            rows += size
        if len(pending) == 1 and rows > self._max_rows:
            group, of_group = pending[0]
            yield group, self._in_parts(of_group, KeyNames([group], name))
        elif pending:
            yield from self._call(pending, name)

    def _call(
        self, pending: Sequence[tuple[G, GroupHistory]], name: Callable[[G], str]
    ) -> Iterator[tuple[G, list[bytes | None]]]:
        batch = _Groups(len(self._aliases), KeyNames([group for group, _ in pending], name))
        for _, history in pending:
            batch.add(history.versions, history.points)
        documents = self._evaluate(batch)
        start = 0
        for group, history in pending:
            end = start + len(history.points)
            yield group, documents[start:end]
            start = end

    def _in_parts(self, history: GroupHistory, names: KeyNames) -> list[bytes | None]:
        """One large group with many points, some of them at a time."""
        step = max(1, self._max_rows // max(1, len(history.versions)))
        documents: list[bytes | None] = []
        for start in range(0, len(history.points), step):
            points = history.points[start : start + step]
            live = [v for v in history.versions if v.from_lsn <= points[-1] and v.to_lsn > points[0]]
            batch = _Groups(len(self._aliases), names)
            batch.add(live, points)
            documents += self._evaluate(batch)
        return documents

    def _evaluate(self, batch: _Groups) -> list[bytes | None]:
        versions = {
            alias: InputVersions(
                groups=batch.numbers[number],
                columns=self._codecs[number].unpack_columns(batch.rows[number]),
                from_lsn=batch.from_lsns[number] if self._every_commit else None,
                to_lsn=batch.to_lsns[number] if self._every_commit else None,
            )
            for number, alias in enumerate(self._aliases)
        }
        if not self._every_commit:
            return self._evaluator.evaluate(versions, Points(batch.names))
        return self._evaluator.evaluate(versions, Points(batch.names, batch.point_groups, batch.point_lsns))
