"""Views from Python: SQL that is right at every commit, its documents as files."""

from pathlib import Path

from pyspark.sql import SparkSession

from slackwater.api import Pipeline, ViewBatch, for_each_document_batch


def customers_pipeline(*, source: str, schema: str) -> Pipeline:
    """Two views; the second one reads the first."""
    return Pipeline(
        name="customers",
        source=source,
        schema=schema,
        views={
            "order_values": """
                SELECT TRANSACTIONALLY o.id, o.customer, sum(l.quantity * l.price) AS amount
                FROM inventory.orders o JOIN inventory.order_lines l ON l.order_id = o.id
                GROUP BY o.id, o.customer
            """,
            "customer_values": """
                SELECT TRANSACTIONALLY v.customer, count(*) AS orders, sum(v.amount) AS amount
                FROM order_values v
                GROUP BY v.customer
            """,
        },
    )


def archive(
    session: SparkSession, pipeline: Pipeline, *, bootstrap: str, folder: Path, checkpoint: Path
) -> None:
    """Every change of every document as Parquet, exactly once; ends when everything is there."""

    def write(batch: ViewBatch) -> None:
        # A batch that is repeated is the same batch, so its files may be written over.
        batch.rows().write.mode("overwrite").parquet(str(folder / f"batch={batch.batch_id}"))

    documents = pipeline.documents(session, bootstrap=bootstrap)
    for_each_document_batch(documents, write, checkpoint=checkpoint, available_now=True)
