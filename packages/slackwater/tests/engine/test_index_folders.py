"""Indexes on a disk that outlives the query."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slackwater.engine.lmdb_index import LmdbIndex, index_folder, remove_unused_indexes
from slackwater.protocol import UnavailableError, make_private_folder

NOW = datetime.now(UTC)  # noqa: TID251 - files have the system's time
WEEK = timedelta(days=7)


def used(root: Path, query: str, days_ago: int) -> Path:
    """An index that was last changed this many days ago."""
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


def test_only_this_account_can_read_an_index(tmp_path: Path) -> None:
    folder = index_folder(tmp_path, "query", "stage-1", 5)
    folder.mkdir(parents=True, mode=0o755)  # as an earlier version made it
    LmdbIndex(folder).update(lambda contents: contents.set_token(b"token"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "data.mdb").stat().st_mode & 0o777 == 0o600


def test_an_index_is_not_put_behind_a_link_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "index").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="is a link or belongs to another account"):
        make_private_folder(tmp_path / "index")
    with pytest.raises(UnavailableError, match="symbolic link"):
        LmdbIndex(tmp_path / "index").update(lambda contents: contents.token)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_of_another_account_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to another account"):
        make_private_folder(tmp_path)
