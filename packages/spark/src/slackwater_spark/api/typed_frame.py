"""Typed rows out of frames that have them as JSON."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from slackwater_spark.source.typed_rows import TypedTable

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

Convert = Callable[[Iterable["RecordBatch"]], Iterator["RecordBatch"]]

_COLUMNS = (
    "source", "table", "op", "before", "after", "xid", "commit_lsn", "commit_ts", "order_in_transaction",
    "partition", "offset",
)  # fmt: skip


def typed_frame(rows: "DataFrame", typed: TypedTable, topic: str) -> "DataFrame":
    """The rows of one table with structs instead of JSON: the columns of ``typed_row_schema``."""
    from slackwater_spark.source.rows import typed_row_schema

    of_table = rows.where(rows["table"] == typed.table.full_name).select(*_COLUMNS)
    return of_table.mapInArrow(conversion(typed, topic), typed_row_schema(typed))


def conversion(typed: TypedTable, topic: str) -> Convert:
    """What makes typed rows of Arrow batches with the columns of ``ROW_SCHEMA``, all of one table."""

    def convert(batches: Iterable["RecordBatch"]) -> Iterator["RecordBatch"]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from slackwater_spark.source.rows import typed_row_schema
        from slackwater_spark.source.typed_rows import RowImages

        images = RowImages(typed)
        schema = to_arrow_schema(typed_row_schema(typed), timezone="UTC")
        for batch in batches:
            yield _converted(batch, images, topic, schema)

    return convert


def _converted(batch: "RecordBatch", images: Any, topic: str, schema: Any) -> "RecordBatch":
    import pyarrow

    from slackwater_spark.source.rows import arrow_array

    columns = {name: batch.column(name) for name in _COLUMNS}
    found = _typed_columns(columns, images, topic)
    arrays = [
        arrow_array(found[field.name], field.type) if field.name in found else columns[field.name]
        for field in schema
    ]
    return pyarrow.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )


def _typed_columns(columns: dict[str, Any], images: Any, topic: str) -> dict[str, list[Any]]:
    from slackwater_engine.errors import BadInputError
    from slackwater_spark.source.errors import UnheldValueError
    from slackwater_sql.errors import SqlError

    found: dict[str, list[Any]] = {"key": [], "before": [], "after": [], "unchanged": []}
    places = zip(columns["partition"].to_pylist(), columns["offset"].to_pylist(), strict=True)
    rows = zip(*(columns[name].to_pylist() for name in ("op", "before", "after")), strict=True)
    for (op, before, after), (partition, offset) in zip(rows, places, strict=True):
        try:
            values = images.typed(op, before and before.encode(), after and after.encode())
        except (SqlError, UnheldValueError) as error:
            value = (after or before or "").encode()
            raise BadInputError(topic, partition, offset, str(error), value[:200]) from error
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
    return found
