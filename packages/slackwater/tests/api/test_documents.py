"""Documents of Python functions and of views in Spark; with the examples of docs/python.md."""

import json
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError
from pyspark.sql import SparkSession

from slackwater.api import (
    Documents,
    Pipeline,
    Rows,
    RunSettings,
    ViewBatch,
    changes,
    for_each_document_batch,
    stateful,
    write_view,
)
from slackwater.pipeline import runner
from slackwater.protocol import ConfigError, SlackwaterError, StateError, UnavailableError

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


@pytest.mark.full
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


class CrashError(OSError):
    """Of a class that runs meet in Spark, too."""


VIEWS = {
    "order_values": """
        SELECT TRANSACTIONALLY o.id, o.customer, l.price
        FROM inventory.orders o JOIN inventory.order_lines l ON l.order_id = o.id
    """,
    "customers": """
        SELECT TRANSACTIONALLY v.customer, count(*) AS lines, sum(v.price) AS amount
        FROM order_values v GROUP BY v.customer
    """,
}
Rows4 = list[tuple[str, int, str, str | None]]
"""View, commit LSN, key and document."""


def views_of(shop: Any, spark: SparkSession, emit: Any = "latest", views: Any = None) -> Documents:
    pipeline = Pipeline(name="p", source=shop.source, schema=shop.schema, views=views or VIEWS, emit=emit)
    return pipeline.documents(spark, bootstrap=shop.bootstrap)


def all_documents(batch: ViewBatch) -> Rows4:
    return sorted((view, *each) for view in batch.views for each in batch.documents(view))


class Effects:
    """A function that notes its batches, and crashes on request."""

    def __init__(self, crashes: int = 0) -> None:
        self.batches: list[ViewBatch] = []
        self.documents: list[Rows4] = []
        self.crashes = crashes

    def __call__(self, batch: ViewBatch) -> None:
        self.batches.append(batch)
        self.documents.append(all_documents(batch))
        if self.crashes:
            self.crashes -= 1
            raise CrashError("after the effect")


def test_a_batch_that_is_repeated_is_exactly_as_it_was(
    spark: SparkSession, shop: Any, tmp_path: Path
) -> None:
    """Fails when its end is chosen again: by then there are a later cut, and other documents."""
    documents, effects = views_of(shop, spark), Effects(crashes=2)
    shop.new_order(1, "1.00", "2.00")
    shop.cut()

    def run() -> None:
        for_each_document_batch(documents, effects, checkpoint=tmp_path, available_now=True)

    with pytest.raises(CrashError, match="after the effect"):
        run()
    shop.new_order(2, "5.00")
    shop.cut()
    with pytest.raises(CrashError) as caught:
        run()
    assert caught.value.__context__ is None, "the error is as the function has raised it"
    shop.new_order(3, "7.00", customer="bob")
    shop.cut()
    run()
    run()

    first, again, once_more, second = effects.batches
    assert first == again == once_more
    assert effects.documents[0] == effects.documents[1] == effects.documents[2]
    assert (first.batch_id, first.from_lsn, first.to_lsn) == (0, 0, 1000)
    assert (second.batch_id, second.from_lsn, second.to_lsn) == (1, 1000, 3000)
    assert [(each.xid, each.commit_lsn) for each in second.transactions] == [(2, 2000), (3, 3000)]
    sums = [json.loads(value or "") for view, _, _, value in effects.documents[3] if view == "customers"]
    assert {each["customer"]: each["amount"] for each in sums} == {"ada": "8.00", "bob": "7.00"}


@pytest.mark.full
def test_views_agree_in_every_batch_and_rows_are_the_documents(
    spark: SparkSession, shop: Any, tmp_path: Path
) -> None:
    documents = views_of(shop, spark)
    state: dict[str, dict[str, Any]] = {view: {} for view in VIEWS}
    batches: list[int] = []

    def check(batch: ViewBatch) -> None:
        batches.append(batch.to_lsn)
        rows = [tuple(row) for row in batch.rows().collect()]
        assert sorted(rows) == all_documents(batch)
        for view, lsn, key, document in rows:
            assert lsn == batch.to_lsn
            state[view][key] = json.loads(document or "null")
        expected: dict[str, Decimal] = {}
        for value in filter(None, state["order_values"].values()):
            expected[value["customer"]] = expected.get(value["customer"], Decimal(0)) + Decimal(
                value["price"]
            )
        shown = {v["customer"]: Decimal(v["amount"]) for v in filter(None, state["customers"].values())}
        assert shown == expected

    for number in range(1, 4):
        shop.new_order(number, "1.00", customer="ada" if number % 2 else "bob")
        if number > 1:
            line = shop.line((number - 1) * 100, number - 1, "1.00")
            shop.commit(("inventory.order_lines", line, {**line, "order_id": number}))
        shop.cut()
        for_each_document_batch(documents, check, checkpoint=tmp_path.as_uri(), available_now=True)
    line = shop.line(100, 2, "1.00")
    shop.commit(("inventory.order_lines", line, {**line, "order_id": 3}))
    shop.cut()
    for_each_document_batch(documents, check, checkpoint=tmp_path, available_now=True)
    assert batches == [1000, 3000, 5000, 6000], "the same checkpoint by its address and its path"
    assert state["customers"]['{"customer":"bob"}'] is None
    shop.commit()
    shop.cut()

    def check_empty(batch: ViewBatch) -> None:
        assert (batch.to_lsn, batch.rows().collect(), len(batch.transactions)) == (7000, [], 1)
        with pytest.raises(ConfigError, match="no view 'custmers'; the views are order_values, customers"):
            batch.documents("custmers")
        batches.append(batch.to_lsn)

    for_each_document_batch(documents, check_empty, checkpoint=tmp_path, available_now=True)
    assert batches[-1] == 7000, "a batch without documents is delivered, too"


def test_every_commit_has_its_documents_and_keys_that_move_occur_once(
    spark: SparkSession, shop: Any, tmp_path: Path
) -> None:
    """Fails when what two buckets say of a line that goes to another order is not put together."""
    by_line = """
        SELECT TRANSACTIONALLY l.id, o.customer
        FROM inventory.orders o JOIN inventory.order_lines l ON l.order_id = o.id
    """
    documents = views_of(shop, spark, "transactions", {"lines": by_line})
    effects, progress = Effects(), list[Any]()
    shop.new_order(1, "1.00")
    for number in range(2, 8):
        shop.new_order(number, customer=f"c{number}")
        line = shop.line(100, number - 1, "1.00")
        shop.commit(("inventory.order_lines", line, {**line, "order_id": number}))
    shop.cut()
    for_each_document_batch(
        documents, effects, checkpoint=tmp_path, available_now=True, on_progress=progress.append
    )
    [found] = effects.documents
    customers = [(lsn, json.loads(document or "null")) for _, lsn, _, document in found]
    assert customers[0] == (1000, {"id": 100, "customer": "ada"})
    assert customers[1:] == [(n * 2000 - 1000, {"id": 100, "customer": f"c{n}"}) for n in range(2, 8)]
    assert [(each.documents, each.deletes, each.commit_lsn) for each in progress] == [(7, 0, shop.lsn)]


def test_one_checkpoint_has_one_run_at_a_time(spark: SparkSession, shop: Any, tmp_path: Path) -> None:
    documents, effects = views_of(shop, spark), Effects()
    shop.new_order(1, "1.00")
    shop.cut()

    def run_beside(batch: ViewBatch) -> None:
        effects(batch)
        with pytest.raises(UnavailableError, match="in use by a run of p"):
            for_each_document_batch(documents, effects, checkpoint=tmp_path, available_now=True)

    for_each_document_batch(documents, run_beside, checkpoint=tmp_path, available_now=True)
    assert len(effects.batches) == 1
    with pytest.raises(StateError, match="output topic of view customers was"):
        Pipeline.run(
            Pipeline(name="p", source=shop.source, schema=shop.schema, views=VIEWS),
            RunSettings(servers=documents.options.servers, checkpoint=str(tmp_path), available_now=True),
            session=spark,
        )


@pytest.mark.full
def test_a_run_that_is_stopped_leaves_the_jobs_of_others_alone(
    spark: SparkSession, shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when all of Spark's jobs are cancelled: the function's own are."""
    monkeypatch.setattr(runner, "_CANCEL_SECONDS", 0.0)
    documents, stop, counts = views_of(shop, spark), threading.Event(), list[int]()
    shop.new_order(1, "1.00", "2.00")
    shop.cut()

    def count(batch: ViewBatch) -> None:
        stop.set()
        counts.extend(batch.rows().repartition(8).count() for _ in range(3))

    for_each_document_batch(documents, count, checkpoint=tmp_path, stop=stop)
    assert counts == [3, 3, 3]
    effects = Effects()
    for_each_document_batch(documents, effects, checkpoint=tmp_path, available_now=True)
    assert effects.batches == [], "the function has returned, so its batch is done"


@pytest.mark.full
def test_pipelines_run_in_the_session_that_they_are_given(
    spark: SparkSession, shop: Any, tmp_path: Path
) -> None:
    shop.new_order(1, "1.10", "2.20")
    shop.cut()
    name = f"totals_{shop.source.replace('-', '_')}"
    sql = """
        SELECT TRANSACTIONALLY l.order_id AS id, sum(l.price) AS amount
        FROM inventory.order_lines l GROUP BY l.order_id
    """
    pipeline = Pipeline(name=name, source=shop.source, schema=shop.schema, views={name: sql}, buckets=3)
    servers = pipeline.documents(spark, bootstrap=shop.bootstrap).options.servers
    settings = RunSettings(servers=servers, checkpoint=str(tmp_path), available_now=True)
    pipeline.run(settings, session=spark)
    assert visible(shop.bootstrap, name) == {1: {"id": 1, "amount": "3.30"}}
    assert spark.range(3).count() == 3, "the session is left as it is"


def test_a_run_can_be_told_the_configuration_of_a_connector(
    spark: SparkSession, shop: Any, tmp_path: Path
) -> None:
    shop.version = "3.6.0.Final"
    shop.new_order(1, "1.10", customer="ada")
    shop.cut()
    views = {"names": "SELECT TRANSACTIONALLY id, customer FROM inventory.orders"}
    pipeline = Pipeline(name="p", source=shop.source, schema=shop.schema, views=views)
    untold = pipeline.documents(spark, bootstrap=shop.bootstrap)
    effects = Effects()
    with pytest.raises(ConfigError, match=r"configuration is not known.*customer may be stored out of line"):
        for_each_document_batch(untold, effects, checkpoint=tmp_path / "untold", available_now=True)
    assert effects.batches == []
    properties = {
        "plugin.name": "pgoutput",
        "decimal.handling.mode": "string",
        "skipped.operations": "none",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "value.converter.replace.null.with.default": "false",
    }
    told = pipeline.documents(spark, bootstrap=shop.bootstrap, connect_properties=properties)
    for_each_document_batch(told, effects, checkpoint=tmp_path / "told", available_now=True)
    assert len(effects.batches) == 1


@pytest.mark.slow  # without Spark: test_stateful.py
def test_an_error_in_the_function_per_key_ends_the_run_and_says_where(
    spark: SparkSession, shop: Any, tmp_path: Path
) -> None:
    def fail(key: int, rows: Rows) -> dict[str, Any]:
        return {"customer": rows["inventory.orders"][0]["surname"]}

    orders = changes(spark, **settings(shop), tables=["inventory.orders"])
    documents = stateful(orders, fail, name="failing", key="id", document="customer STRING")
    lsn = shop.new_order(7, "1.00")
    shop.cut()
    effects = Effects()
    with pytest.raises(SlackwaterError) as caught:
        for_each_document_batch(documents, effects, checkpoint=tmp_path, available_now=True)
    told = f"'failing' failed for key {{\"id\":7}} at commit LSN {lsn}: KeyError: 'surname'"
    assert told in str(caught.value)
    assert "in fail: return {" in str(caught.value)
    assert effects.batches == []


def test_documents_of_some_of_the_changes_are_refused(spark: SparkSession, shop: Any, tmp_path: Path) -> None:
    def made(**options: Any) -> Documents:
        some = changes(spark, **settings(shop), **options)
        return stateful(some, lambda key, rows: {"n": 1}, name="n", key="id", document="n INT")

    with pytest.raises(SlackwaterError, match="computed from all rows of the source"):
        made(starting="latest")
    with pytest.raises(SlackwaterError, match=r"with min_task_events; remove it from changes"):
        made(min_task_events=7)
    with pytest.raises(SlackwaterError, match="one topic is given for 2 views"):
        write_view(views_of(shop, spark), topic="t", checkpoint=tmp_path)
