"""All tables of a pipeline as they were at one commit of the source; needs nothing but pyiceberg."""

from typing import Any

from pyiceberg.catalog import Catalog


def tables_at(catalog: Catalog, pipeline: str, lsn: int | None = None) -> tuple[int, dict[str, Any]]:
    """Returns a commit LSN and every table at it, as Arrow tables by name.

    Args:
        catalog: As ``load_catalog("analytics")`` returns it.
        pipeline: Its name.
        lsn: The newest state that is not newer than this commit; None: the newest of all.
    """
    ledger = catalog.load_table(f"slackwater.{pipeline}").scan().to_arrow().to_pylist()
    rows = [row for row in ledger if lsn is None or row["commit_lsn"] <= lsn]
    newest = max(rows, key=lambda row: row["batch_id"])
    return newest["commit_lsn"], {
        name: catalog.load_table(name).scan(snapshot_id=snapshot).to_arrow()
        for name, snapshot in newest["snapshots"]
    }
