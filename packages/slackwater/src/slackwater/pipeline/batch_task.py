"""The tasks of a batch, as they run in Spark's Python workers.

A worker keeps what the tasks of a pipeline share: packers, prepared statements, open indexes, consumers and
the newest states. All of this can be derived from the program and the store, so a worker may disappear at any
moment.
"""

import os
import pickle
import tempfile
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from slackwater.cdc.batch import BatchTask
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.copied_state import CopyTask, pack_rows
from slackwater.engine.evaluate.evaluators import Evaluators
from slackwater.engine.evaluate.touched_keys import OldRowsNeededError
from slackwater.engine.lmdb_index import (
    LmdbIndex,
    OpenIndexes,
    index_folder,
    remove_unused_indexes,
    unusable_folder,
)
from slackwater.engine.pack.specification import packing_spec
from slackwater.engine.payloads import PackedPayload, documents_stage, with_documents
from slackwater.engine.settings import StageSettings
from slackwater.engine.state.log import LogUpdate, LogWrite, place_writes
from slackwater.engine.state.manifest import (
    SegmentReader,
    State,
    WrittenManifest,
    manifest_path,
    read_state,
    segment_name,
    segment_path,
)
from slackwater.engine.state.store import StateStore, open_store
from slackwater.engine.task import PipelineTask, TaskResult
from slackwater.outputs.kafka.settings import OutputForm
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.task import IdlePackers, collector_paused, read_packed
from slackwater.protocol import SystemClock, make_private_folder
from slackwater.sql.plan import EnginePlan

CARRIED_BYTES: Final = 1 << 20
"""Blobs of a task up to this size are sent to the driver, which writes those of a batch as one segment."""

_KEPT_STATES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgram:
    """Everything that the tasks of a pipeline have in common. It is sent to the workers."""

    plan: EnginePlan = field(repr=False)
    settings: StageSettings
    evaluators: Evaluators | None = field(repr=False)
    """Create the evaluators of rows parts; None for DuckDB."""
    options: SourceOptions = field(repr=False)
    checkpoint: str = field(repr=False)
    """The address of the store that contains the state."""
    query_id: str
    """The name of the folder of the indexes."""
    forms: Mapping[int, OutputForm] = field(default_factory=dict, repr=False)
    """The forms of records by the number of the view; other views have JSON."""
    index_root: str | None
    """The folder on the executors' local disks that contains indexes. None for Spark's local folders, which
    Spark removes when the application ends, so that a restart has to rebuild the indexes."""


@dataclass(frozen=True, slots=True)
class KnownState:
    """The state before a batch, in the form in which workers receive it."""

    name: str
    manifests: tuple[WrittenManifest, ...] = ()
    """The last manifests up to the one with this name, if the run has written them. A worker that has the
    state before one of them does not have to read from the store. Spark distributes small batches over its
    workers in turn."""


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """How long a task took."""

    read: float
    evaluate: float
    stages: Mapping[int, float] = field(default_factory=dict)
    """The part of these seconds for each stage, by its number."""
    task: int = 0
    """The number of the task in its level, from 0; -1 if it is not set yet."""


@dataclass(frozen=True, slots=True)
class NeedsWhole:
    """A task of a large batch cannot do its part: one task has to process the whole batch."""


SourceTask = BatchTask | CopyTask
"""The origin of a batch's changes: records of topics, or rows of a copied state."""

TaskRow = PackedPayload | LogWrite | LogUpdate | TaskSeconds | NeedsWhole
"""What tasks send to other tasks and to the driver."""


def run_whole(program: bytes, state: KnownState, task: SourceTask) -> list[TaskRow]:
    """Reads a small batch and runs it through all stages.

    Args:
        program: A pickled :class:`TaskProgram`.
        state: The state before the batch.
        task: The only task of the batch.
    """
    with collector_paused():
        worker = _worker(program)
        try:
            return worker.run_whole(task, state, keeps_old=False)
        except OldRowsNeededError:
            return worker.run_whole(task, state, keeps_old=True)


def read_part(program: bytes, task: SourceTask) -> list[TaskRow]:
    """Reads a task of a large batch; its payloads are sent to the levels.

    There are none if a row lacks values that are in the bucket of its earlier key: the batch needs one task.
    """
    with collector_paused():
        worker = _worker(program)
        started = time.monotonic()
        payloads, has_moves = worker.read(task)
        seconds = TaskSeconds(time.monotonic() - started, 0.0)
        return [NeedsWhole(), seconds] if has_moves else [*payloads, seconds]


def run_level(
    program: bytes, state: KnownState, stages: Collection[int], batch_id: int, rows: Iterable[TaskRow]
) -> Iterator[TaskRow]:
    """Runs the stages of a level over the buckets of this task, and passes on all other rows.

    Changes of logs that are too large to be sent are written as a segment of this attempt. Nothing is done
    if the batch needs one task.
    """
    with collector_paused():
        worker = _worker(program)
        payloads: list[PackedPayload] = []
        needs_whole = False
        for row in rows:
            needs_whole |= isinstance(row, NeedsWhole)
            if isinstance(row, tuple) and row[0] in stages:
                payloads.append(row)
            else:
                yield row
        if needs_whole or not payloads:
            return
        started = time.monotonic()
        try:
            result = worker.process(payloads, state, stages)
        except OldRowsNeededError:
            yield NeedsWhole()
            return
        yield from result.rows
        if sum(write.length for write in result.writes) <= CARRIED_BYTES:
            yield from result.writes
        else:
            yield from worker.write_segment(batch_id, result.writes)
        yield TaskSeconds(0.0, time.monotonic() - started, result.seconds, task=-1)


class _Worker:
    """What a Python worker keeps for the tasks of a pipeline. Use it from one thread."""

    def __init__(self, program: TaskProgram) -> None:
        self._program = program
        self._spec = packing_spec(program.plan, program.settings.buckets, proof=program.settings.proof)
        self._packers = {keeps: IdlePackers(self._spec, keeps_old=keeps) for keeps in (False, True)}
        self._task = PipelineTask(program.plan, program.settings, program.evaluators)
        self._store = open_store(program.checkpoint)
        self._blobs = SegmentReader(self._store)
        self._fingerprint = state_fingerprint(program.plan, program.settings)
        self._states: dict[str, State] = {}
        self._encode = {
            documents_stage(view): encode
            for view, form in program.forms.items()
            if (encode := form.encoder()) is not None
        }

    def run_whole(self, task: SourceTask, known: KnownState, *, keeps_old: bool) -> list[TaskRow]:
        """Reads the only task of a batch, with old rows on request, and runs it through all stages."""
        started = time.monotonic()
        payloads, has_moves = self.read(task, keeps_old=keeps_old)
        read = time.monotonic()
        result = self.process(payloads, known, has_moves=has_moves)
        seconds = TaskSeconds(read - started, time.monotonic() - read, result.seconds)
        return [*result.rows, *result.writes, seconds]

    def read(self, task: SourceTask, *, keeps_old: bool = False) -> tuple[list[PackedPayload], bool]:
        """Reads and packs the records or rows of a task.

        Returns:
            The payloads, and whether rows lack values that they had under other primary keys.
        """
        if isinstance(task, CopyTask):
            return list(pack_rows(task, self._spec, self._blobs)), False
        packers = self._packers[keeps_old]
        return read_packed(self._program.options, packers, task), packers.take_has_moves()

    def process(
        self,
        payloads: Iterable[PackedPayload],
        known: KnownState,
        stages: Collection[int] | None = None,
        *,
        has_moves: bool = False,
    ) -> TaskResult:
        """Runs payloads through stages."""
        state, find = self._state(known), self._index
        result = self._task.process(payloads, state, self._blobs, find, stages, has_moves=has_moves)
        if self._encode:
            result.rows = list(self._encoded(result.rows))
        return result

    def _encoded(self, rows: Iterable[PackedPayload]) -> Iterator[PackedPayload]:
        """Yields rows with documents in the form of their output.

        This is done in tasks because there are many workers and one driver.
        """
        for row in rows:
            encode = self._encode.get(row[0])
            yield row if encode is None else (*row[:3], with_documents(row[3], encode))

    def write_segment(self, batch_id: int, writes: list[LogWrite]) -> list[LogUpdate]:
        """Writes the blobs of a task to the store, under a name that only this attempt uses."""
        name = segment_name(batch_id, uuid.uuid4().hex)
        data, updates = place_writes(name, writes)
        self._store.write(segment_path(name), data)
        return updates

    def _state(self, known: KnownState) -> State:
        state = self._states.get(known.name)
        if state is None:
            told = {manifest_path(manifest.name): manifest.data for manifest in known.manifests}
            state = read_state(_ToldFiles(told, self._store), known.name, self._fingerprint, self._states)
            self._states[known.name] = state
            while len(self._states) > _KEPT_STATES:
                del self._states[next(iter(self._states))]
        return state

    def _index(self, stage: int, bucket: int) -> LmdbIndex:
        program = self._program
        if program.index_root is not None:
            root = _clean_root(program.index_root)
        else:
            folders = (os.environ.get("SPARK_LOCAL_DIRS") or _temporary_root()).split(",")
            root = Path(folders[bucket % len(folders)])
        return _open_indexes().get(index_folder(root, program.query_id, f"stage-{stage}", bucket))


@dataclass(frozen=True, slots=True)
class _ToldFiles:
    """Files that the driver has sent with the batch; all others are in the store."""

    files: Mapping[str, bytes]
    store: StateStore

    def read(self, name: str) -> bytes | None:
        return self.files.get(name) or self.store.read(name)


@lru_cache(maxsize=4)
def _worker(program: bytes) -> _Worker:
    """Returns the worker of a pipeline, which keeps what it has prepared from task to task."""
    return _Worker(pickle.loads(program))  # noqa: S301 - from our own driver


@lru_cache(maxsize=1)
def _open_indexes() -> OpenIndexes:
    """Returns the open indexes of this Python worker; LMDB allows one handle of a folder per process."""
    return OpenIndexes()


@lru_cache(maxsize=4)
def _clean_root(root: str) -> Path:
    """Removes the indexes of queries that no longer exist from a root that outlives them."""
    remove_unused_indexes(Path(root), SystemClock().now())
    return Path(root)


@lru_cache(maxsize=1)
def _temporary_root() -> str:
    """Creates a root among temporary files, where other accounts could have created the same folder."""
    root = Path(tempfile.gettempdir()) / f"slackwater-{os.getuid()}"
    try:
        make_private_folder(root)
    except OSError as error:
        raise unusable_folder(root, str(error)) from error
    return str(root)
