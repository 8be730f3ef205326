"""Runs ``foreachBatch`` over whole transactions, and determines which transactions a batch contains."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from slackwater.api.change_frame import Changes
from slackwater.engine.settings import Scope
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position
from slackwater.protocol import SNAPSHOT_XID, ConfigError, StateError

_OUR_FIELDS = {"version", "source", "timeline", "log"}
"""The fields by which offsets of our source are recognised."""
_LOG_VERSION = "v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL = "file:"

ReadFile = Callable[[str], str | None]
"""Returns the text of a file below the checkpoint; None if it does not exist."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of the source database."""

    xid: int | None
    """The top-level transaction id; None for the rows of a snapshot."""
    commit_lsn: int
    commit_time: datetime
    """The time of the commit in the database, in UTC."""


def source_transaction(xid: int, commit_lsn: int, commit_ts_ms: int) -> Transaction:
    """Returns a transaction for users; ``SNAPSHOT_XID`` stands for the rows of a snapshot."""
    commit_time = _EPOCH + timedelta(milliseconds=commit_ts_ms)
    return Transaction(None if xid == SNAPSHOT_XID else xid, commit_lsn, commit_time)


@dataclass(frozen=True)
class CommitBatch:
    """The commits that a batch contains: exactly those in ``(from_lsn, to_lsn]``, each of them completely."""

    batch_id: int
    """Spark's number of the batch. A batch that is repeated after a crash has the same number and the same
    rows."""
    source: str
    timeline: int
    from_lsn: int
    """The end of the previous batch, exclusive; 0 at the beginning of the source."""
    to_lsn: int
    """The end of the batch, inclusive. It may be above the last transaction that changes tables of the
    query."""
    load: Callable[[], tuple[Transaction, ...]] = field(repr=False, compare=False)
    """Returns :attr:`transactions`."""

    @cached_property
    def transactions(self) -> tuple[Transaction, ...]:
        """All transactions with a change event, in commit order, whichever tables they change.

        They are read from the cut log in Kafka on the first access.

        Raises:
            RecordsGoneError: The cut log no longer contains them.
        """
        return self.load()


EachBatch = Callable[["DataFrame", CommitBatch], None]
"""Receives the rows and the commits of a batch."""


def for_each_commit_batch(
    stream: Changes,
    function: EachBatch,
    *,
    checkpoint: str | Path,
    rows: "DataFrame | None" = None,
    available_now: bool = False,
    interval: timedelta | None = None,
    name: str | None = None,
) -> "StreamingQuery":
    """Starts a query that passes whole transactions to a function, batch by batch, in commit order.

    The function is called at least once for each batch. If the process crashes before Spark has recorded that
    the batch is done, it is called again with the same batch id, commits and rows. To get each effect exactly
    once, write the effect and ``batch.to_lsn`` in one transaction of your database, and skip batches that
    have already been written. The function is also called for batches without rows, so that ``to_lsn``
    advances.

    Args:
        stream: Created by :func:`changes`.
        function: Called in this process, one batch at a time. An error that it raises ends the query.
        checkpoint: The folder or address where Spark keeps the query's position; one per query.
        rows: What to pass instead of ``stream.rows()``: a frame that is derived from *one* frame of `stream`,
            e.g. ``changes.table("inventory.orders").where(...)``.
        available_now: Whether to end after the changes that exist when the query starts.
        interval: The time between batches; None to start a batch as soon as there is something new.
        name: The query's name.

    Raises:
        ConfigError: Batches would not consist of whole transactions.
    """
    options = stream.options
    if options.scope is not Scope.STRICT:
        problem = "in scope 'aggregate' batches are not whole transactions"
        raise ConfigError(problem, "use scope 'strict'")
    frame = stream.rows() if rows is None else rows
    if not frame.isStreaming:
        raise ConfigError("the rows are not a stream", "call changes(...) without streaming=False")
    location = str(checkpoint)
    batches = CommitBatches(location, options, file_reader(stream.session, location))
    writer = frame.writeStream.option("checkpointLocation", location)
    writer = writer.foreachBatch(lambda batch, batch_id: function(batch, batches.batch(batch_id)))
    if name is not None:
        writer = writer.queryName(name)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif interval is not None:
        writer = writer.trigger(processingTime=f"{interval // timedelta(milliseconds=1)} milliseconds")
    return writer.start()


class CommitBatches:
    """Determines what the batches of a query contain, from the offset log in its checkpoint."""

    def __init__(self, checkpoint: str, options: SourceOptions, read_file: ReadFile) -> None:
        self._checkpoint = checkpoint
        self._options = options
        self._read_file = read_file

    def batch(self, batch_id: int) -> CommitBatch:
        """Returns the batch with this number."""
        end = self._end(batch_id)
        start = self._start(batch_id, end)
        return CommitBatch(
            batch_id, end.source, end.timeline, start.lsn, end.lsn, lambda: self._transactions(start, end)
        )

    def _start(self, batch_id: int, end: Position) -> Position:
        if batch_id > 0:
            return self._end(batch_id - 1)
        if self._options.starting == "latest":
            return end  # the source makes such a first batch empty
        return Position(source=end.source, timeline=end.timeline, scope=end.scope)

    def _end(self, batch_id: int) -> Position:
        text = self._read_file(f"offsets/{batch_id}")
        if text is None:
            raise self._unknown_batch(batch_id, "there is no such file")
        try:
            offsets = logged_offsets(text)
        except ValueError as error:
            raise self._unknown_batch(batch_id, str(error)) from error
        ours = [each for each in offsets if isinstance(each, dict) and each.keys() >= _OUR_FIELDS]
        if len(ours) > 1:
            raise ConfigError(
                f"the query reads changes {len(ours)} times, each up to a different commit",
                "create one frame with changes(...).rows(), and the tables from it inside the function with "
                "changes.typed(rows, table)",
            )
        if not ours:
            raise self._unknown_batch(batch_id, "the query reads no changes")
        return Position.from_json(
            ours[0], source=self._options.source, timeline=self._options.timeline, scope=Scope.STRICT
        )

    def _unknown_batch(self, batch_id: int, problem: str) -> StateError:
        return StateError(
            f"the offset log in checkpoint {self._checkpoint} does not show what batch {batch_id} contains: "
            f"{problem}",
            "check that `checkpoint` is the folder of this query, and that the query reads one source of "
            'format("slackwater")',
        )

    def _transactions(self, start: Position, end: Position) -> tuple[Transaction, ...]:
        if start.lsn >= end.lsn:
            return ()
        with closing(Planner(self._options)) as planner:
            content = planner.content(start, end)
        return tuple(
            source_transaction(each.xid, each.commit_lsn, each.commit_ts_ms) for each in content.transactions
        )


def logged_offsets(text: str) -> list[Any]:
    """Parses a file of Spark's offset log: a line with the version, a line of metadata, a line per source.

    Returns:
        The end of the batch for each source; the line itself if a source has another format.

    Raises:
        ValueError: The file has another version.
    """
    version, *lines = text.splitlines() or [""]
    if version != _LOG_VERSION:
        msg = f"version {version[:20]!r}, expected {_LOG_VERSION!r}"
        raise ValueError(msg)
    return [_parsed(line) for line in lines[1:]]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def file_reader(session: SparkSession, checkpoint: str) -> ReadFile:
    """Returns a function that reads files below a checkpoint: with Python on this machine, or with Spark."""
    local = Path(
        "/" + checkpoint.removeprefix(_LOCAL).lstrip("/") if checkpoint.startswith(_LOCAL) else checkpoint
    )

    def read(name: str) -> str | None:
        is_local = checkpoint.startswith(_LOCAL) or ("://" not in checkpoint and local.is_dir())
        if not is_local:
            return _hadoop_text(session, f"{checkpoint}/{name}")
        try:
            return (local / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    return read


def _hadoop_text(session: SparkSession, path: str) -> str | None:
    jvm: Any = session._jvm  # noqa: SLF001 - the only way to Spark's own file systems
    hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
    conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - as above
    files = hadoop_path.getFileSystem(conf)
    if not files.exists(hadoop_path):
        return None
    stream = files.open(hadoop_path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()
