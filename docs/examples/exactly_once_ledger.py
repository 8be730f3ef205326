"""Whole transactions into a database, exactly once: effect and ledger in one database transaction."""

import sqlite3
from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from slackwater.api import CommitBatch, changes, for_each_commit_batch


class Warehouse:
    """Units sold by product, in a database of our own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS sold (product TEXT PRIMARY KEY, units INT)")
            database.execute("CREATE TABLE IF NOT EXISTS ledger (source TEXT PRIMARY KEY, commit_lsn INT)")

    def apply(self, sold: list[tuple[str, int]], batch: CommitBatch) -> None:
        """Adds what a batch sold, unless it has been added before."""
        with closing(sqlite3.connect(self._path)) as database, database:
            done = database.execute("SELECT commit_lsn FROM ledger WHERE source = ?", (batch.source,))
            if batch.to_lsn <= (done.fetchone() or (0,))[0]:
                return  # the process ended after this commit and before Spark took note of it
            database.executemany(
                "INSERT INTO sold VALUES (?, ?) "
                "ON CONFLICT (product) DO UPDATE SET units = units + excluded.units",
                sold,
            )
            database.execute(
                "INSERT INTO ledger VALUES (?, ?) "
                "ON CONFLICT (source) DO UPDATE SET commit_lsn = excluded.commit_lsn",
                (batch.source, batch.to_lsn),
            )


def count_sales(
    session: SparkSession, *, source: str, bootstrap: str, schema: str, warehouse: Warehouse, checkpoint: Path
) -> None:
    """Brings the warehouse up to the newest cut."""
    rows_of = changes(session, source=source, bootstrap=bootstrap, schema=schema)

    def apply(rows: DataFrame, batch: CommitBatch) -> None:
        lines = rows_of.typed(rows, "inventory.order_lines").where("op IN ('c', 'r')")
        sold = lines.groupBy("after.product").sum("after.quantity").collect()
        warehouse.apply([(product, units) for product, units in sold], batch)

    query = for_each_commit_batch(rows_of, apply, checkpoint=checkpoint, available_now=True)
    query.awaitTermination()
