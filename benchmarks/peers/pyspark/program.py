"""The orders view in plain PySpark: ``transformWithState``, one call per order, state in RocksDB."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

MAX_ROWS = 100_000
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
ROW = (
    "struct<id bigint, customer string, status string, line_count int, total string,"
    " order_id bigint, product string, quantity int, price string>"
)
CHANGES = """
    SELECT offset, is_order, inline(
        CASE
            WHEN is_order THEN array(struct(id AS order_id, id, after AS row))
            WHEN before.order_id <> after.order_id THEN array(
                struct(before.order_id AS order_id, id, CAST(NULL AS $ROW) AS row),
                struct(after.order_id AS order_id, id, after AS row)
            )
            ELSE array(struct(coalesce(after.order_id, before.order_id) AS order_id, id, after AS row))
        END
    )
    FROM (
        SELECT offset, is_order, event.before, event.after, coalesce(event.after.id, event.before.id) AS id
        FROM (
            SELECT
                offset,
                topic LIKE '%.orders' AS is_order,
                from_json(CAST(value AS STRING), 'before $ROW, after $ROW') AS event
            FROM records
            WHERE value IS NOT NULL
        )
    )
""".replace("$ROW", ROW)


class OrderDocument(StatefulProcessor):
    """Keeps an order and its lines; a document for each call that changed the order."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark."""
        self._state = handle.getValueState("order", "held string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """All changes of one order in one batch."""
        found = self._state.get()
        held: dict[str, Any] = json.loads(found[0]) if found else {"order": None, "lines": {}}
        was_there = held["order"] is not None
        for row in sorted(rows, key=lambda row: row.offset):
            after = row.row
            if row.is_order:
                held["order"] = after
            elif after is None:
                held["lines"].pop(str(row.id), None)
            else:
                held["lines"][str(row.id)] = after
        self._state.update((json.dumps(held),))
        if held["order"] is not None:
            yield Row(key=str(key[0]), value=json.dumps(_document(held)))
        elif was_there:
            yield Row(key=str(key[0]), value=None)

    def close(self) -> None:
        """Called by Spark."""


def _document(held: dict[str, Any]) -> dict[str, Any]:
    lines = (held["lines"][name] for name in sorted(held["lines"], key=int))
    return {
        **{name: held["order"][name] for name in ("id", "customer", "status", "line_count", "total")},
        "lines": [{name: line[name] for name in ("id", "product", "quantity", "price")} for line in lines],
    }


def documents(spark: SparkSession, records: DataFrame) -> DataFrame:
    """The view over change events."""
    records.createOrReplaceTempView("records")
    return (
        spark.sql(CHANGES)
        .groupBy("order_id")
        .transformWithState(OrderDocument(), "key string, value string", "append", "none")
    )


def main() -> None:
    """Runs until it is asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--bootstrap", "--input-prefix", "--output", "--folder", "--jars"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("peer")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.jars", ",".join(str(jar) for jar in Path(arguments.jars).glob("*.jar")))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    topics = ",".join(f"{arguments.input_prefix}.inventory.{name}" for name in ("orders", "order_lines"))
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", arguments.bootstrap)
    source = source.option("subscribe", topics).option("startingOffsets", "earliest")
    records = source.option("maxOffsetsPerTrigger", MAX_ROWS).load()
    checkpoint = Path(arguments.folder) / "checkpoint"
    sink = documents(spark, records).writeStream.format("kafka").outputMode("append")
    sink = sink.option("kafka.bootstrap.servers", arguments.bootstrap).option("topic", arguments.output)
    query = sink.option("checkpointLocation", str(checkpoint)).start()
    while query.isActive and not (checkpoint / "offsets" / "0").exists():
        time.sleep(0.05)
    sys.stdout.write("reading\n")
    sys.stdout.flush()
    query.awaitTermination()


if __name__ == "__main__":
    main()
