"""Where indexes are on a local disk, and removing those that nobody has used for long."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

INDEXES: Final = "slackwater"
"""Below a root: ``slackwater/<query id>/stage-<number>/<bucket>/``."""

UNUSED_AFTER: Final = timedelta(days=7)
"""An index that has not changed for so long is removed; the query, should it live, makes it again."""


def index_folder(root: Path, query_id: str, stage: str, bucket: int) -> Path:
    """The folder of a bucket's index."""
    return root / INDEXES / query_id / stage / str(bucket)


def remove_unused_indexes(root: Path, now: datetime, unused_for: timedelta = UNUSED_AFTER) -> list[Path]:
    """Removes the indexes of queries of which none has changed for a time; gives their folders.

    Several processes may do this at once, and use what is removed: an index is a cache that may vanish.
    """
    folders = root / INDEXES
    removed = []
    for of_query in sorted(folders.iterdir()) if folders.is_dir() else ():
        if now - _last_change(of_query) > unused_for:
            shutil.rmtree(of_query, ignore_errors=True)
            removed.append(of_query)
    return removed


def _last_change(of_query: Path) -> datetime:
    newest = 0.0
    for path in (of_query, *of_query.glob("*/*"), *of_query.glob("*/*/data.mdb")):
        try:
            newest = max(newest, path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return datetime.fromtimestamp(newest, UTC)
