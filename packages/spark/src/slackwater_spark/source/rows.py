"""Changes as rows for any Spark code: the public schemas, with rows as JSON or typed."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from slackwater_cdc import CdcError
from slackwater_engine.records.changes import BatchChanges, Located, bad_input
from slackwater_engine.records.plan import OffsetSpan
from slackwater_spark.source.errors import UnheldValueError

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch
    from pyspark.sql.types import StructType

    from slackwater_cdc.wire import ToJson
    from slackwater_engine.records.record import Record
    from slackwater_spark.source.typed_rows import TypedTable

ROW_SCHEMA: Final = (
    "source STRING, `table` STRING, op STRING, key STRING, before STRING, after STRING, xid BIGINT, "
    "commit_lsn BIGINT, commit_ts TIMESTAMP, order_in_transaction BIGINT, `partition` INT, `offset` BIGINT"
)
"""``xid`` and ``order_in_transaction`` are null for rows of snapshots, whose ``op`` is ``r``.

TRUNCATE is a row with ``op`` ``t`` and neither key nor row, in any partition: every row of its table is gone,
also those of its own transaction with a smaller ``order_in_transaction``.
"""

UNCHANGED_COLUMN: Final = "unchanged"
_ROWS_PER_ARROW_BATCH = 10_000
_NULL = b"null"


def typed_row_schema(typed: "TypedTable") -> "StructType":
    """The public schema with ``key``, ``before`` and ``after`` as structs of one declared table.

    ``unchanged`` has the names of the columns that an update left out because it did not change them (TOAST);
    they are null in ``after``. Without a primary key there is no column ``key``.
    """
    from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType, TimestampType

    schema = StructType().add("source", StringType()).add("table", StringType()).add("op", StringType())
    if typed.table.primary_key:
        schema = schema.add("key", typed.key_type)
    schema = schema.add("before", typed.row_type).add("after", typed.row_type)
    schema = schema.add(UNCHANGED_COLUMN, ArrayType(StringType())).add("xid", LongType())
    schema = schema.add("commit_lsn", LongType()).add("commit_ts", TimestampType())
    schema = schema.add("order_in_transaction", LongType())
    return schema.add("partition", IntegerType()).add("offset", LongType())


class RowWriter:
    """Turns changes into Arrow batches of :data:`ROW_SCHEMA`.

    Args:
        source: The connector's ``topic.prefix``.
        schema: As Spark resolved it.
        changes: Decides what counts.
        to_json: What makes JSON of keys; None: they are JSON.
    """

    def __init__(
        self, source: str, schema: "StructType", changes: BatchChanges, to_json: "ToJson | None" = None
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._source = source
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._changes = changes
        self._to_json = to_json

    def write(self, portions: Iterator[tuple[OffsetSpan, Sequence["Record"]]]) -> Iterator["RecordBatch"]:
        """Arrow batches of at most 10,000 rows; rows of one partition stay in order."""
        rows: list[tuple[Any, ...]] = []
        for span, messages in portions:
            for located in self._changes.of(span, messages):
                rows.append(self._row(span, located))
                if len(rows) >= _ROWS_PER_ARROW_BATCH:
                    yield self._batch(rows)
                    rows = []
        if rows:
            yield self._batch(rows)

    def _row(self, span: OffsetSpan, located: Located) -> tuple[Any, ...]:
        message, change, commit_lsn = located
        return (
            self._source,
            change.table,
            change.op,
            _text(message, self._key(message)),
            _text(message, change.before),
            _text(message, change.after),
            change.xid,
            commit_lsn,
            change.commit_ts_ms * 1000,
            change.total_order or None,
            span.partition,
            message.offset(),
        )

    def _key(self, message: "Record") -> bytes | None:
        key = message.key()
        if self._to_json is None or key is None:
            return _unwrapped(key)
        try:
            return _unwrapped(self._to_json(key))
        except CdcError as error:
            raise bad_input(message, f"its key: {error}") from error

    def _batch(self, rows: list[tuple[Any, ...]]) -> "RecordBatch":
        import pyarrow

        columns = [
            arrow_array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        return pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)


class TypedRowWriter(RowWriter):
    """Turns changes of one declared table into Arrow batches of :func:`typed_row_schema`.

    Args:
        source: The connector's ``topic.prefix``.
        typed: The table.
        schema: As Spark resolved it.
        changes: Decides what counts.
    """

    def __init__(self, source: str, typed: "TypedTable", schema: "StructType", changes: BatchChanges) -> None:
        from slackwater_spark.source.typed_rows import RowImages
        from slackwater_sql.errors import SqlError

        super().__init__(source, schema, changes)
        self._refusals = (SqlError, UnheldValueError)
        self._images = RowImages(typed)
        self._has_key = bool(typed.table.primary_key)

    def _row(self, span: OffsetSpan, located: Located) -> tuple[Any, ...]:
        message, change, commit_lsn = located
        try:
            key, *images = self._images.typed(change.op, _image(change.before), _image(change.after))
        except self._refusals as error:
            raise bad_input(message, str(error)) from error
        return (
            self._source,
            change.table,
            change.op,
            *((key,) if self._has_key else ()),
            *images,
            change.xid,
            commit_lsn,
            change.commit_ts_ms * 1000,
            change.total_order or None,
            span.partition,
            message.offset(),
        )


def arrow_array(values: Sequence[Any], of_type: "DataType") -> Any:
    """An array; the values of a struct are tuples."""
    import pyarrow

    if not values or not pyarrow.types.is_struct(of_type):
        return pyarrow.array(values, type=of_type)
    fields = list(of_type)
    absent = (None,) * len(fields)
    columns = zip(*(absent if value is None else value for value in values), strict=True)
    arrays = [arrow_array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    mask = pyarrow.array([value is None for value in values], pyarrow.bool_())
    return pyarrow.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _text(message: "Record", part: Any) -> bytes | None:
    """JSON of a record as it stands; Arrow would not say in which record text is none."""
    if part is None:
        return None
    text = bytes(part)
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise bad_input(message, f"expected JSON in UTF-8: {error}") from None
    return text


def _image(image: Any) -> bytes | None:
    return None if image is None or image == _NULL else bytes(image)


def _unwrapped(key: Any) -> bytes | None:
    """The key as JSON, without the ``{"schema": …, "payload": …}`` wrapper."""
    if key is None or key == _NULL:
        return None
    if key.startswith(b'{"schema"'):
        return _payload(key)
    return bytes(key)


def _payload(key: bytes) -> bytes:
    import msgspec

    try:
        fields = msgspec.json.decode(key, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return key
    return bytes(fields["payload"]) if fields.keys() == {"schema", "payload"} else key
