"""A whole pipeline in one process, its state in memory: for tests, and to show the contracts plainly."""

import json
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, TypeVar

from slackwater_engine.bucket import BucketProcessor
from slackwater_engine.documents import settled
from slackwater_engine.evaluate.evaluators import Evaluators, SqlEvaluators
from slackwater_engine.index.contract import BucketIndex, IndexTransaction
from slackwater_engine.owners import sequence_in_group
from slackwater_engine.pack.packer import EventPacker
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import Document, Outcome
from slackwater_engine.settings import Scope, StageSettings
from slackwater_engine.state.entry import Change, Entry
from slackwater_engine.state.log import StateLog
from slackwater_sql.plan import EnginePlan

T = TypeVar("T")

ChangeEvent = (
    tuple[str, str, int, bytes | None, bytes | None]
    | tuple[str, str, int, bytes | None, bytes | None, int | None]
)
"""Arguments of :meth:`EventPacker.add`."""


Payloads = Sequence[tuple[int, bytes]]
"""``(sequence, payload)`` of one bucket."""


class MemoryIndex:
    """An index in memory."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._token: bytes | None = None

    def update(self, work: Callable[[IndexTransaction], T]) -> T:
        """Runs `work` on a copy, which replaces the contents afterwards."""
        transaction = MemoryTransaction(dict(self._entries), self._token)
        result = work(transaction)
        self._entries, self._token = transaction.contents, transaction.token
        return result

    def load(self, batches: Iterable[Iterable[Change]], token: bytes) -> None:
        """Replaces everything."""
        transaction = MemoryTransaction({}, token)
        for changes in batches:
            transaction.apply(changes)
        self._entries, self._token = transaction.contents, token


class MemoryTransaction:
    """See :class:`IndexTransaction`."""

    def __init__(self, contents: dict[bytes, bytes], token: bytes | None) -> None:
        self.contents = contents
        self.token = token
        self._names: list[bytes] | None = None

    def get(self, name: bytes) -> bytes | None:
        """The value, or None."""
        return self.contents.get(name)

    def get_many(self, names: Iterable[bytes]) -> dict[bytes, bytes]:
        """Those that are there."""
        return {name: self.contents[name] for name in names if name in self.contents}

    def first(self, prefix: bytes) -> Entry | None:
        """Smallest name."""
        return next(self.scan(prefix), None)

    def last(self, prefix: bytes) -> Entry | None:
        """Largest name."""
        return next(self.scan(prefix, descending=True), None)

    def scan(self, prefix: bytes, *, descending: bool = False) -> Iterator[Entry]:
        """Yields entries in the order of their names."""
        return reversed(self.group(prefix)) if descending else iter(self.group(prefix))

    def group(self, prefix: bytes, limit: int | None = None) -> list[Entry]:
        """Entries that start with `prefix`."""
        names = self._sorted()
        within = takewhile(
            lambda name: name.startswith(prefix), islice(names, bisect_left(names, prefix), None)
        )
        return [(name, self.contents[name]) for name in islice(within, limit)]

    def entries(self) -> Iterator[Entry]:
        """All entries."""
        return iter([(name, self.contents[name]) for name in self._sorted()])

    def _sorted(self) -> list[bytes]:
        if self._names is None:
            self._names = sorted(self.contents)
        return self._names

    def apply(self, changes: Iterable[Change]) -> None:
        """Makes the changes."""
        self._names = None
        for name, value in changes:
            if value is None:
                self.contents.pop(name, None)
            else:
                self.contents[name] = value

    def clear(self) -> None:
        """Removes everything."""
        self.contents.clear()
        self._names = None

    def set_token(self, token: bytes) -> None:
        """Sets the token."""
        self.token = token


class MemoryCell:
    """Stands in for Spark's ValueState."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None

    def get(self) -> tuple[Any, ...] | None:
        """The value, or None."""
        return self.value

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Replaces the value."""
        self.value = newValue


class MemoryMap:
    """Stands in for Spark's MapState."""

    def __init__(self) -> None:
        self.items: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The value, or None."""
        return self.items.get(key)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Sets a value."""
        self.items[key] = value

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Removes a key."""
        self.items.pop(key, None)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All, ascending."""
        return iter(sorted(self.items.items()))

    def clear(self) -> None:
        """Removes all."""
        self.items.clear()


class BucketState:
    """The state of one bucket, in memory."""

    def __init__(self) -> None:
        self.cell = MemoryCell()
        self.blobs = MemoryMap()
        self.log = StateLog(self.cell, self.blobs)


class LocalEngine:
    """Runs all stages of a pipeline in one process, without Spark.

    Attributes:
        processors: By stage.
        states: The state of each bucket, by stage and bucket.
        indexes: The index of each bucket, likewise.
    """

    def __init__(
        self,
        plan: EnginePlan,
        make_index: Callable[[], BucketIndex] = MemoryIndex,
        *,
        buckets: int = 3,
        every_commit: bool = False,
        scope: Scope = Scope.STRICT,
        evaluators: Evaluators | None = None,
    ) -> None:
        """Makes an engine without any rows.

        Args:
            plan: The compiled pipeline.
            make_index: Makes an empty index.
            buckets: The number of buckets of each stage.
            every_commit: Emit documents after each commit that changes them, not only after each batch.
            scope: How far the partitions of a batch go; for `aggregate` see :meth:`run_partitions`.
            evaluators: Make the evaluators of rows parts; None: DuckDB.
        """
        self.spec = packing_spec(plan, buckets)
        self._plan = plan
        self._every_commit = every_commit
        self._make_index = make_index
        self._buckets = buckets
        self.states: dict[tuple[int, int], BucketState] = {}
        self.indexes: dict[tuple[int, int], BucketIndex] = {}
        self.reset()
        settings = StageSettings(buckets=buckets, every_commit=every_commit, scope=scope)
        self.processors = {
            stage.number: BucketProcessor(plan, stage, settings, evaluators or SqlEvaluators())
            for stage in plan.stages
        }

    def reset(self) -> None:
        """Forgets all rows. The evaluators stay: DuckDB has planned their statements."""
        for stage in self._plan.stages:
            for bucket in range(self._buckets):
                self.states[stage.number, bucket] = BucketState()
                self.indexes[stage.number, bucket] = self._make_index()

    def lose_index(self, stage: int, bucket: int) -> None:
        """Empties the index of a bucket, as if it moved to an executor that has never had it."""
        self.indexes[stage, bucket] = self._make_index()

    def run(
        self, changes: Sequence[ChangeEvent], tasks: int = 1, *, first_lsn: int | None = None
    ) -> dict[int, list[Document]]:
        """Processes a batch of whole commits.

        Args:
            changes: As a connector writes them.
            tasks: Source tasks that pack them.
            first_lsn: Of the batch's first commit, if that changes nothing the pipeline reads.

        Returns:
            The documents of each view in commit order, as a sink publishes them.
        """
        known = [change for change in changes if change[0] in self.spec.tables]
        lsn = min((change[2] for change in changes), default=0) if first_lsn is None else first_lsn
        return self.process(self.payloads(known, tasks, lsn))

    def run_partitions(self, changes: Mapping[int, Sequence[ChangeEvent]]) -> dict[int, list[Document]]:
        """Processes a batch in scope `aggregate`: changes by the partition they come from."""
        by_bucket: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for number, (partition, of_partition) in enumerate(changes.items()):
            for name, payloads in self.payloads(of_partition).items():
                sequence = sequence_in_group(partition, number)
                by_bucket.setdefault(name, []).extend((sequence, payload) for _, payload in payloads)
        return self.process(by_bucket)

    def process(self, payloads: Mapping[tuple[int, int], Payloads]) -> dict[int, list[Document]]:
        """Processes packed changes, by stage and bucket; returns the documents as :meth:`run` does."""
        waiting = {name: list(packed) for name, packed in payloads.items()}
        documents: dict[int, list[Document]] = {view: [] for view in range(len(self._plan.views))}
        for stage in self._plan.stages:
            for name in sorted(name for name in waiting if name[0] == stage.number):
                outcome = self.process_bucket(*name, waiting.pop(name))
                for target, bucket, sequence, payload in outcome.payloads(*name):
                    if target > 0:
                        waiting.setdefault((target, bucket), []).append((sequence, payload))
                for view, found in outcome.documents.items():
                    documents[view] += found
        return {view: settled(found, every_commit=self._every_commit) for view, found in documents.items()}

    def process_bucket(self, stage: int, bucket: int, payloads: Payloads) -> Outcome:
        """Processes a bucket's payloads of a batch."""
        name = stage, bucket
        return self.processors[stage].process(bucket, payloads, self.states[name].log, self.indexes[name])

    def payloads(
        self, changes: Sequence[ChangeEvent], tasks: int = 1, first_lsn: int | None = None
    ) -> dict[tuple[int, int], list[tuple[int, bytes]]]:
        """Packs changes, by stage and bucket; those of one row in one task, as they are in one partition."""
        by_bucket: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for task in range(tasks):
            packer = EventPacker(self.spec)
            for change in changes:
                if _task_of(change, tasks) == task:
                    packer.add(*change)
            if first_lsn is not None and not task:
                packer.touch(first_lsn)
            for stage, bucket, payload in packer.payloads():
                by_bucket.setdefault((stage, bucket), []).insert(0, (task, payload))
        return by_bucket


def _task_of(change: ChangeEvent, tasks: int) -> int:
    row = json.loads(change[4] or change[3] or b"{}")
    return zlib.crc32(str(row.get("id")).encode()) % tasks
