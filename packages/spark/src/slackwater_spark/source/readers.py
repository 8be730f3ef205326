"""What Spark calls: planning in the driver, reading in the tasks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from slackwater_engine.collector import collector_paused
from slackwater_engine.records.batch import BatchTask, TransactionTable
from slackwater_engine.scope import Scope
from slackwater_spark.source.options import SourceOptions
from slackwater_spark.source.planner import Planner

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType


class SlackwaterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams whole transactions; batches end at cuts only."""

    def __init__(self, options: SourceOptions, schema: "StructType") -> None:
        self._planner = Planner(options)
        self._schema = schema
        self._target: int | None = None
        self._seen: dict[str, Any] | None = None
        self._begins_at_newest = False

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        options = self._planner.options
        self._begins_at_newest = options.starting == "latest" and options.scope is Scope.STRICT
        return self._planner.start().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Change events per batch, as the option says."""
        return ReadMaxRows(self._planner.options.max_events_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freezes where this run ends: at what the cut log has now."""
        self._target = self._planner.target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The newest cut that the limit admits, at least the next one; ``start`` when there is none.

        A query that begins at the newest cut gets an empty first batch: Spark asks for the beginning again
        when it repeats that batch, and is then told a newer one.
        """
        if self._begins_at_newest and self._seen is None:
            self._seen = start
            return start
        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with collector_paused():
            self._seen = self._planner.next_json(start, max_events, self._target)
        return self._seen

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What was planned last."""
        return self._seen

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of the batch between two offsets, planned now or, after a restart, long ago."""
        with collector_paused():
            return [InputPartition(task) for task in self._planner.tasks_json(start, end)]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """The rows of a task, in an executor."""
        return read_task(self._planner.options, self._schema, partition.value)

    def stop(self) -> None:
        """Frees the driver's connections."""
        self._planner.close()


class SlackwaterBatchReader(DataSourceReader):
    """Reads everything up to the newest cut, once."""

    def __init__(self, options: SourceOptions, schema: "StructType") -> None:
        self._planner = Planner(options)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks from the beginning to the newest cut."""
        try:
            with collector_paused():
                start = self._planner.start().to_json()
                end = self._planner.next_json(start, None, self._planner.target())
                tasks = self._planner.tasks_json(start, end)
        finally:
            self._planner.close()
        return [InputPartition(task) for task in tasks or [BatchTask((), TransactionTable(()))]]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """The rows of a task, in an executor."""
        return read_task(self._planner.options, self._schema, partition.value)


def read_task(options: SourceOptions, schema: "StructType", task: BatchTask) -> Iterator["RecordBatch"]:
    """Reads a task's spans, as rows or packed."""
    with collector_paused():
        yield from _read(options, schema, task)


def _read(options: SourceOptions, schema: "StructType", task: BatchTask) -> Iterator["RecordBatch"]:
    from slackwater_engine.records.changes import BatchChanges, find_keyless, find_places
    from slackwater_spark.source.avro import kept_decoder
    from slackwater_spark.source.kafka_reader import SpanReader, kept_consumer
    from slackwater_spark.source.packed import PackedWriter
    from slackwater_spark.source.rows import RowWriter, TypedRowWriter

    topics, to_json = options.source_topics, kept_decoder(options)
    places = None
    with kept_consumer(options.servers.kafka.client_config) as consumer:
        reader = SpanReader(
            consumer, timeout_seconds=options.read_timeout_ms / 1000, may_start_late=task.may_start_late
        )
        if task.needs_look_ahead:
            seen = reader.read(task.spans)
            places = find_places(task, options.source, options.tables, seen, topics=topics, to_json=to_json)
        keyless = None
        if task.repeated and task.has_whole_topics:
            seen = reader.read(task.spans)
            keyless = find_keyless(
                task, options.source, options.tables, seen, places=places, topics=topics, to_json=to_json
            )
        changes = BatchChanges(
            task, options.source, options.tables, places, topics=topics, to_json=to_json, keyless=keyless
        )
        portions = reader.read(task.spans)
        if options.typing is not None:
            yield from TypedRowWriter(options.source, options.typing, schema, changes).write(portions)
        elif options.packing is None:
            yield from RowWriter(options.source, schema, changes, to_json).write(portions)
        else:
            yield from PackedWriter(options.packing, schema, changes).write(task.header, portions)
