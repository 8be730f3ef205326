"""The folders of indexes on a local disk: private, and removed when nobody has used them for long."""

import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from slackwater_engine.errors import EngineUnavailableError

INDEXES: Final = "slackwater"
"""Below a root: ``slackwater/<query id>/stage-<number>/<bucket>/``."""

UNUSED_AFTER: Final = timedelta(days=7)
"""An index that has not changed for so long is removed; the query, should it live, makes it again."""


def index_folder(root: Path, query_id: str, stage: str, bucket: int) -> Path:
    """Returns the folder of a bucket's index."""
    return root / INDEXES / query_id / stage / str(bucket)


def make_private_folder(folder: Path) -> None:
    """Makes a folder that only this account can use: rows of the source are kept in it.

    Raises:
        OSError: It cannot be made, or it is a link or another account's, who could exchange its files.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is a link or belongs to another account")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


def unusable_folder(folder: Path | str, reason: str) -> EngineUnavailableError:
    """Makes the error for a folder in which no index can be kept."""
    return EngineUnavailableError(
        f"index folder {folder}: {reason}; check that the disk is not full and the folder is writable. "
        "Nothing "
        "is lost: the state is in the checkpoint. SPARK_LOCAL_DIRS, or run.index_root, names another folder"
    )


def remove_unused_indexes(root: Path, now: datetime, unused_for: timedelta = UNUSED_AFTER) -> list[Path]:
    """Removes the indexes of queries of which none has changed for a time; returns their folders.

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
