"""A Python function per key: the invoice of each order, right at every commit, into Kafka or elsewhere."""

from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from slackwater.api import (
    Documents,
    Rows,
    ViewBatch,
    changes,
    for_each_document_batch,
    stateful,
    write_view,
)


def invoice(order_id: int, rows: Rows) -> dict[str, Any] | None:
    """What an order's customer has to pay; orders without lines have no invoice."""
    if not rows["inventory.orders"] or not rows["inventory.order_lines"]:
        return None
    [order] = rows["inventory.orders"]
    net = sum((line["quantity"] * line["price"] for line in rows["inventory.order_lines"]), Decimal(0))
    discount = net * Decimal("0.10") if net >= 100 else Decimal(0)
    return {
        "customer": order["customer"],
        "ordered": order["created_at"].date(),
        "lines": len(rows["inventory.order_lines"]),
        "amount": (net - discount).quantize(Decimal("0.01")),
    }


def invoices(session: SparkSession, *, source: str, bootstrap: str, schema: str) -> Documents:
    """The invoices, a document for each order."""
    return stateful(
        changes(session, source=source, bootstrap=bootstrap, schema=schema),
        invoice,
        name="invoices",
        key={"inventory.orders": "id", "inventory.order_lines": "order_id"},
        document="customer STRING NOT NULL, ordered DATE, lines INT, amount DECIMAL(12,2)",
    )


def publish(documents: Documents, *, topic: str, checkpoint: Path) -> None:
    """Into Kafka, exactly once: each batch visible at once, deletes as tombstones."""
    write_view(documents, topic=topic, checkpoint=checkpoint, available_now=True)


def into_table(documents: Documents, *, table: dict[str, str | None], checkpoint: Path) -> None:
    """Into anything else, batch by batch; here a dict stands for the table."""

    def apply(batch: ViewBatch) -> None:
        table.update({order: document for _, order, document in batch.documents("invoices")})

    for_each_document_batch(documents, apply, checkpoint=checkpoint, available_now=True)
