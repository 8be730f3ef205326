"""The data source behind ``format("slackwater")``, which Spark calls.

Spark imports this module on the first read of every session, also if the session never uses this source, and
again in the workers that run its tasks. Large modules are therefore imported where they are needed. Only the
driver plans; readers are sent to executors without their planner.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from slackwater.pipeline.source.options import SourceOptions
    from slackwater.pipeline.source.planner import Planner

FORMAT = "slackwater"

ROW_SCHEMA: Final = (
    "source STRING, `table` STRING, op STRING, key STRING, before STRING, after STRING, xid BIGINT, "
    "commit_lsn BIGINT, commit_ts TIMESTAMP, order_in_transaction BIGINT, `partition` INT, `offset` BIGINT"
)
"""``xid`` and ``order_in_transaction`` are null for rows of snapshots, whose ``op`` is ``r``.

A TRUNCATE is a row with ``op`` ``t`` and neither key nor row, in any partition. It removes every row of its
table, including those of its own transaction with a smaller ``order_in_transaction``.
"""


class SlackwaterSource(DataSource):
    """Changes of database tables in whole transactions, each with its commit LSN.

    It reads what a sidecar has declared complete. :class:`slackwater.pipeline.source.options.SourceOptions`
    describes the options, and :data:`ROW_SCHEMA` the columns. Options are checked when the frame is created.
    """

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return FORMAT

    def schema(self) -> StructType | str:
        """Returns the columns.

        Raises:
            ConfigError: An option cannot be used; the error names the first one.
        """
        options = self._parsed_options()
        if options.typing is not None:
            from slackwater.pipeline.source.typed_rows import typed_row_schema

            return typed_row_schema(options.typing)
        return ROW_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Returns the reader for ``spark.readStream``."""
        return SlackwaterStreamReader(self._parsed_options(), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader for ``spark.read``, which reads everything up to the newest cut."""
        return SlackwaterBatchReader(self._parsed_options(), schema)

    def _parsed_options(self) -> "SourceOptions":
        from slackwater.pipeline.source.options import SourceOptions

        return SourceOptions.parse(self.options)


class _Reader:
    """Plans batches in the driver and reads their tasks in executors."""

    def __init__(self, options: "SourceOptions", schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._connected: Planner | None = None

    @property
    def _planner(self) -> "Planner":
        """The planner, which is created on first use."""
        if self._connected is None:
            from slackwater.pipeline.source.planner import Planner

            self._connected = Planner(self._options)
        return self._connected

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """Reads the rows of a task, in an executor."""
        from slackwater.pipeline.source.task import read_task

        return read_task(self._options, self._schema, partition.value)

    def stop(self) -> None:
        """Closes the driver's connections."""
        if self._connected is not None:
            self._connected.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_connected": None}


class SlackwaterStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams whole transactions; batches end at cuts only."""

    def __init__(self, options: "SourceOptions", schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: int | None = None
        self._seen: dict[str, Any] | None = None
        self._begins_at_newest = False

    def initialOffset(self) -> dict[str, Any]:
        """Returns the position at which a query without a checkpoint begins."""
        from slackwater.engine.settings import Scope

        options = self._options
        self._begins_at_newest = options.starting == "latest" and options.scope is Scope.STRICT
        return self._planner.start().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the number of change events per batch from the options."""
        return ReadMaxRows(self._options.max_events_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes where this run ends: at the current end of the cut log."""
        self._target = self._planner.target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the newest cut within the limit, at least the next one; ``start`` if there is none.

        A query that begins at the newest cut gets an empty first batch. If Spark repeats this batch, it asks
        for the beginning again, and gets a newer one.
        """
        if self._begins_at_newest and self._seen is None:
            self._seen = start
            return start
        from slackwater.pipeline.source.kafka_reader import collector_paused

        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with collector_paused():
            begin = self._planner.offset(start)
            end = self._planner.next(begin, max_events, self._target)
        self._seen = start if end is begin else end.to_json()  # the unchanged JSON says that nothing is new
        return self._seen

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the newest planned position."""
        return self._seen

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the tasks between two offsets, which were planned now or, after a restart, earlier."""
        from slackwater.pipeline.source.kafka_reader import collector_paused

        with collector_paused():
            begin = self._planner.offset(start)
            return [InputPartition(task) for task in self._planner.tasks(begin, self._planner.offset(end))]


class SlackwaterBatchReader(_Reader, DataSourceReader):
    """Reads everything up to the newest cut, once."""

    def partitions(self) -> list[InputPartition]:
        """Returns the tasks from the beginning to the newest cut."""
        from slackwater.cdc.batch import BatchTask, TransactionTable
        from slackwater.pipeline.source.kafka_reader import collector_paused

        planner = self._planner
        try:
            with collector_paused():
                start = planner.start()
                tasks = planner.tasks(start, planner.next(start, None, planner.target()))
        finally:
            self.stop()
        return [InputPartition(task) for task in tasks or [BatchTask((), TransactionTable(()))]]
