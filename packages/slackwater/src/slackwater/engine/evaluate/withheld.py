"""Withholds the keys of a stage that cannot be evaluated, if its view is to continue without them.

While a value of a stage key does not fit, none of the key's documents is known, and all are withdrawn. At
each change of its rows, the key is evaluated again with all of them, so it comes back when they are mended.
What is withheld after a commit depends on the rows alone, not on how commits are divided into batches.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from slackwater.engine.evaluate.points import Call, KeyVersions, PointCalls, RowVersion
from slackwater.engine.payloads import Document, Outcome
from slackwater.engine.settings import PartEvaluator
from slackwater.engine.state.entry import WITHHELD_TAG, part
from slackwater.sql.errors import EvaluationError
from slackwater.sql.plan import AccumulatePart, EnginePlan, PartialsOutput, RowsPart, StagePlan
from slackwater.sql.row_codec import RowCodec
from slackwater.sql.stage_evaluation import ResultPoints, ResultRows, key_text

_encode: Final = msgspec.json.encode


class WithheldKeys:
    """The keys of a stage that are withheld: where that is kept and published. Stateless."""

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, part: RowsPart | AccumulatePart, view: int, sharer: bytes
    ) -> None:
        """Prepares a part of a stage whose withheld keys are the documents of a view of this number."""
        self.of_rows: Final = isinstance(part.output, PartialsOutput)
        """Whether the keys are rows that groups add up. They are evaluated as they were before a batch, which
        shows whether they were withheld, and their groups are withheld."""
        self._prefix = f"stage {stage.number} " if self.of_rows else ""
        self.view: Final = view
        """The number of that view."""
        self._of = plan.views[view].withheld_of
        key = part.key if isinstance(part, AccumulatePart) else stage.key
        self._names = [dict(stage.labels).get(column.name, column.name) for column in key]
        self._tag = sharer + WITHHELD_TAG

    def entry(self, key: bytes) -> bytes:
        """Returns the name of the entry that exists while a key is withheld."""
        return part(key) + self._tag

    def document(self, key: bytes, lsn: int, error: EvaluationError | None) -> Document:
        """Returns what readers learn of a key that was evaluated at a commit; None: it is not withheld."""
        name = self._prefix + key_text(self._names, key)
        if error is None:
            return lsn, _encode({"key": name}), None
        facts = {"key": name, "view": self._of, "commit_lsn": lsn, "reason": error.problem}
        return lsn, _encode({"key": name}), _encode(facts | {"rows": list(error.rows)})


class KeyStatus:
    """What a batch makes of the withheld keys of a stage: each change is published, and the last one kept."""

    def __init__(self, withheld: WithheldKeys, outcome: Outcome) -> None:
        self._withheld = withheld
        self._outcome = outcome
        self._before: set[bytes] = set()
        self._now: dict[bytes, bool] = {}
        """Whether a key is withheld, for each that is or was."""

    def begin(self, key: bytes) -> None:
        """Adds a key that was withheld before the batch."""
        self._before.add(key)
        self._now.setdefault(key, True)

    def note(self, key: bytes, lsn: int, error: EvaluationError | None) -> None:
        """Adds the result of a key at a commit; those of a key come in the order of commits."""
        if error is not None or self._now.get(key, False):
            self._outcome.view(self._withheld.view).append(self._withheld.document(key, lsn, error))
        if error is not None or key in self._now:
            self._now[key] = error is not None

    def note_points(self, points: ResultPoints, keys: Sequence[bytes], skipped: Collection[int] = ()) -> None:
        """Adds the results of the points of one call, except for some of its keys, by their numbers.

        Raises:
            EvaluationError: A key fails as it was before the batch, although it was not withheld.
        """
        failures, groups = points.failures or {}, points.groups
        noted = {groups[point] for point in failures}
        noted.update(number for number, key in enumerate(keys) if self._now and key in self._now)
        noted.difference_update(skipped)
        if not noted:
            return
        news = {point for point, _, _ in points.news()}
        for point, group in enumerate(groups):
            if group not in noted:
                continue
            key, error = keys[group], failures.get(point)
            if point in news:
                self.note(key, points.lsns[point], error)
            elif error is not None and self._withheld.of_rows:
                self.begin(key)
            elif error is not None and not self._now.get(key, False):
                raise error

    def keep(self) -> None:
        """Changes the entries of the keys."""
        for key, is_withheld in self._now.items():
            was = key in self._before
            if was != is_withheld:
                if not self._withheld.of_rows:
                    name = self._withheld.entry(key)
                    self._outcome.change(name, b"" if was else None, b"" if is_withheld else None)
                self._outcome.withheld[self._withheld.view] += 1 if is_withheld else -1


@dataclass(frozen=True, slots=True)
class WithholdableKey(KeyVersions):
    """The rows of a key that may have to be withheld.

    Attributes:
        is_withheld: Whether it was before the batch. Its points then begin with the first commit, because it
            had no result.
        whole: Returns all its versions; None if these are all.
    """

    is_withheld: bool = False
    whole: Callable[[], Sequence[RowVersion]] | None = None

    def with_all_rows(self) -> "WithholdableKey":
        """Returns the key with all its versions."""
        return self if self.whole is None else replace(self, versions=self.whole(), whole=None)


class WithholdingCalls(PointCalls):
    """Evaluates a part's statement at points, and withholds the keys that fail. Use it from one thread."""

    def __init__(self, evaluator: PartEvaluator, codecs: Sequence[RowCodec], withheld: WithheldKeys) -> None:
        super().__init__(evaluator, codecs)
        self._withheld = withheld

    def evaluate_all(
        self, keys: Iterable[WithholdableKey], outcome: Outcome
    ) -> Iterator[tuple[ResultPoints, ResultRows]]:
        """Yields the results of all keys as :meth:`evaluate` does; none at points at which a key is withheld.

        Raises:
            EvaluationError: A limit was exceeded; too many keys fail; or a key fails as it was before the
                batch, although it was not withheld.
        """
        self._status = KeyStatus(self._withheld, outcome)
        self._keys: dict[bytes, WithholdableKey] = {}
        self._again: list[WithholdableKey] = []
        yield from self.evaluate(map(self._noted, keys))
        yield from self.evaluate(self._noted(key.with_all_rows()) for key in self._again)
        self._status.keep()

    def results(self, call: Call) -> tuple[ResultPoints, ResultRows]:
        """Returns the results of one call, without those of keys that are evaluated again with all rows."""
        failures = call.points.failures = {}
        points, rows = super().results(call)
        failing = {points.groups[point] for point in failures}
        again = {group for group in failing if self._keys[call.keys[group]].whole is not None}
        if again:
            self._again += [self._keys[call.keys[group]] for group in sorted(again)]
            rows = [row for row in rows if points.groups[row[0]] not in again]
        self._status.note_points(points, call.keys, again)
        return points, rows

    def _noted(self, key: WithholdableKey) -> WithholdableKey:
        self._keys[key.key] = key
        if key.is_withheld:
            self._status.begin(key.key)
        return key

    def _in_parts(self, of_key: KeyVersions) -> Iterator[tuple[ResultPoints, ResultRows]]:
        return super()._in_parts(self._noted(self._keys[of_key.key].with_all_rows()))
