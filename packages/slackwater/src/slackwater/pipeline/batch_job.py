"""Batches as Spark jobs: Spark schedules the tasks, repeats those that fail, and transports their rows.

A small batch is one task that reads and runs all stages. A large batch is divided: its source tasks pack
changes by bucket, and each level of stages is one exchange, after which a task has everything that the batch
contains for its buckets. If that does not suffice (values of a row are in the bucket of its earlier key, or
several rows have one key within a transaction), one task processes the whole batch.
"""

import os
import pickle
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext

from slackwater.cdc.batch import BatchTask, PlannedBatch, in_one_task
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.copied_state import CopyTask, pack_rows
from slackwater.engine.evaluate.touched_keys import OldRowsNeededError
from slackwater.engine.lmdb_index import (
    LmdbIndex,
    OpenIndexes,
    index_folder,
    remove_unused_indexes,
    unusable_folder,
)
from slackwater.engine.packer import packing_spec
from slackwater.engine.payloads import PackedPayload, documents_stage, with_documents
from slackwater.engine.settings import Evaluators, StageSettings
from slackwater.engine.state.log import LogUpdate, LogWrite, place_writes
from slackwater.engine.state.manifest import (
    SegmentReader,
    State,
    WrittenManifest,
    read_state,
    segment_name,
    segment_path,
)
from slackwater.engine.state.store import open_store
from slackwater.engine.task import PipelineTask, TaskResult
from slackwater.outputs.kafka.settings import OutputForm
from slackwater.pipeline.copied_state import CopiedBatch
from slackwater.pipeline.jvm import SPARK_ERRORS, collect, explain_jvm_end
from slackwater.pipeline.source.kafka_reader import collector_paused
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.task import IdlePackers, read_packed
from slackwater.protocol import StageWork, SystemClock, make_private_folder
from slackwater.sql.plan import EnginePlan

_TAG: Final = "slackwater-"
"""The beginning of the tags of batches' jobs."""
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
    """How long a task took, and how many keys it withholds."""

    read: float
    evaluate: float
    stages: Mapping[int, float] = field(default_factory=dict)
    """The part of these seconds for each stage, by its number."""
    task: int = 0
    """The number of the task in its level, from 0."""
    withheld: Mapping[int, int] = field(default_factory=dict)
    """How many more keys, by the number of the view that shows them."""


@dataclass(frozen=True, slots=True)
class NeedsWhole:
    """A task of a large batch cannot do its part: one task has to process the whole batch."""


SourceTask = BatchTask | CopyTask
"""The origin of a batch's changes: records of topics, or rows of a copied state."""

TaskRow = PackedPayload | LogWrite | LogUpdate | TaskSeconds | NeedsWhole
"""What tasks send to other tasks and to the driver."""


@dataclass(slots=True)
class BatchResult:
    """The results of the tasks of a batch."""

    rows: list[PackedPayload] = field(default_factory=list)
    """Documents."""
    writes: list[LogWrite] = field(default_factory=list)
    """The changes of logs whose blobs are not in a segment yet."""
    updates: list[LogUpdate] = field(default_factory=list)
    """The changes of logs whose blobs are in segments that tasks have written."""
    read_seconds: float = 0.0
    """The longest time that a task has read."""
    evaluate_seconds: float = 0.0
    """The longest time that a task has evaluated, summed over the levels."""
    stage_seconds: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """For each stage, the seconds and the number of each task that worked for it."""
    withheld: Counter[int] = field(default_factory=Counter)
    """How many more keys are withheld, by the number of the view that shows them."""
    needs_whole: bool = False
    """Whether one task has to process the batch, and the rest of the result is void."""

    def stage_work(self) -> tuple[StageWork, ...]:
        """Returns the cost of each stage."""
        return tuple(_work(stage, self.stage_seconds[stage]) for stage in sorted(self.stage_seconds))


class BatchJobs:
    """Runs the batches of a pipeline, all in the thread that creates this object.

    Methods raise SPARK_ERRORS if a task failed as often as Spark repeats it, or Spark has ended.
    """

    def __init__(self, context: SparkContext, program: TaskProgram, parallelism: int) -> None:
        self._context = context
        self.use(program)
        self._levels = program.plan.levels
        self._parallelism = parallelism
        self._one = context.parallelize([0], 1)
        self._tag = f"{_TAG}{uuid.uuid4().hex}"
        context.addJobTag(self._tag)

    def use(self, program: TaskProgram) -> None:
        """Runs all further batches with this program, whose plan is the same."""
        self._program = pickle.dumps(program)

    def run(self, batch_id: int, planned: PlannedBatch | CopiedBatch, state: KnownState) -> BatchResult:
        """Runs a batch. It may be repeated."""
        if len(planned.tasks) == 1:
            run = partial(run_whole, self._program, state, planned.tasks[0])
            return _sorted_out(collect(self._one.mapPartitions(run)))
        result = _sorted_out(collect(self._large(batch_id, planned.tasks, state)))
        if result.needs_whole and isinstance(planned, PlannedBatch):
            return self.run(batch_id, replace(planned, tasks=(in_one_task(planned.tasks),)), state)
        return result

    def check(self) -> None:
        """Detects, while there is no batch, that Spark's JVM has ended; takes microseconds."""
        if (ended := explain_jvm_end()) is not None:
            raise ConnectionError(ended)

    def cancel(self) -> None:
        """Ends the running batch, if there is one, with an error; other jobs continue. Thread-safe."""
        self._context.cancelJobsWithTag(self._tag)

    def close(self) -> None:
        """Stops marking further jobs of this thread as jobs of batches. Never raises."""
        with suppress(*SPARK_ERRORS):  # Spark may be no more
            self._context.removeJobTag(self._tag)

    def _large(self, batch_id: int, tasks: tuple[SourceTask, ...], state: KnownState) -> Any:
        numbers = self._context.parallelize(range(len(tasks)), len(tasks))
        rows: Any = numbers.mapPartitionsWithIndex(partial(_read, self._program, tasks, self._parallelism))
        for stages in self._levels:
            level = partial(_run_level, self._program, state, stages, batch_id, self._parallelism)
            rows = rows.partitionBy(self._parallelism, int).mapPartitionsWithIndex(level)
        return rows.values()


@contextmanager
def jobs_of_others(context: SparkContext) -> Iterator[None]:
    """Excludes the jobs that this thread starts within the block from the cancellation of a run."""
    tags = [tag for tag in context.getJobTags() if tag.startswith(_TAG)]
    for tag in tags:
        context.removeJobTag(tag)
    try:
        yield
    finally:
        with suppress(*SPARK_ERRORS):  # which the next batch reports
            for tag in tags:
                context.addJobTag(tag)


def _sorted_out(rows: Iterable[TaskRow]) -> BatchResult:
    result = BatchResult()
    for row in rows:
        match row:
            case LogWrite():
                result.writes.append(row)
            case LogUpdate():
                result.updates.append(row)
            case TaskSeconds():
                result.withheld.update(row.withheld)
                result.read_seconds = max(result.read_seconds, row.read)
                result.evaluate_seconds = max(result.evaluate_seconds, row.evaluate)
                for stage, seconds in row.stages.items():
                    result.stage_seconds.setdefault(stage, []).append((seconds, row.task))
            case NeedsWhole():
                result.needs_whole = True
            case _:
                result.rows.append(row)
    return result


def _work(stage: int, seconds: list[tuple[float, int]]) -> StageWork:
    slowest, task = max(seconds)
    return StageWork(
        stage=stage,
        total_us=round(sum(each for each, _ in seconds) * 1_000_000),
        tasks=len(seconds),
        slowest_us=round(slowest * 1_000_000),
        slowest_task=task,
    )


def _read(
    program: bytes, tasks: tuple[SourceTask, ...], parallelism: int, number: int, rows: Iterator[int]
) -> Iterator[tuple[int, TaskRow]]:
    _read_to_end(rows)
    return _addressed(read_part(program, tasks[number]), number, parallelism)


def _run_level(
    program: bytes,
    state: KnownState,
    stages: tuple[int, ...],
    batch_id: int,
    parallelism: int,
    number: int,
    rows: Iterator[tuple[int, TaskRow]],
) -> Iterator[tuple[int, TaskRow]]:
    found = run_level(program, state, stages, batch_id, (row for _, row in rows), number)
    return _addressed(found, number, parallelism)


def _addressed(rows: Iterable[TaskRow], number: int, parallelism: int) -> Iterator[tuple[int, TaskRow]]:
    """Adds to each row the task of the next level that receives it.

    Rows that no stage receives go to the task with this number; that one task is needed, to all tasks.
    """
    for row in rows:
        if isinstance(row, NeedsWhole):
            yield from ((place, row) for place in range(parallelism))
        else:
            place = row[1] if isinstance(row, tuple) and row[0] > 0 else number
            yield place % parallelism, row


def _read_to_end(rows: Iterable[int]) -> None:
    """Reads the input of a task to its end.

    Otherwise Spark would end the worker, with everything that it keeps.
    """
    for _ in rows:
        pass


def run_whole(
    program: bytes, state: KnownState, task: SourceTask, numbers: Iterable[int] = ()
) -> list[TaskRow]:
    """Reads a small batch, whose only task this is, and runs it through all stages after a state."""
    _read_to_end(numbers)
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
    program: bytes,
    state: KnownState,
    stages: Collection[int],
    batch_id: int,
    rows: Iterable[TaskRow],
    number: int = 0,
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
        if sum(len(write.data) for write in result.writes) <= CARRIED_BYTES:
            yield from result.writes
        else:
            yield from worker.write_segment(batch_id, result.writes)
        yield TaskSeconds(0.0, time.monotonic() - started, result.seconds, number, result.withheld)


class _Worker:
    """What a Python worker keeps for the tasks of a pipeline, all of which can be made again.

    Use it from one thread.
    """

    def __init__(self, program: TaskProgram) -> None:
        self._program = program
        self._spec = packing_spec(
            program.plan,
            program.settings.buckets,
            proof=program.settings.proof,
            every_commit=program.settings.every_commit,
        )
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
        took = time.monotonic() - read
        seconds = TaskSeconds(read - started, took, result.seconds, withheld=result.withheld)
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
            state = read_state(self._store, known.name, self._fingerprint, self._states, known.manifests)
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
