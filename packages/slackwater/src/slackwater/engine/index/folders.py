"""The folders of indexes on a local disk: private, and removed when they have been unused for a long time."""

import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from slackwater.protocol import UnavailableError

INDEXES: Final = "slackwater"
"""The folder below a root: ``slackwater/<query id>/stage-<number>/<bucket>/``."""

UNUSED_AFTER: Final = timedelta(days=7)
"""An index that has not changed for this time is removed. If its query is still in use, it creates the index
again."""


def index_folder(root: Path, query_id: str, stage: str, bucket: int) -> Path:
    """Returns the folder of a bucket's index."""
    return root / INDEXES / query_id / stage / str(bucket)


def make_private_folder(folder: Path) -> None:
    """Creates a folder that only this account can use, because it will contain rows of the source.

    Raises:
        OSError: It cannot be created, or it is a link or belongs to another account, which could replace its
            files.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is a link or belongs to another account")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


def unusable_folder(folder: Path | str, reason: str) -> UnavailableError:
    """Returns the error for a folder that cannot contain an index."""
    return UnavailableError(
        f"index folder {folder}: {reason}; check that the disk is not full and the folder is writable. "
        "Nothing "
        "is lost: the state is in the checkpoint. SPARK_LOCAL_DIRS, or run.index_root, names another folder"
    )


def remove_unused_indexes(root: Path, now: datetime, unused_for: timedelta = UNUSED_AFTER) -> list[Path]:
    """Removes the indexes of queries whose indexes have all not changed for a time; returns their folders.

    Several processes may do this at the same time, and may use what is removed, because an index is a cache
    that may disappear.
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
