"""Batches as Spark jobs: Spark schedules the tasks, repeats those that fail, and transports their rows.

A small batch is one task that reads and runs all stages. A large batch is divided: its source tasks pack
changes by bucket, and each level of stages is one exchange, after which a task has everything that the batch
contains for its buckets. If that does not suffice (values of a row are in the bucket of its earlier key, or
several rows have one key within a transaction), one task processes the whole batch.
"""

import pickle
import re
import struct
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, BinaryIO, Final, TypeVar

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]  # has no stubs
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import Serializer
from pyspark.util import _load_from_socket

from slackwater.cdc.batch import PlannedBatch, in_one_task
from slackwater.engine.payloads import PackedPayload
from slackwater.engine.state.log import LogUpdate, LogWrite
from slackwater.pipeline.batch_task import (
    KnownState,
    NeedsWhole,
    SourceTask,
    TaskProgram,
    TaskRow,
    TaskSeconds,
    read_part,
    run_level,
    run_whole,
)
from slackwater.pipeline.copied_state import CopiedBatch
from slackwater.pipeline.jvm import explain_jvm_end
from slackwater.protocol import StageWork

SPARK_ERRORS: Final = (Py4JError, PySparkException, OSError)
"""What a call into Spark raises: Java's error, a ``PySparkException`` if the process has created a session,
or an ``OSError`` if the connection broke."""

T = TypeVar("T")

_TAG: Final = "slackwater-"
"""The beginning of the tags of batches' jobs."""
_TRACEBACK: Final = "Traceback (most recent call last)"
_RAISED: Final = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt))(?:: (?P<reason>.*))?$"
)
_JAVA_CAUSE: Final = re.compile(r"^(?:: |Caused by: )(?P<type>[\w.$]+): (?P<reason>.+)$")
"""The error of a call into Java, and its causes."""
_JAVA_FRAME: Final = re.compile(r"^\s+at [\w.$/<>]+\(|^\s*(?:Caused by: |Driver stacktrace:|\.\.\. \d+ more)")
_SQL_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
"""The suffix that Spark adds to every error of a task."""
_WORKER_ENDED: Final = "Python worker exited unexpectedly"
_CANCELLED: Final = "[SPARK_JOB_CANCELLED]"


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
    needs_whole: bool = False
    """Whether one task has to process the batch, and the rest of the result is void."""

    def stage_work(self) -> tuple[StageWork, ...]:
        """Returns the cost of each stage."""
        return tuple(_work(stage, self.stage_seconds[stage]) for stage in sorted(self.stage_seconds))


class BatchJobs:
    """Runs the batches of a pipeline, all in the thread that creates this object.

    Args:
        context: Spark's context.
        program: What the tasks have in common.
        parallelism: The number of tasks of each level of a large batch.
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
        """Runs a batch. It may be repeated.

        Raises:
            SPARK_ERRORS: A task failed as often as Spark repeats it, or Spark has ended.
        """
        if len(planned.tasks) == 1:
            run = partial(_run_whole, self._program, state, planned.tasks[0])
            return _sorted_out(collect(self._one.mapPartitions(run)))
        result = _sorted_out(collect(self._large(batch_id, planned.tasks, state)))
        if result.needs_whole and isinstance(planned, PlannedBatch):
            return self.run(batch_id, replace(planned, tasks=(in_one_task(planned.tasks),)), state)
        return result

    def check(self) -> None:
        """Detects, while there is no batch, that Spark's JVM has ended; takes microseconds.

        Raises:
            SPARK_ERRORS: Spark has ended.
        """
        if (ended := explain_jvm_end()) is not None:
            raise ConnectionError(ended)

    def cancel(self) -> None:
        """Ends the running batch, if there is one, with an error; other jobs continue. Thread-safe.

        Raises:
            SPARK_ERRORS: Spark has ended.
        """
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
            rows = rows.partitionBy(self._parallelism, _as_it_is).mapPartitionsWithIndex(level)
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


def collect(rdd: RDD[T]) -> list[T]:
    """Runs a job and returns its rows, like ``RDD.collect``, which takes twice as long for a small batch.

    For each job, ``RDD.collect`` makes Spark read the code of its largest classes three times, in search of
    statements that closures must not contain. An asynchronous job searches once, in a small class. Its rows
    are then transferred through a socket, because Py4J would convert them to text.

    Raises:
        SPARK_ERRORS: A task failed as often as Spark repeats it, or Spark has ended.
    """
    jvm: Any = rdd.context._jvm  # noqa: SLF001 - Spark's own names, here and below
    packed: Any = rdd._jrdd.collectAsync().get()  # noqa: SLF001
    frames = len(packed)
    rows = jvm.scala.jdk.javaapi.CollectionConverters.asScala(packed.iterator())
    served = jvm.PythonRDD.serveIterator(rows, "serve the rows of a batch")
    try:
        with _load_from_socket(served, _Frames(rdd._jrdd_deserializer)) as found:  # noqa: SLF001
            received: list[Iterable[T]] = list(found)
    except (OSError, struct.error, UnboundLocalError) as error:
        # The second is of a connection that breaks within a length, the third of one that could not be made:
        # PySpark then closes a socket that it has not opened.
        raise Py4JNetworkError(f"the rows of a batch did not arrive: {error}") from error
    # PySpark takes the end of a connection for the end of the rows, but a killed JVM has sent a part of them.
    if len(received) != frames:
        raise Py4JNetworkError(f"only {len(received)} of {frames} messages with the rows of a batch arrived")
    return list(chain.from_iterable(received))


class _Frames(Serializer):
    """Reads messages of rows, and keeps them separate."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer

    def load_stream(self, stream: BinaryIO) -> Any:
        """Returns the rows of each message."""
        return self._serializer._load_stream_without_unbatching(stream)  # type: ignore[no-untyped-call]  # noqa: SLF001


def _run_whole(program: bytes, state: KnownState, task: SourceTask, rows: Iterator[int]) -> list[TaskRow]:
    _read_to_end(rows)
    return run_whole(program, state, task)


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
    found = run_level(program, state, stages, batch_id, (row for _, row in rows))
    return _addressed(_numbered(found, number), number, parallelism)


def _numbered(rows: Iterable[TaskRow], number: int) -> Iterator[TaskRow]:
    """Adds the number of the task to measured times that do not have one from an earlier level."""
    for row in rows:
        yield replace(row, task=number) if isinstance(row, TaskSeconds) and row.task < 0 else row


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


def _read_to_end(rows: Iterator[int]) -> None:
    """Reads the input of a task to its end.

    Otherwise Spark would end the worker, with everything that it keeps.
    """
    for _ in rows:
        pass


def _as_it_is(number: int) -> int:
    return number


def _sorted_out(rows: Iterable[TaskRow]) -> BatchResult:
    result = BatchResult()
    for row in rows:
        match row:
            case LogWrite():
                result.writes.append(row)
            case LogUpdate():
                result.updates.append(row)
            case TaskSeconds():
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


def root_cause(text: str) -> tuple[str, str]:
    """Returns name and message of the Python error in the text, or else of Java's deepest cause.

    Spark wraps the error of a task in messages of its own, and repeats stack traces of both languages. The
    relevant error is the last one of the first chain of Python tracebacks, which ends where Java's frames
    begin.
    """
    lines = text.splitlines()
    found: tuple[str, str] | None = None
    is_inside = False
    for number, line in enumerate(lines):
        if found is not None and _JAVA_FRAME.match(line):
            break
        if _TRACEBACK in line:
            is_inside = True
        elif is_inside and (raised := _RAISED.match(line)) is not None:
            is_inside = False
            message = _whole_message(raised["reason"] or "", lines[number + 1 :])
            found = raised["type"].rpartition(".")[2], message
    if found is not None:
        return found
    if _WORKER_ENDED in text:
        return (
            "PythonProcessEndedError",
            "a Python process that computes batches ended at each of Spark's attempts; perhaps it was "
            "killed, or ran out of memory. Nothing is lost: start the pipeline again",
        )
    causes = [cause for line in lines if (cause := _JAVA_CAUSE.match(line)) is not None]
    if causes:
        return causes[-1]["type"].rpartition(".")[2], causes[-1]["reason"]
    return "SparkError", next((line.strip() for line in lines if line.strip()), "no reason given")


def is_cancelled(text: str) -> bool:
    """Returns whether the text says that the batch was cancelled."""
    return _CANCELLED in text and _TRACEBACK not in text


def _whole_message(first: str, following: list[str]) -> str:
    """Joins the lines of a message, which ends at an empty line, a Java frame or the next traceback."""
    message = [first]
    for line in following:
        if not line.strip() or _JAVA_FRAME.match(line) or _TRACEBACK in line:
            break
        message.append(line)
    return _SQL_STATE.sub("", "\n".join(message)).strip()
