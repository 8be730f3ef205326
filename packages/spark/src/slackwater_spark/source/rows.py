"""Changes as rows for any Spark code: the public schema."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from slackwater_cdc import CdcError
from slackwater_spark.source.changes import BatchChanges, Located, bad_input
from slackwater_spark.source.plan import OffsetSpan

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from slackwater_cdc.wire import ToJson

ROW_SCHEMA: Final = (
    "source STRING, `table` STRING, op STRING, key STRING, before STRING, after STRING, xid BIGINT, "
    "commit_lsn BIGINT, commit_ts TIMESTAMP, order_in_transaction BIGINT, `partition` INT, `offset` BIGINT"
)
"""``xid`` and ``order_in_transaction`` are null for rows of snapshots, whose ``op`` is ``r``.

TRUNCATE is a row with ``op`` ``t`` and neither key nor row, in any partition: every row of its table is gone,
also those of its own transaction with a smaller ``order_in_transaction``.
"""

_ROWS_PER_ARROW_BATCH = 10_000
_NULL = b"null"


class RowWriter:
    """Turns changes into Arrow batches of the public schema.

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

    def write(self, portions: Iterator[tuple[OffsetSpan, list["Message"]]]) -> Iterator["RecordBatch"]:
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
            self._key(message),
            None if change.before is None else bytes(change.before),
            None if change.after is None else bytes(change.after),
            change.xid,
            commit_lsn,
            change.commit_ts_ms * 1000,
            change.total_order or None,
            span.partition,
            message.offset(),
        )

    def _key(self, message: "Message") -> bytes | None:
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
            pyarrow.array(column, type=field.type)
            for column, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        return pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)


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
    except msgspec.MsgspecError:
        return key
    return bytes(fields["payload"]) if fields.keys() == {"schema", "payload"} else key
