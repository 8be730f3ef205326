"""Row-level source: one table's changes with exact types, as a stream or as a finite frame."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from slackwater.api import changes


def revenue_now(session: SparkSession, *, source: str, bootstrap: str, schema: str) -> DataFrame:
    """Revenue by customer at the newest cut, from everything that ever happened to the orders."""
    orders = changes(session, source=source, bootstrap=bootstrap, schema=schema, streaming=False)
    newest = F.max_by("after", F.struct("commit_lsn", "order_in_transaction"))
    rows = orders.table("inventory.orders").groupBy("key").agg(newest.alias("row"))
    return rows.where("row IS NOT NULL").groupBy("row.customer").agg(F.sum("row.total").alias("revenue"))


def archive(
    session: SparkSession, *, source: str, bootstrap: str, schema: str, folder: Path, checkpoint: Path
) -> None:
    """All changes of the orders as Parquet, whole transactions only; ends when everything is there."""
    orders = changes(session, source=source, bootstrap=bootstrap, schema=schema)
    query = (
        orders.table("inventory.orders", as_text=["created_at"])
        .select("commit_lsn", "commit_ts", "op", "key.id", "after")
        .writeStream.format("parquet")
        .option("path", str(folder))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
