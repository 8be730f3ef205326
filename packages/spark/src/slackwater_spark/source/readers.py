"""What Spark calls: planning in the driver, reading in the tasks."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from slackwater_protocol import encode_batch_header
from slackwater_spark.scope import Scope
from slackwater_spark.source.batch import BatchContent, BatchTask, TransactionTable
from slackwater_spark.source.batch_planner import BatchPlanner, cut_log, marker_store
from slackwater_spark.source.collector import collector_at_rest
from slackwater_spark.source.offset import SourceOffset
from slackwater_spark.source.options import SourceOptions
from slackwater_spark.source.plan import TaskPolicy, plan_tasks, spans_between

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from slackwater_spark.source.aggregate import AggregatePlanner
    from slackwater_spark.source.cut_feed import CutFeed


class Planner(BatchPlanner[SourceOffset, "CutFeed"]):
    """Plans batches that end at cuts."""

    def start(self) -> SourceOffset:
        """Where a query without a checkpoint begins."""
        beginning = SourceOffset.before_everything(self.options.source, self.options.timeline)
        return self.newest(beginning) if self.options.starting == "latest" else beginning

    def target(self) -> int:
        """The newest cut now: what a run that takes only what is there does not go beyond."""
        return self.newest(SourceOffset.before_everything(self.options.source, self.options.timeline)).lsn

    def newest(self, start: SourceOffset) -> SourceOffset:
        """The newest cut, or ``start`` while there is none above it."""
        newest = self.feed.newest()
        if newest is None or newest.cut.lsn <= start.lsn:
            return start
        return start.advanced_to(newest, self.options.topics, self.feed.log_id)

    def next(self, start: SourceOffset, max_events: int | None, target_lsn: int | None) -> SourceOffset:
        """Where the batch that begins at ``start`` ends; ``start`` itself when there is nothing new."""
        from slackwater_spark.source.admission import choose_cut

        if target_lsn is not None and start.lsn >= target_lsn:
            return start
        cuts = self.feed.after(start, max_events=max_events)
        chosen = choose_cut(start, cuts, max_events=max_events, target_lsn=target_lsn)
        return start if chosen is None else start.advanced_to(chosen, self.options.topics, self.feed.log_id)

    def tasks(self, start: SourceOffset, end: SourceOffset) -> list[BatchTask]:
        """The tasks of a batch; none when it is empty."""
        if start.lsn >= end.lsn:
            return []
        options = self.options
        content = BatchContent.of(self.feed.between(start, end), start, end)
        policy = TaskPolicy(options.parallelism, options.min_task_events, options.target_task_events)
        spans = spans_between(start.end if start.lsn else self.feed.beginning(), end.end)
        plans = plan_tasks(spans, policy, may_split=content.may_split, keep_topics=bool(content.repeated))
        header = None
        if options.packing is not None:
            header = encode_batch_header(content.header(start, end))
            plans = plans or [[]]
        table = TransactionTable(content.transactions)
        may_start_late = options.allow_truncated_start and start.lsn == 0
        return [
            BatchTask(
                tuple(plan),
                table,
                content.repeated,
                None if number else header,
                may_start_late,
                content.late_snapshots,
                content.has_incremental_rows,
                end.lsn,
                has_whole_topics=bool(content.repeated),
            )
            for number, plan in enumerate(plans)
        ]

    def offset(self, data: dict[str, Any]) -> SourceOffset:
        """Reads an offset that Spark hands over."""
        return SourceOffset.from_json(data, source=self.options.source, timeline=self.options.timeline)

    def _connect(self) -> "CutFeed":
        from slackwater_spark.source.cut_feed import CutFeed, FeedKey

        options = self.options
        return CutFeed(
            FeedKey(options.source, options.timeline, options.allow_truncated_start),
            store=marker_store(options),
            log=cut_log(options),
            monotonic=time.monotonic,
        )


def planner(options: SourceOptions) -> "Planner | AggregatePlanner":
    """The planner of the query's scope."""
    from slackwater_spark.source.aggregate import AggregatePlanner

    return AggregatePlanner(options) if options.scope is Scope.AGGREGATE else Planner(options)


class SlackwaterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams whole transactions; batches end at cuts only."""

    def __init__(self, options: SourceOptions, schema: "StructType") -> None:
        self._planner = planner(options)
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
        """Freezes where this run ends: at the newest cut, or at the end of the cut log (``aggregate``)."""
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
        with collector_at_rest():
            self._seen = self._planner.next_json(start, max_events, self._target)
        return self._seen

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What was planned last."""
        return self._seen

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of the batch between two offsets, planned now or, after a restart, long ago."""
        with collector_at_rest():
            return list(self._planner.tasks_json(start, end))

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """The rows of a task, in an executor."""
        return read_task(self._planner.options, self._schema, partition)

    def stop(self) -> None:
        """Frees the driver's connections."""
        self._planner.close()


class SlackwaterBatchReader(DataSourceReader):
    """Reads everything up to the newest cut, once."""

    def __init__(self, options: SourceOptions, schema: "StructType") -> None:
        self._planner = planner(options)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks from the beginning to the newest cut."""
        try:
            with collector_at_rest():
                start = self._planner.start().to_json()
                end = self._planner.next_json(start, None, self._planner.target())
                tasks = self._planner.tasks_json(start, end)
        finally:
            self._planner.close()
        return list(tasks) or [BatchTask((), TransactionTable(()))]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """The rows of a task, in an executor."""
        return read_task(self._planner.options, self._schema, partition)


def read_task(options: SourceOptions, schema: "StructType", task: InputPartition) -> Iterator["RecordBatch"]:
    """Reads a task's spans, as rows or packed."""
    if not isinstance(task, BatchTask):
        raise TypeError(f"expected a BatchTask, got {type(task).__name__}")
    with collector_at_rest():
        yield from _read(options, schema, task)


def _read(options: SourceOptions, schema: "StructType", task: BatchTask) -> Iterator["RecordBatch"]:
    from slackwater_spark.source.avro import kept_decoder
    from slackwater_spark.source.changes import BatchChanges, find_keyless, find_places
    from slackwater_spark.source.kafka_reader import SpanReader, kept_consumer
    from slackwater_spark.source.packed import PackedWriter
    from slackwater_spark.source.rows import RowWriter, TypedRowWriter

    topics, to_json = options.source_topics, kept_decoder(options)
    places = None
    with kept_consumer(options.consumer_settings) as consumer:
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
