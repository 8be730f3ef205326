"""Documents of Python functions and of views in Spark; with the examples of docs/python.md."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from slackwater_spark import Rows, changes, stateful
from slackwater_spark.errors import PipelineError

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Example = Callable[[str], Any]
SECONDS_TO_ANSWER = 300.0


def settings(shop: Any) -> dict[str, Any]:
    return {"source": shop.source, "bootstrap": shop.bootstrap, "schema": shop.schema}


def visible(bootstrap: str, topic: str) -> dict[int, Any]:
    """The newest document of each key, for a `read_committed` reader."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "isolation.level": "read_committed"}
        | {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )
    found: dict[int, Any] = {}
    try:
        waiting = set(consumer.list_topics(topic, SECONDS_TO_ANSWER).topics[topic].partitions)
        consumer.subscribe([topic])
        while waiting:
            message = consumer.poll(SECONDS_TO_ANSWER)
            assert message is not None, "Kafka does not answer"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 - its name
                waiting.discard(message.partition() or 0)
                continue
            key, value = message.key(), message.value()
            found[json.loads(key or b"{}")["id"]] = None if value is None else json.loads(value)
    finally:
        consumer.close()
    return found


@pytest.mark.slow
def test_the_function_per_key_example(
    spark: SparkSession, shop: Any, example: Example, tmp_path: Path
) -> None:
    function_per_key = example("function_per_key")
    documents = function_per_key.invoices(spark, **settings(shop))
    table: dict[str, str | None] = {}
    topic = f"invoices-{shop.source}"

    def run() -> None:
        function_per_key.into_table(documents, table=table, checkpoint=tmp_path / "table")

    shop.new_order(1, "60.00", "60.00")
    shop.new_order(2, "5.00")
    shop.new_order(3)
    shop.cut()
    run()
    invoice = {"customer": "ada", "ordered": "2026-01-02", "lines": 2, "amount": "108.00"}
    assert {json.loads(key)["id"]: json.loads(value or "null") for key, value in table.items()} == {
        1: invoice,
        2: {**invoice, "lines": 1, "amount": "5.00"},
    }
    line = shop.line(200, 2, "5.00")
    shop.commit(("inventory.order_lines", line, {**line, "order_id": 3}))
    shop.cut()
    run()
    assert table['{"id":2}'] is None
    assert json.loads(table['{"id":3}'] or "")["amount"] == "5.00"

    function_per_key.publish(documents, topic=topic, checkpoint=tmp_path / "kafka")
    assert visible(shop.bootstrap, topic) == {1: invoice, 3: {**invoice, "lines": 1, "amount": "5.00"}}


def test_the_views_example(spark: SparkSession, shop: Any, example: Example, tmp_path: Path) -> None:
    views = example("views_from_python")
    pipeline = views.customers_pipeline(source=shop.source, schema=shop.schema)
    assert "keyed by" in pipeline.explain()
    shop.new_order(1, "1.10", "2.20")
    shop.new_order(2, "5.00", customer="bob")
    shop.new_order(3, "7.00", customer="bob")
    shop.cut()
    folder = tmp_path / "archive"
    views.archive(spark, pipeline, bootstrap=shop.bootstrap, folder=folder, checkpoint=tmp_path / "c")
    rows = spark.read.parquet(str(folder)).collect()
    found = {(row.view, row.key): json.loads(row.document) for row in rows}
    assert {view for view, _ in found} == {"order_values", "customer_values"}
    by_customer = {
        d["customer"]: (d["orders"], Decimal(d["amount"])) for (v, _), d in found.items() if "orders" in d
    }
    assert by_customer == {"ada": (1, Decimal("3.30")), "bob": (2, Decimal("12.00"))}
    assert max(row.commit_lsn for row in rows) == shop.lsn


@pytest.mark.slow  # without Spark: test_stateful.py
def test_an_error_in_the_function_ends_the_query_and_says_where(
    spark: SparkSession, shop: Any, tmp_path: Path
) -> None:
    def fail(key: int, rows: Rows) -> dict[str, Any]:
        return {"customer": rows["inventory.orders"][0]["surname"]}

    orders = changes(spark, **settings(shop), tables=["inventory.orders"])
    documents = stateful(orders, fail, name="failing", key="id", document="customer STRING")
    lsn = shop.new_order(7, "1.00")
    shop.cut()
    query = documents.rows().writeStream.format("memory").queryName("failing")
    query = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException) as caught:
        query.start().awaitTermination()
    told = f"'failing' failed for key {{\"id\":7}} at commit LSN {lsn}: KeyError: 'surname'"
    assert told in str(caught.value)
    assert "in fail: return {" in str(caught.value)


def test_documents_of_some_of_the_changes_are_refused(spark: SparkSession, shop: Any) -> None:
    newest = changes(spark, **settings(shop), starting="latest")
    with pytest.raises(PipelineError, match="made of all rows there are"):
        stateful(newest, lambda key, rows: {"n": 1}, name="n", key="id", document="n INT")
