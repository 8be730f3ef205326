"""Changes as rows for any Spark code, with keys and images as JSON."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.batch import OffsetSpan, bad_input
from slackwater.cdc.changes import BatchChanges, Located

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch
    from pyspark.sql.types import StructType

    from slackwater.cdc.avro import ToJson
    from slackwater.cdc.batch import Record
    from slackwater.cdc.envelope import Change

ROW_SCHEMA: Final = (
    "source STRING, `table` STRING, op STRING, key STRING, before STRING, after STRING, xid BIGINT, "
    "commit_lsn BIGINT, commit_ts TIMESTAMP, order_in_transaction BIGINT, `partition` INT, `offset` BIGINT"
)
"""``xid`` and ``order_in_transaction`` are null for rows of snapshots, whose ``op`` is ``r``.

A TRUNCATE is a row with ``op`` ``t`` and neither key nor row, in any partition. It removes every row of its
table, including those of its own transaction with a smaller ``order_in_transaction``.
"""

_ROWS_PER_ARROW_BATCH = 10_000
NULL = b"null"


class RowWriter:
    """Converts changes to Arrow batches of :data:`ROW_SCHEMA`."""

    def __init__(
        self, source: str, schema: "StructType", changes: BatchChanges, to_json: "ToJson | None" = None
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._source = source
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._changes = changes
        self._to_json = to_json

    def write(self, portions: Iterator[tuple[OffsetSpan, Sequence["Record"]]]) -> Iterator["RecordBatch"]:
        """Yields Arrow batches of at most 10,000 rows; rows of one partition stay in order."""
        rows: list[tuple[Any, ...]] = []
        for span, messages in portions:
            for located in self._changes.find(span, messages):
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
            *self._images(message, change),
            change.xid,
            commit_lsn,
            change.commit_ts_ms * 1000,
            change.total_order or None,
            span.partition,
            message.offset(),
        )

    def _images(self, message: "Record", change: "Change") -> tuple[Any, ...]:
        """Returns the values of the columns from the key to the new row."""
        key = self._key(message)
        return _text(message, key), _text(message, change.before), _text(message, change.after)

    def _key(self, message: "Record") -> bytes | None:
        key = message.key()
        if self._to_json is None or key is None:
            return _unwrapped(key)
        try:
            return _unwrapped(self._to_json(key))
        except UndecodableRecordError as error:
            raise bad_input(message, f"its key: {error}") from error

    def _batch(self, rows: list[tuple[Any, ...]]) -> "RecordBatch":
        import pyarrow

        columns = [
            arrow_array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        return pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)


def arrow_array(values: Sequence[Any], of_type: "DataType") -> Any:
    """Returns an array; the values of a struct are tuples."""
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
    """Returns JSON unchanged, after checking it, because Arrow does not report which record is not UTF-8."""
    if part is None:
        return None
    text = bytes(part)
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise bad_input(message, f"expected JSON in UTF-8: {error}") from None
    return text


def _unwrapped(key: Any) -> bytes | None:
    """Returns the key as JSON, without the ``{"schema": …, "payload": …}`` wrapper."""
    if key is None or key == NULL:
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
