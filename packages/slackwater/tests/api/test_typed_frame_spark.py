"""Every type of a declared column through Spark's JVM and back."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slackwater.api import Changes
from slackwater.cdc.connector import reading_properties
from slackwater.pipeline.source.data_source import ROW_SCHEMA
from slackwater.pipeline.source.options import SourceOptions
from slackwater.sql.postgres import parse_catalog

pytestmark = pytest.mark.spark

DDL = """
CREATE TABLE inv.kinds (
    id bigint PRIMARY KEY, small smallint, whole int, yes boolean, price numeric(38,2), amount numeric,
    r real, d double precision, note text, raw bytea, day date, at time, stamp timestamp, zoned timestamptz,
    doc jsonb, uid uuid, counts bigint[], days date[], zoneds timestamptz[], words text[]
);
ALTER TABLE inv.kinds REPLICA IDENTITY FULL;
"""
VALUES: dict[str, tuple[Any, Any]] = {
    "id": (2**63 - 1, 2**63 - 1),
    "small": (-(2**15), -(2**15)),
    "whole": (2**31 - 1, 2**31 - 1),
    "yes": (False, False),
    "price": (
        "-999999999999999999999999999999999999.99",
        Decimal("-999999999999999999999999999999999999.99"),
    ),
    "amount": ("0.000000000000000001", Decimal("0.000000000000000001")),
    "r": (1.5, 1.5),
    "d": ("Infinity", float("inf")),
    "note": ("é\u2028", "é\u2028"),
    "raw": ("3q2+7w==", b"\xde\xad\xbe\xef"),
    "day": (2_932_896, date(9999, 12, 31)),
    "at": (86_400_000_000, timedelta(days=1)),
    "stamp": (-1, datetime(1969, 12, 31, 23, 59, 59, 999_999)),  # noqa: DTZ001 - without time zone
    "zoned": ("2026-11-21T10:34:56.789012Z", datetime(2026, 11, 21, 10, 34, 56, 789_012)),  # noqa: DTZ001 - as Spark gives it
    "doc": ('{"a": 1.10}', '{"a": 1.10}'),
    "uid": ("0190f5de-7d1c-7000-8000-000000000001", "0190f5de-7d1c-7000-8000-000000000001"),
    "counts": ([1, None], [1, None]),
    "days": ([0, None], [date(1970, 1, 1), None]),
    "zoneds": (["2026-01-01T00:00:00Z"], [datetime(2026, 1, 1)]),  # noqa: DTZ001 - as Spark gives it
    "words": (["x", None], ["x", None]),
}


@pytest.mark.full
def test_values_of_every_type_come_back_as_they_were(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    options = {"source": "inv", "bootstrap": "b", "tables": "inv.kinds"}
    options["connect_properties"] = json.dumps(reading_properties("inv"))
    catalog = parse_catalog({"kinds.sql": DDL})
    kinds = Changes(spark, SourceOptions.parse(options), catalog, streaming=False, spark_options=options)
    after = json.dumps({name: wire for name, (wire, _) in VALUES.items()})
    empty = json.dumps({**dict.fromkeys(VALUES), "id": 1})
    now = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        ("inv", "inv.kinds", op, None, None, image, 1, 5, now, 1, 0, n)
        for n, (op, image) in enumerate([("c", after), ("c", empty), ("t", None)])
    ]
    typed = kinds.typed(spark.createDataFrame(rows, ROW_SCHEMA), "inv.kinds").orderBy("offset")
    full, nulls, truncated = typed.select("key", "after", "unchanged").collect()
    assert full.after.asDict() == {name: value for name, (_, value) in VALUES.items()}
    assert full.key.id == 2**63 - 1
    assert nulls.after.asDict() == {**dict.fromkeys(VALUES), "id": 1}
    assert (truncated.key, truncated.after) == (None, None)
    assert typed.where("after.stamp + after.at > after.stamp AND after.price < -1e35").count() == 1
