"""A whole pipeline in one process, with its state in memory: for tests, and as an example of the contract."""

import json
import zlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice, takewhile
from typing import TypeVar

from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.evaluate.touched_keys import OldRowsNeededError
from slackwater.engine.index import BucketIndex, Contents, IndexTransaction
from slackwater.engine.owners import sequence_in_group
from slackwater.engine.packer import EventPacker, packing_spec
from slackwater.engine.payloads import Document, PackedPayload, decode_documents, documents_by_view, settled
from slackwater.engine.settings import Evaluators, Scope, StageSettings
from slackwater.engine.state.entry import Change, Entry
from slackwater.engine.state.manifest import SegmentReader, State, StateKeeper
from slackwater.engine.state.store import MemoryStore
from slackwater.engine.task import PipelineTask, TaskResult
from slackwater.sql.plan import EnginePlan

T = TypeVar("T")

ChangeEvent = (
    tuple[str, str, int, bytes | None, bytes | None]
    | tuple[str, str, int, bytes | None, bytes | None, int | None]
    | tuple[str, str, int, bytes | None, bytes | None, int | None, bytes | None]
)
"""A table, and the arguments of :meth:`TablePacker.add`."""


Payloads = Sequence[tuple[int, bytes]]
"""``(sequence, payload)`` of one bucket."""


class MemoryIndex:
    """An index in memory."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._token: bytes | None = None

    def update(self, work: Callable[[IndexTransaction], T]) -> T:
        """Runs `work` on a copy, which then replaces the contents."""
        transaction = MemoryTransaction(dict(self._entries), self._token)
        result = work(transaction)
        self._entries, self._token = transaction.contents, transaction.token
        return result

    @contextmanager
    def snapshot(self) -> Iterator[Contents]:
        """Provides the contents, which are never modified in place."""
        yield MemoryTransaction(self._entries, self._token)

    def load(self, batches: Iterable[Iterable[Change]], token: bytes) -> None:
        """Replaces all contents."""
        transaction = MemoryTransaction({}, token)
        for changes in batches:
            transaction.apply(changes)
        self._entries, self._token = transaction.contents, token


class MemoryTransaction:
    """Implements :class:`IndexTransaction`."""

    def __init__(self, contents: dict[bytes, bytes], token: bytes | None) -> None:
        self.contents = contents
        self.token = token
        self._names: list[bytes] | None = None

    def get(self, name: bytes) -> bytes | None:
        """Returns the value, or None."""
        return self.contents.get(name)

    def get_many(self, names: Iterable[bytes]) -> dict[bytes, bytes]:
        """Returns the entries that exist."""
        return {name: self.contents[name] for name in names if name in self.contents}

    def scan(self, prefix: bytes, *, descending: bool = False, start: bytes | None = None) -> Iterator[Entry]:
        """Yields entries in the order of their names."""
        entries = self.group(prefix)
        if start is not None:
            entries = [e for e in entries if (e[0] <= start if descending else e[0] >= start)]
        return reversed(entries) if descending else iter(entries)

    def group(self, prefix: bytes, limit: int | None = None) -> list[Entry]:
        """Returns the entries that start with `prefix`."""
        names = self._sorted()
        within = takewhile(
            lambda name: name.startswith(prefix), islice(names, bisect_left(names, prefix), None)
        )
        return [(name, self.contents[name]) for name in islice(within, limit)]

    def entries(self) -> Iterator[Entry]:
        """Returns all entries."""
        return iter([(name, self.contents[name]) for name in self._sorted()])

    def _sorted(self) -> list[bytes]:
        if self._names is None:
            self._names = sorted(self.contents)
        return self._names

    def apply(self, changes: Iterable[Change]) -> None:
        """Applies the changes."""
        self._names = None
        for name, value in changes:
            if value is None:
                self.contents.pop(name, None)
            else:
                self.contents[name] = value

    def clear(self) -> None:
        """Removes all entries and the token."""
        self.contents.clear()
        self.token = None
        self._names = None

    def set_token(self, token: bytes) -> None:
        """Sets the token."""
        self.token = token


class LocalEngine:
    """Runs all stages of a pipeline in one process, without Spark.

    Attributes:
        store: Contains the state, as a checkpoint does.
        indexes: The index of each bucket, by stage and bucket.
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
        """Creates an engine without any rows.

        Documents are emitted after each batch, or after each commit that changes them. For scope `aggregate`,
        see :meth:`run_partitions`. Without evaluators, DuckDB evaluates.
        """
        self.spec = packing_spec(plan, buckets, every_commit=every_commit)
        self._plan = plan
        self._settings = StageSettings(buckets=buckets, every_commit=every_commit, scope=scope)
        self._make_index = make_index
        self._task = PipelineTask(plan, self._settings, evaluators)
        self.indexes: dict[tuple[int, int], BucketIndex] = {}
        self.reset()

    def reset(self) -> None:
        """Removes all rows. The evaluators stay, because DuckDB has planned their statements."""
        self.store = MemoryStore()
        self._keeper = self._new_keeper()
        for stage in self._plan.stages:
            for bucket in range(self._settings.buckets):
                self.lose_index(stage.number, bucket)

    @property
    def state(self) -> State:
        """The state after the newest batch."""
        return self._keeper.state

    def return_to(self, state: State) -> None:
        """Continues from an earlier state, like a run whose last batches were lost. The indexes stay."""
        self._keeper = self._new_keeper()
        if state.name:
            self._keeper.open(state.name)

    def lose_index(self, stage: int, bucket: int) -> None:
        """Empties the index of a bucket, as if the bucket moved to an executor that never had it."""
        self.indexes[stage, bucket] = self._make_index()

    def run(
        self,
        changes: Sequence[ChangeEvent],
        tasks: int = 1,
        *,
        first_lsn: int | None = None,
        ticks: Sequence[tuple[int, int]] = (),
    ) -> dict[int, list[Document]]:
        """Processes a batch of whole commits.

        The changes are as a connector writes them; this many tasks pack them. `first_lsn` is the LSN of the
        first commit, if it changes nothing that the pipeline reads. The ticks move the clock of rows that
        expire, see :meth:`EventPacker.tick`. The documents of each view are in commit
        order, as a sink publishes them.
        """
        known = [change for change in changes if change[0] in self.spec.tables]
        lsn = min((change[2] for change in changes), default=0) if first_lsn is None else first_lsn
        try:
            return self.process(self.payloads(known, tasks, lsn, ticks))
        except OldRowsNeededError:
            return self.process(self.payloads(known, tasks, lsn, ticks, keeps_old=True))

    def run_partitions(self, changes: Mapping[int, Sequence[ChangeEvent]]) -> dict[int, list[Document]]:
        """Processes a batch in scope `aggregate`, given as changes by the partition that contains them."""
        by_bucket: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for number, (partition, of_partition) in enumerate(changes.items()):
            for name, payloads in self.payloads(of_partition).items():
                sequence = sequence_in_group(partition, number)
                by_bucket.setdefault(name, []).extend((sequence, payload) for _, payload in payloads)
        return self.process(by_bucket)

    def process(self, payloads: Mapping[tuple[int, int], Payloads]) -> dict[int, list[Document]]:
        """Processes packed changes, by stage and bucket; returns the documents as :meth:`run` does."""
        rows = [
            (*name, sequence, payload) for name, packed in payloads.items() for sequence, payload in packed
        ]
        result = self.process_stages(rows)
        self._keeper.adopt(self._keeper.prepare({}, result.writes, (), result.withheld))
        every_commit = self._settings.every_commit
        documents = documents_by_view(self.state.batch_id, result.rows)
        return {
            view: settled(
                list(chain.from_iterable(decode_documents(self.state.batch_id, documents.get(view, ())))),
                every_commit=every_commit,
            )
            for view in range(len(self._plan.views))
        }

    def process_stages(
        self, payloads: Iterable[PackedPayload], stages: Collection[int] | None = None
    ) -> TaskResult:
        """Processes packed changes in some of the stages, or in all; the state is not changed."""
        source = SegmentReader(self.store)
        return self._task.process(
            payloads,
            self.state,
            source,
            lambda *name: self.indexes[name],
            stages,
            has_moves=stages is None,
        )

    def payloads(
        self,
        changes: Sequence[ChangeEvent],
        tasks: int = 1,
        first_lsn: int | None = None,
        ticks: Sequence[tuple[int, int]] = (),
        *,
        keeps_old: bool = False,
    ) -> dict[tuple[int, int], list[tuple[int, bytes]]]:
        """Packs changes by stage and bucket; one task packs all changes of a row, as of one partition."""
        by_bucket: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for task in range(tasks):
            packer = EventPacker(self.spec, keeps_old=keeps_old)
            for change in changes:
                if _task_of(change, tasks) == task:
                    packer.table(change[0]).add(*change[1:])
            if first_lsn is not None and not task:
                packer.touch(first_lsn)
                packer.tick(ticks)
            for stage, bucket, payload in packer.payloads():
                by_bucket.setdefault((stage, bucket), []).insert(0, (task, payload))
        return by_bucket

    def _new_keeper(self) -> StateKeeper:
        return StateKeeper(self.store, state_fingerprint(self._plan, self._settings))


def _task_of(change: ChangeEvent, tasks: int) -> int:
    row = json.loads(change[4] or change[3] or b"{}")
    return zlib.crc32(str(row.get("id")).encode()) % tasks
