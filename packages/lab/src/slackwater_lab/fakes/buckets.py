"""Test doubles of the engine: a bucket that only has groups, and an index that counts reads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from slackwater.engine.evaluate.groups import AccumulateEvaluation
from slackwater.engine.index import BucketIndex, Contents, IndexTransaction
from slackwater.engine.payloads import Outcome, Partial
from slackwater.engine.state.entry import Change, Entry
from slackwater.sql.stage_evaluation import ResultPoints, ResultRows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Processed:
    """The results and changes of a batch of partials."""

    results: list[tuple[ResultPoints, ResultRows]]
    changes: list[Change]
    live_bytes: int


class AccumulateBucket:
    """Processes batches of partials, with a log of changes and an index that is derived from it."""

    def __init__(self, logic: AccumulateEvaluation, make_index: Callable[[], BucketIndex]) -> None:
        self._logic = logic
        self._make_index = make_index
        self._index = make_index()
        self.log: list[list[Change]] = []
        self.live_bytes = 0

    def lose_index(self) -> None:
        """Replaces the index by a new one that is built from the log."""
        self._index = self._make_index()
        for changes in self.log:
            self._apply(changes)

    def process(self, partials: Sequence[Partial]) -> Processed:
        results, outcome = self._index.update(lambda contents: self._work(partials, contents))
        self._apply(outcome.changes)
        if outcome.changes:
            self.log.append(outcome.changes)
        self.live_bytes += sum(outcome.growths)
        return Processed(results, outcome.changes, sum(outcome.growths))

    def _work(
        self, partials: Sequence[Partial], contents: IndexTransaction
    ) -> tuple[list[tuple[ResultPoints, ResultRows]], Outcome]:
        outcome = Outcome(buckets=1)
        return self._logic(partials, contents, outcome), outcome

    def entries(self) -> list[Entry]:
        return self._index.update(lambda contents: list(contents.entries()))

    def _apply(self, changes: Iterable[Change]) -> None:
        self._index.update(lambda contents: contents.apply(changes))


class CountingIndex:
    """Counts the entries that are read from another index, and those that are requested but do not exist.

    Attributes:
        reads: The count so far.
    """

    def __init__(self, index: BucketIndex) -> None:
        self._index = index
        self.reads = 0

    def update(self, work: Callable[[IndexTransaction], T]) -> T:
        return self._index.update(
            lambda contents: work(cast(IndexTransaction, _CountingContents(contents, self)))
        )

    @contextmanager
    def snapshot(self) -> Iterator[Contents]:
        with self._index.snapshot() as contents:
            yield cast(Contents, _CountingContents(contents, self))

    def load(self, batches: Iterable[Iterable[Change]], token: bytes) -> None:
        self._index.load(batches, token)


class _CountingContents:
    def __init__(self, contents: Contents, counter: CountingIndex) -> None:
        self._contents = contents
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._contents, name)

    def get(self, name: bytes) -> bytes | None:
        self._counter.reads += 1
        return self._contents.get(name)

    def get_many(self, names: Iterable[bytes]) -> dict[bytes, bytes]:
        names = list(names)
        self._counter.reads += len(names)
        return self._contents.get_many(names)

    def group(self, prefix: bytes, limit: int | None = None) -> list[Entry]:
        entries = self._contents.group(prefix, limit)
        self._counter.reads += len(entries)
        return entries

    def scan(self, prefix: bytes, *, descending: bool = False, start: bytes | None = None) -> Iterator[Entry]:
        for entry in self._contents.scan(prefix, descending=descending, start=start):
            self._counter.reads += 1
            yield entry

    def entries(self) -> Iterator[Entry]:
        for entry in self._contents.entries():
            self._counter.reads += 1
            yield entry
