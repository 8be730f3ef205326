"""The row-level source and its batches, over real Kafka and Redis; with the examples of docs/python.md."""

import sqlite3
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from slackwater.api import (
    CommitBatch,
    ConfigError,
    InputError,
    SlackwaterError,
    changes,
    for_each_commit_batch,
)
from slackwater.cdc.connector import reading_properties

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Example = Callable[[str], Any]


class CrashError(Exception):
    pass


def settings(shop: Any) -> dict[str, Any]:
    return {"source": shop.source, "bootstrap": shop.bootstrap, "schema": shop.schema}


@pytest.mark.slow
def test_the_typed_rows_example(spark: SparkSession, shop: Any, example: Example, tmp_path: Path) -> None:
    shop.new_order(1, "1.10", "2.20")
    shop.new_order(2, "5.00", customer="bob")
    shop.new_order(3, "7.00", customer="bob")
    shop.commit(("inventory.orders", {"id": 2, "customer": "", "total": "0", "created_at": ""}, None))
    shop.cut()
    typed_rows = example("typed_rows")

    revenue = typed_rows.revenue_now(spark, **settings(shop)).collect()
    assert {row.customer: row.revenue for row in revenue} == {"ada": Decimal("3.30"), "bob": Decimal("7.00")}

    folder = tmp_path / "archive"
    typed_rows.archive(spark, **settings(shop), folder=folder, checkpoint=tmp_path / "checkpoint")
    archived = spark.read.parquet(str(folder)).orderBy("commit_lsn").collect()
    assert [(row.commit_lsn, row.op, row.id) for row in archived] == [
        (1000, "c", 1),
        (2000, "c", 2),
        (3000, "c", 3),
        (4000, "d", 2),
    ]
    assert archived[0].after.created_at == "2026-01-02T03:04:05.678900Z"


@pytest.mark.slow
def test_the_ledger_example_counts_each_sale_once_whatever_crashes(
    spark: SparkSession, shop: Any, example: Example, tmp_path: Path
) -> None:
    """Without the ledger's test in `Warehouse.apply` the sales of the repeated batch count twice."""
    ledger = example("exactly_once_ledger")

    class CrashingWarehouse(ledger.Warehouse):  # type: ignore[name-defined,misc]  # the example's class
        seen: list[CommitBatch] = []  # noqa: RUF012 - all calls

        def apply(self, sold: list[tuple[str, int]], batch: CommitBatch) -> None:
            super().apply(sold, batch)
            self.seen.append(batch)
            if len(self.seen) == 1:
                raise CrashError

    arguments = {**settings(shop), "checkpoint": tmp_path / "checkpoint"}
    path = tmp_path / "warehouse.db"
    shop.new_order(1, "1.10", "2.20")
    shop.commit()
    shop.cut()
    with pytest.raises(StreamingQueryException, match="CrashError"):
        ledger.count_sales(spark, **arguments, warehouse=CrashingWarehouse(path))
    shop.new_order(2, "1.10")
    shop.cut()
    ledger.count_sales(spark, **arguments, warehouse=CrashingWarehouse(path))

    with sqlite3.connect(path) as database:
        assert database.execute("SELECT * FROM sold").fetchall() == [("pé", 3)]
        assert database.execute("SELECT * FROM ledger").fetchall() == [(shop.source, 3000)]
    first, again, second = CrashingWarehouse.seen
    assert first == again
    assert (first.batch_id, first.from_lsn, first.to_lsn) == (0, 0, 2000)
    assert (second.batch_id, second.from_lsn, second.to_lsn) == (1, 2000, 3000)
    assert [(t.xid, t.commit_lsn) for t in first.transactions] == [(1, 1000), (2, 2000)]
    assert first.transactions[0].commit_time.isoformat() == "2026-11-20T20:34:22.409000+00:00"


@pytest.mark.slow  # in one process: tests/source/test_first_batch.py
def test_a_query_that_begins_at_the_newest_cut_repeats_its_first_batches_alike(
    spark: SparkSession, shop: Any, tmp_path: Path
) -> None:
    """Were the first batch not empty, its repetition would begin later and lack rows it had before."""
    shop.new_order(1, "1.10")
    shop.cut()
    stream = changes(
        spark, source=shop.source, bootstrap=shop.bootstrap, redis_url=shop.redis_url,
        schema=shop.schema, starting="latest",
    )  # fmt: skip
    seen: list[tuple[int, int, int, int]] = []

    def apply(rows: DataFrame, batch: CommitBatch) -> None:
        if len(seen) == 1:
            shop.new_order(2, "2.20")
            shop.cut()
        seen.append((batch.batch_id, batch.from_lsn, batch.to_lsn, rows.count()))
        if len(seen) == 1:
            raise CrashError

    def run() -> None:
        for_each_commit_batch(stream, apply, checkpoint=tmp_path, available_now=True).awaitTermination()

    with pytest.raises(StreamingQueryException, match="CrashError"):
        run()
    run()
    run()
    assert seen == [(0, 1000, 1000, 0), (0, 1000, 1000, 0), (1, 1000, 2000, 2)]


@pytest.mark.slow  # without Spark: test_commit_batch.py
def test_two_reads_in_one_query_are_refused_since_they_may_be_at_different_commits(
    spark: SparkSession, shop: Any, tmp_path: Path
) -> None:
    shop.new_order(1, "1.10")
    shop.cut()
    stream = changes(spark, **settings(shop))
    both = stream.table("inventory.orders").select("key.id")
    both = both.union(stream.table("inventory.order_lines").select("key.id"))
    query = for_each_commit_batch(
        stream, lambda rows, batch: None, checkpoint=tmp_path, rows=both, available_now=True
    )
    with pytest.raises(StreamingQueryException, match=r"reads changes 2 times.*changes\.typed"):
        query.awaitTermination()


@pytest.mark.full
def test_typed_rows_of_a_connector_that_nobody_knows_are_refused(spark: SparkSession, shop: Any) -> None:
    shop.version = "3.6.0.Final"
    shop.new_order(1, "1.10")
    shop.cut()
    untold = changes(spark, **settings(shop), streaming=False)
    rows = untold.rows()
    assert rows.count() == 2, "as the connector wrote them"
    for read in (untold.table, partial(untold.typed, rows)):
        with pytest.raises(ConfigError, match=r"configuration is not known.*customer.* may be stored out of"):
            read("inventory.orders", as_text=["created_at"])
    wrong = reading_properties(shop.source) | {"time.precision.mode": "connect"}
    with pytest.raises(InputError, match=r"time\.precision\.mode"):
        changes(spark, **settings(shop), connect_properties=wrong).table("inventory.order_lines")
    told = changes(
        spark, **settings(shop), streaming=False, connect_properties=reading_properties(shop.source)
    )
    assert [row.key.id for row in told.table("inventory.order_lines").collect()] == [100]


def test_arguments_are_refused_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "CREATE TABLE s.t (id int PRIMARY KEY, big money);"
    with pytest.raises(SlackwaterError, match="did you mean redis_url"):
        changes(spark, source="a", bootstrap="b", tables=["s.t"], redis_ur="x")  # type: ignore[call-arg]
    with pytest.raises(SlackwaterError, match="option 'tables': expected a list, got nothing"):
        changes(spark, source="a", bootstrap="b")
    found = changes(spark, source="a", bootstrap="b", schema=ddl, kafka={"sasl.password": "secret"})
    assert found.tables == ("s.t",)
    assert "secret" not in repr(found)
    with pytest.raises(SlackwaterError, match=r"as_text=\['big'\]"):
        found.table("s.t")
    with pytest.raises(SlackwaterError, match=r"'s\.other' is not declared; known tables: s\.t"):
        found.table("s.other")
    with pytest.raises(SlackwaterError, match="has no column 'bit'"):
        found.table("s.t", as_text=["bit"])
    finite = changes(spark, source="a", bootstrap="b", schema=ddl, streaming=False)
    with pytest.raises(SlackwaterError, match="not a stream"):
        for_each_commit_batch(finite, lambda rows, batch: None, checkpoint=tmp_path)
