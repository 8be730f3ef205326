"""Indexes on a disk that outlives the query."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slackwater_spark.stage.index_folders import index_folder, remove_unused_indexes
from slackwater_spark.stage.lmdb_index import LmdbIndex

NOW = datetime.now(UTC)  # noqa: TID251 - files have the system's time
WEEK = timedelta(days=7)


def used(root: Path, query: str, days_ago: int) -> Path:
    """An index that was last changed so many days ago."""
    folder = index_folder(root, query, "stage-1", 5)
    index = LmdbIndex(folder)
    index.load([[(b"\x91", b"x")]], b"token")
    index.close()
    then = (NOW - timedelta(days=days_ago)).timestamp()
    for path in (folder / "data.mdb", folder, folder.parent, folder.parent.parent):
        os.utime(path, (then, then))
    return folder


def test_indexes_of_queries_that_nobody_runs_are_removed(tmp_path: Path) -> None:
    live, dead = used(tmp_path, "live", 6), used(tmp_path, "dead", 8)
    assert remove_unused_indexes(tmp_path, NOW, WEEK) == [tmp_path / "slackwater" / "dead"]
    assert (live.exists(), dead.exists()) == (True, False)


def test_one_bucket_that_changes_keeps_all_of_its_query(tmp_path: Path) -> None:
    old = used(tmp_path, "live", 30)
    new = index_folder(tmp_path, "live", "stage-2", 1)
    LmdbIndex(new).load([], b"token")
    assert remove_unused_indexes(tmp_path, NOW, WEEK) == []
    assert old.exists()


def test_an_index_removed_under_a_query_that_runs_is_made_again(tmp_path: Path) -> None:
    index = LmdbIndex(used(tmp_path, "idle", 0))
    assert index.update(lambda contents: contents.token) == b"token"
    later = NOW + timedelta(days=30)
    assert len(remove_unused_indexes(tmp_path, later, WEEK)) == 1
    assert index.update(lambda contents: contents.token) is None


def test_a_root_without_indexes_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert remove_unused_indexes(tmp_path, NOW + timedelta(days=30), WEEK) == []
    assert other.exists()
