"""Types the rows of frames that have them as JSON."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from slackwater_engine.errors import BadInputError
from slackwater_spark.errors import PipelineInputError
from slackwater_spark.source.rows import arrow_array
from slackwater_spark.source.typed_rows import RowImages, TypedTable, typed_row_schema
from slackwater_sql.errors import SqlError

_COLUMNS = (
    "source", "table", "op", "before", "after", "xid", "commit_lsn", "commit_ts", "order_in_transaction",
    "partition", "offset",
)  # fmt: skip


def typed_frame(rows: DataFrame, typed: TypedTable, topic: str) -> DataFrame:
    """Types the rows of one table, with structs instead of JSON: the columns of ``typed_row_schema``."""
    of_table = rows.where(rows["table"] == typed.table.full_name).select(*_COLUMNS)
    return of_table.mapInArrow(row_typer(typed, topic), typed_row_schema(typed))


def row_typer(
    typed: TypedTable, topic: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Makes the function for ``mapInArrow`` that types the rows of one table, as ``ROW_SCHEMA`` has them."""

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        images = RowImages(typed)
        schema = to_arrow_schema(typed_row_schema(typed), timezone="UTC")
        for batch in batches:
            yield _converted(batch, images, topic, schema)

    return convert


def _converted(batch: pa.RecordBatch, images: RowImages, topic: str, schema: pa.Schema) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in _COLUMNS}
    found = _typed_columns(columns, images, topic)
    arrays = [
        arrow_array(found[field.name], field.type) if field.name in found else columns[field.name]
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )


def _typed_columns(columns: dict[str, Any], images: RowImages, topic: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"key": [], "before": [], "after": [], "unchanged": []}
    places = zip(columns["partition"].to_pylist(), columns["offset"].to_pylist(), strict=True)
    rows = zip(*(columns[name].to_pylist() for name in ("op", "before", "after")), strict=True)
    for (op, before, after), (partition, offset) in zip(rows, places, strict=True):
        try:
            values = images.typed(op, before and before.encode(), after and after.encode())
        except (SqlError, PipelineInputError) as error:
            value = (after or before or "").encode()
            raise BadInputError(topic, partition, offset, str(error), value[:200]) from error
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
    return found
