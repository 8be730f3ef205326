"""All tables of a pipeline as they were at one commit of the source; needs nothing but deltalake."""

from typing import Any

from deltalake import DeltaTable


def tables_at(lake: str, pipeline: str, lsn: int | None = None) -> tuple[int, dict[str, Any]]:
    """Returns a commit LSN and every table at it, as Arrow tables by name.

    Args:
        lake: The folder of the tables.
        pipeline: Its name.
        lsn: The newest state that is not newer than this commit; None: the newest of all.
    """
    ledger = DeltaTable(f"{lake}/slackwater/{pipeline}").to_pyarrow_table().to_pylist()
    rows = [row for row in ledger if lsn is None or row["commit_lsn"] <= lsn]
    newest = max(rows, key=lambda row: row["batch_id"])
    return newest["commit_lsn"], {
        name: DeltaTable(f"{lake}/{name.replace('.', '/')}", version=version).to_pyarrow_table()
        for name, version in newest["snapshots"]
    }
