"""What the sink needs of a table in a lake, over every table format. Needs no server."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.snapshots import Snapshot as TableSnapshot
from pyiceberg.types import StringType

from slackwater.outputs.lake.delta import DeltaLake
from slackwater.outputs.lake.iceberg import IcebergLake, _may_hold, _old_snapshots, _snapshot
from slackwater.outputs.lake.table import (
    DELETED,
    Lake,
    LakeError,
    LakeTable,
    SnapshotConflictError,
    SnapshotGoneError,
)
from slackwater.protocol import LakeSettings, SystemClock

SCHEMA = pa.schema(
    [("Id", pa.int64()), ("b", pa.string()), ("l", pa.list_(pa.struct([("x", pa.decimal128(9, 2))])))]
)
CLOCK = SystemClock()
MINE = {"slackwater.pipeline": "p"}

Write = Callable[[LakeTable, int], int]
Row = tuple[int | None, str]


def rows(*values: Row) -> Any:
    return pa.Table.from_pylist([{"Id": i, "b": b, "l": [{"x": 1}, None]} for i, b in values], schema=SCHEMA)


def changes(*values: Row, gone: tuple[int | None, ...] = ()) -> Any:
    there = rows(*values).append_column(DELETED, pa.array([False] * len(values), pa.bool_()))
    missing = pa.Table.from_pylist([{"Id": i, DELETED: True} for i in gone], schema=there.schema)
    return pa.concat_tables([there, missing])


WRITES: dict[str, Write] = {
    "append": lambda table, _: table.append(rows((9, "late")), MINE),
    "replace": lambda table, _: table.replace(rows((9, "late")), MINE),
    "merge": lambda table, _: table.merge(changes((9, "late")), ["Id"], MINE),
    "compact": lambda table, _: table.compact(MINE),
    "roll_back": lambda table, past: table.roll_back(past, MINE),
}


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "delta":
        return DeltaLake(LakeSettings(place=str(tmp_path / "lake")))
    options = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalogue.db'}",
        "warehouse": f"file://{tmp_path / 'lake'}",
    }
    return IcebergLake(LakeSettings(place="test", options=options))


def made(lake: Lake) -> LakeTable:
    table = lake.table("s.t")
    assert table.load() is None
    table.create(SCHEMA, MINE)
    table.append(rows((1, "a"), (2, "b")), MINE)
    table.append(rows((3, "c")), MINE)
    return table


def content(table: LakeTable, snapshot: int | None = None) -> list[Row]:
    head = table.load()
    assert head is not None
    found = table.read(head.id if snapshot is None else snapshot).to_pylist()
    return sorted(((row["Id"], row["b"]) for row in found), key=lambda row: (row[0] is None, row))


def test_a_table_whose_creator_died_before_it_wrote_is_read_and_written(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> int:
        raise RuntimeError("killed")

    table = lake.table("s.t")
    with monkeypatch.context() as patch:
        patch.setattr(table, "append" if isinstance(lake, DeltaLake) else "_commit", die)
        with pytest.raises(RuntimeError, match="killed"):
            table.create(SCHEMA, MINE)
    again = lake.table("s.t")
    assert content(again) == []
    again.append(rows((1, "a")), MINE)
    assert content(again) == [(1, "a")]


def test_rows_are_added_replaced_and_merged(lake: Lake) -> None:
    table = made(lake)
    ids = [table.snapshots_from(None)[-1].id]
    ids.append(table.merge(changes((2, "B"), (None, "n"), (4, "d"), gone=(3, 7)), ["Id"], MINE))
    ids.append(table.merge(changes((None, "N"), gone=(1,)), ["Id"], MINE))
    ids.append(table.replace(rows((5, "e")), MINE))
    assert [content(table, each) for each in ids] == [
        [(1, "a"), (2, "b"), (3, "c")],
        [(1, "a"), (2, "B"), (4, "d"), (None, "n")],
        [(2, "B"), (4, "d"), (None, "N")],
        [(5, "e")],
    ]
    assert table.read(ids[0]).to_pylist()[0]["l"] == rows((1, "a")).to_pylist()[0]["l"]


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("other", WRITES)
def test_nothing_is_committed_on_top_of_what_was_not_loaded(lake: Lake, name: str, other: str) -> None:
    """Fails when the library tries a commit again: all of these would be merged with the other's."""
    table, late = made(lake), lake.table("s.t")
    past = table.snapshots_from(None)[-2].id
    late.load()
    WRITES[other](table, past)
    before = content(lake.table("s.t"))
    with pytest.raises(SnapshotConflictError):
        WRITES[name](late, past)
    if name == "compact":  # it may have done it all the same, and then says so
        head = lake.table("s.t").load()
        assert head is not None
        assert content(lake.table("s.t")) == before or not head.keeps_rows
    else:
        assert content(lake.table("s.t")) == before


@pytest.mark.parametrize("other", WRITES)
def test_nothing_is_removed_by_a_run_that_has_not_loaded_the_newest_snapshot(
    lake: Lake, tmp_path: Path, other: str
) -> None:
    """Fails when old files that only unknown snapshots have count as lost."""
    table, late = made(lake), lake.table("s.t")
    head = late.load()
    assert head is not None
    WRITES[other](table, table.snapshots_from(None)[-2].id)
    before = content(lake.table("s.t"))
    aged(tmp_path.rglob("*.parquet"), days=40)
    now = CLOCK.now()
    with pytest.raises(SnapshotConflictError):
        late.expire({head.id}, now - timedelta(days=1), now, MINE)
    assert content(lake.table("s.t")) == before
    late.load()
    for _ in range(2):
        late.expire({head.id}, now, now, MINE)
    assert content(lake.table("s.t")) == before


def test_a_table_is_made_once(lake: Lake) -> None:
    made(lake)
    with pytest.raises(SnapshotConflictError):
        lake.table("s.t").create(SCHEMA, MINE)


def test_every_commit_is_known_with_its_properties(lake: Lake) -> None:
    table = made(lake)
    second = table.merge(changes((7, "x")), ["Id"], {**MINE, "slackwater.batch": "7"})
    head = lake.table("s.t").load()
    assert head is not None
    assert (head.id, head.properties["slackwater.batch"], head.keeps_rows) == (second, "7", False)
    found = table.snapshots_from(None)
    assert found[-1].id == second
    assert all(each.properties["slackwater.pipeline"] == "p" for each in found)
    assert [each.id for each in table.snapshots_from(second)] == [second]
    with pytest.raises(SnapshotGoneError):
        table.snapshots_from(12345)


def test_rolling_back_brings_the_rows_back(lake: Lake) -> None:
    table = made(lake)
    kept = table.snapshots_from(None)[-1].id
    table.merge(changes((1, "x"), gone=(2, 3)), ["Id"], MINE)
    table.roll_back(kept, MINE)
    assert content(table) == content(table, kept) == [(1, "a"), (2, "b"), (3, "c")]
    above = table.snapshots_from(kept)[1:]
    assert not above or above[-1].restores == kept
    table.merge(changes((4, "d")), ["Id"], MINE)
    assert content(table) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_compaction_keeps_the_rows(lake: Lake) -> None:
    table = made(lake)
    before = content(table)
    found = table.compact(MINE)
    assert content(table, found) == before
    assert table.compact(MINE) == found, "there is nothing more to do"


def test_what_is_kept_can_be_read_and_what_is_not_cannot(lake: Lake) -> None:
    table = made(lake)
    ids = [table.replace(rows((n, "r")), MINE) for n in range(4)]
    now = CLOCK.now()
    table.expire({ids[2], ids[3]}, now, now, MINE)
    assert [content(table, each) for each in ids[2:]] == [[(2, "r")], [(3, "r")]]
    for snapshot in ids[:2]:
        with pytest.raises(SnapshotGoneError):
            table.read(snapshot)
    table.load()
    with pytest.raises(SnapshotGoneError):
        table.roll_back(ids[0], MINE)
    table.load()
    table.append(rows((9, "x")), MINE)
    assert content(table) == [(3, "r"), (9, "x")]


def test_young_snapshots_stay_though_nobody_names_them(lake: Lake) -> None:
    table = made(lake)
    ids = [table.replace(rows((n, "r")), MINE) for n in range(3)]
    lost = table.append(rows((9, "lost")), MINE)
    table.roll_back(ids[2], MINE)
    now = CLOCK.now()
    table.expire({ids[2]}, now - timedelta(hours=1), now, MINE)
    assert [content(table, each) for each in ids] == [[(n, "r")] for n in range(3)]
    assert content(table, lost) == [(2, "r"), (9, "lost")]


def test_of_what_is_removed_no_file_stays_and_of_what_is_kept_all_do(lake: Lake, tmp_path: Path) -> None:
    """Also of snapshots that were rolled back, and of files that several snapshots have."""
    table = made(lake)
    named = table.snapshots_from(None)[-1].id
    table.merge(changes((1, "lost"), (8, "lost")), ["Id"], MINE)
    table.roll_back(named, MINE)
    kept = table.merge(changes((2, "B")), ["Id"], MINE)
    newest = table.append(rows((9, "x")), MINE)
    now = CLOCK.now()
    table.expire({kept, newest}, now, now, MINE)
    assert content(table, kept) == [(1, "a"), (2, "B"), (3, "c")]
    assert content(table, newest) == [(1, "a"), (2, "B"), (3, "c"), (9, "x")]
    # Of a merge delta-rs makes one file; in Iceberg what stays and what is new are two.
    assert len(list(tmp_path.rglob("*.parquet"))) == (4 if isinstance(lake, IcebergLake) else 3)
    now = CLOCK.now()
    table.load()
    last = table.replace(rows((1, "z")), MINE)
    table.expire({last}, now + timedelta(seconds=1), now, MINE)
    assert content(table, last) == [(1, "z")]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_files_stay_that_are_listed_anew_without_their_neighbours(lake: Lake) -> None:
    """Fails when an expired snapshot's files are removed though a later one lists them elsewhere."""
    table = made(lake)
    table.merge(changes((1, "A"), (5, "e")), ["Id"], MINE)
    last = table.merge(changes(gone=(2,)), ["Id"], MINE)
    now = CLOCK.now() + timedelta(seconds=1)
    table.expire({last}, now, now, MINE)
    assert content(table, last) == [(1, "A"), (3, "c"), (5, "e")]


def test_what_was_rolled_back_takes_no_file_of_the_snapshot_below_with_it(lake: Lake) -> None:
    """Fails when all that a lost snapshot has is removed that the oldest one which stays has not."""
    table = made(lake)
    oldest = table.snapshots_from(None)[-1].id
    named = table.append(rows((4, "d")), MINE)
    table.merge(changes((1, "lost")), ["Id"], MINE)
    table.roll_back(named, MINE)
    last = table.append(rows((9, "x")), MINE)
    now = CLOCK.now() + timedelta(seconds=1)
    table.expire({oldest, last}, now, now, MINE)
    assert content(table, oldest) == [(1, "a"), (2, "b"), (3, "c")]
    assert content(table, last) == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (9, "x")]


KEYS: list[tuple[Any, list[Any]]] = [
    (pa.int64(), [1, 2, 3]),
    (pa.string(), ["a", "é'\"", ""]),
    (pa.bool_(), [True, False, None]),
    (pa.decimal128(12, 2), [Decimal("1.10"), Decimal("-2.00"), Decimal(0)]),
    (pa.decimal128(38, 0), [Decimal(10) ** 37, Decimal(2), Decimal(3)]),
    (pa.date32(), [date(2026, 1, 1), date(1, 1, 1), date(9999, 12, 31)]),
    (pa.timestamp("us"), [datetime(2026, 1, 1, 1, 1, 1, n) for n in range(3)]),  # noqa: DTZ001 - as it is
    (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, 1, 1, 1, n, tzinfo=UTC) for n in range(3)]),
    (pa.binary(), [b"a", b"\xff", b""]),
    (pa.float64(), [1.5, float("-inf"), 0.1]),
]


@pytest.mark.parametrize(
    ("kind", "keys"), KEYS, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
@pytest.mark.parametrize("copies", [1, 300])
def test_rows_are_found_by_keys_of_every_type(lake: Lake, kind: Any, keys: list[Any], copies: int) -> None:
    """Alone, and among enough keys that only their range is compared; the second column tells them apart."""
    schema = pa.schema([("k", kind), ("n", pa.int64()), ("v", pa.string())])

    def table_of(value: str, wanted: list[Any]) -> Any:
        found = [{"k": key, "n": n, "v": value} for key in wanted for n in range(copies)]
        return pa.Table.from_pylist(found, schema=schema)

    def flagged(found: Any, *, is_deleted: bool) -> Any:
        return found.append_column(DELETED, pa.array([is_deleted] * len(found), pa.bool_()))

    table = lake.table("s.t")
    table.create(schema, MINE)
    table.append(table_of("old", keys), MINE)
    new, gone = table_of("new", keys[:1]), table_of("", keys[1:2])
    merged = pa.concat_tables([flagged(new, is_deleted=False), flagged(gone, is_deleted=True)])
    found = table.read(table.merge(merged, ["k", "n"], MINE)).to_pylist()
    assert {(row["k"], row["v"]) for row in found} == {(keys[0], "new"), (keys[2], "old")}
    assert len(found) == 2 * copies


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_a_table_that_somebody_else_has_made_is_not_committed_to_again_either(lake: IcebergLake) -> None:
    lake.catalog().create_namespace("s")
    lake.catalog().create_table("s.t", SCHEMA).append(rows((1, "a")))
    table, late = lake.table("s.t"), lake.table("s.t")
    table.load()
    table.append(rows((2, "b")), MINE)
    late.load()
    table.append(rows((3, "c")), MINE)
    with pytest.raises(SnapshotConflictError):
        late.merge(changes((4, "d")), ["Id"], MINE)
    assert lake.catalog().load_table("s.t").properties["commit.retry.num-retries"] == "0"


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_nothing_is_written_to_a_table_that_has_other_columns_than_when_it_was_loaded(
    lake: IcebergLake,
) -> None:
    table = made(lake)
    table.load()
    with lake.catalog().load_table("s.t").update_schema() as update:
        update.add_column("more", StringType())
    with pytest.raises(SnapshotConflictError):
        table.append(rows((4, "d")), MINE)


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_a_table_that_another_one_without_rows_has_replaced_is_not_written(lake: IcebergLake) -> None:
    """Neither has a snapshot, and the schemas have the same number."""
    lake.catalog().create_namespace("s")
    lake.catalog().create_table("s.t", SCHEMA)
    table = lake.table("s.t")
    table.load()
    lake.catalog().drop_table("s.t")
    lake.catalog().create_table("s.t", SCHEMA)
    with pytest.raises(SnapshotConflictError):
        table.append(rows((1, "a")), MINE)


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_of_the_snapshots_that_stay_one_tells_which_files_of_older_ones_stay(lake: IcebergLake) -> None:
    """Fails when the files of every young snapshot are listed, which takes long where many are young."""
    table = made(lake)
    ids = [table.replace(rows((n, "r")), MINE) for n in range(4)]
    metadata = lake.catalog().load_table("s.t").metadata
    times = {each.snapshot_id: each.timestamp_ms for each in metadata.snapshots}
    oldest = next(each for each in ids if times[each] >= times[ids[1]])
    old, guards = _old_snapshots(metadata, {ids[3]}, times[ids[1]])
    assert [each.snapshot_id for each in guards] == [oldest]
    assert {each.snapshot_id for each in old} == {each for each in times if times[each] < times[ids[1]]}


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
@pytest.mark.parametrize(
    ("keys", "files"), [([1, 5000], 1), (range(2000), 1), ([*range(4000), None], 2), ([None], 0)]
)
def test_files_that_cannot_have_a_key_are_not_read(
    lake: IcebergLake, keys: Iterable[int | None], files: int
) -> None:
    """Of many keys only the range is compared: pyiceberg reads all files when it has to compare too many."""
    table = lake.table("s.t")
    table.create(SCHEMA, MINE)
    for first in (0, 3000, 6000):
        table.append(rows((first, "x"), (first + 10, "x")), MINE)
    condition = _may_hold("Id", pa.chunked_array([pa.array(keys, pa.int64())]))
    scan = lake.catalog().load_table("s.t").scan(row_filter=condition)
    assert len(list(scan.plan_files())) == files


@pytest.mark.parametrize("operation", Operation)
def test_only_a_snapshot_that_says_so_keeps_the_rows(operation: Operation) -> None:
    """Other engines declare their compactions, which pyiceberg cannot make."""
    written = {"snapshot-id": 1, "manifest-list": "", "summary": {"operation": operation.value}}
    assert _snapshot(TableSnapshot.model_validate(written)).keeps_rows == (operation is Operation.REPLACE)


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_snapshots_with_a_name_of_somebody_else_stay(lake: IcebergLake) -> None:
    table = made(lake)
    tagged = table.snapshots_from(None)[-1].id
    last = [table.replace(rows((n, "r")), MINE) for n in range(3)][-1]
    lake.catalog().load_table("s.t").manage_snapshots().create_tag(tagged, "mine").commit()
    now = CLOCK.now() + timedelta(seconds=1)
    table.expire({last}, now, now, MINE)
    assert content(table, tagged) == [(1, "a"), (2, "b"), (3, "c")]
    assert content(table, last) == [(2, "r")]


def test_a_catalogue_that_nobody_has_described_is_refused() -> None:
    with pytest.raises(LakeError, match="catalogue 'nobody'"):
        IcebergLake(LakeSettings(place="nobody")).table("s.t").load()


def aged(files: Iterable[Path], **age: float) -> None:
    then = (CLOCK.now() - timedelta(**age)).timestamp()
    for file in files:
        os.utime(file, (then, then))


@pytest.fixture
def delta(tmp_path: Path) -> Lake:
    return DeltaLake(LakeSettings(place=str(tmp_path / "lake")))


def test_commits_that_were_not_loaded_are_not_taken_for_those_that_were(delta: Lake) -> None:
    """Fails when the versions are believed that delta-rs counts back from the loaded one."""
    table, late = made(delta), delta.table("s.t")
    head = late.load()
    assert head is not None
    table.append(rows((9, "x")), {**MINE, "slackwater.batch": "9"})
    with pytest.raises(SnapshotConflictError):
        late.snapshots_from(head.id)
    late.load()
    assert [each.properties.get("slackwater.batch") for each in late.snapshots_from(head.id)] == [None, "9"]


def test_a_compaction_and_properties_of_another_writer_keep_the_rows(delta: Lake, tmp_path: Path) -> None:
    table = made(delta)
    other = DeltaTable(str(tmp_path / "lake" / "s" / "t"))
    named = other.version()
    other.optimize.compact()
    other.alter.set_table_properties({"delta.appendOnly": "false"})
    other.alter.add_constraint({"small": '"Id" < 100'})
    table.load()
    assert [each.keeps_rows for each in table.snapshots_from(named)[1:]] == [True, True, True]
    table.append(rows((9, "x")), MINE)
    assert [each.keeps_rows for each in table.snapshots_from(named)[4:]] == [False]


def test_files_that_no_commit_has_go_when_they_are_old_and_no_others(delta: Lake, tmp_path: Path) -> None:
    """Fails when a file counts as lost though a version that is young enough has it."""
    table = made(delta)
    folder = tmp_path / "lake" / "s" / "t"
    before = table.snapshots_from(None)[-1].id
    aged(folder.glob("*.parquet"), days=40)
    last = table.replace(rows((7, "new")), MINE)
    old, young, new = (folder / f"part-lost-{age}.parquet" for age in ("old", "young", "new"))
    for lost in (old, young, new):
        shutil.copy(next(folder.glob("*.parquet")), lost)
    aged([old], days=2)
    aged([young], hours=20)  # longer than versions are kept, but a run may still be about to commit it
    now = CLOCK.now()
    table.expire({last}, now - timedelta(hours=1), now, MINE)
    assert (old.exists(), young.exists(), new.exists()) == (False, True, True)
    assert content(table, before) == [(1, "a"), (2, "b"), (3, "c")]
    assert content(table, last) == content(table) == [(7, "new")]


@pytest.mark.parametrize("keep", [timedelta(days=10), None], ids=["longer than checkpoints tell", "property"])
def test_lost_files_stay_where_checkpoints_may_not_tell_what_is_lost(
    delta: Lake, tmp_path: Path, keep: timedelta | None
) -> None:
    table = made(delta)
    folder = tmp_path / "lake" / "s" / "t"
    if keep is None:
        properties = {"delta.deletedFileRetentionDuration": "interval 1 hours"}
        DeltaTable(str(folder)).alter.set_table_properties(properties)
        table.load()
    lost = folder / "part-lost.parquet"
    shutil.copy(next(folder.glob("*.parquet")), lost)
    aged([lost], days=40)
    now = CLOCK.now()
    last = table.replace(rows((7, "new")), MINE)
    table.expire({last}, now - (keep or timedelta(hours=1)), now, MINE)
    assert lost.exists()


def test_old_commits_leave_the_log_behind_a_checkpoint_and_what_is_named_stays_readable(
    delta: Lake, tmp_path: Path
) -> None:
    table = made(delta)
    folder = tmp_path / "lake" / "s" / "t"
    ids = [table.append(rows((n, "r")), MINE) for n in range(10, 22)]
    log = folder / "_delta_log"
    DeltaTable(str(folder), version=ids[4]).create_checkpoint()
    aged([log / f"{version:020d}.json" for version in range(ids[7])], days=40)
    aged(log.glob("*.checkpoint.parquet"), days=40)
    left = Path(shutil.copy(log / f"{ids[1]:020d}.json", tmp_path))
    now = CLOCK.now()
    table.load()
    expected = {version: content(table, version) for version in ids[7:]}
    table.load()
    table.expire({ids[7], ids[-1]}, now - timedelta(hours=1), now, MINE)
    assert not (log / f"{ids[3]:020d}.json").exists()
    assert {version: content(table, version) for version in ids[7:]} == expected
    # Killed before it had removed all that goes: some are left, with a gap behind them.
    (log / left.name).write_bytes(left.read_bytes())
    aged([log / left.name], days=40)
    fresh = delta.table("s.t")
    fresh.load()
    last = fresh.append(rows((99, "x")), MINE)
    fresh.expire({ids[7], last}, now - timedelta(hours=1), now, MINE)
    assert {version: content(fresh, version) for version in ids[7:]} == expected


def made_long_ago(commit: Path) -> None:
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] -= timedelta(days=40) // timedelta(milliseconds=1)
    commit.write_text("\n".join(map(json.dumps, lines)) + "\n")


@pytest.mark.parametrize("case", ["old and named", "property", "without its commit"])
def test_the_log_stays_where_a_version_that_is_named_might_go_with_it(
    delta: Lake, tmp_path: Path, case: str
) -> None:
    """An idle table's named version may lie far below the first young one: fails without the comparison."""
    table = made(delta)
    folder = tmp_path / "lake" / "s" / "t"
    named = table.append(rows((5, "e")), MINE)
    log = folder / "_delta_log"
    if case == "old and named":
        made_long_ago(log / f"{named:020d}.json")
    for _ in range(8):
        table.compact(MINE)
        table.append(rows((6, "f")).slice(0, 0), MINE)
    if case == "without its commit":
        DeltaTable(str(folder), version=named).create_checkpoint()
        for version in range(named + 1):
            (log / f"{version:020d}.json").unlink()
    if case == "property":
        DeltaTable(str(folder)).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 hours"})
    DeltaTable(str(folder)).create_checkpoint()
    aged([*log.glob("*.json"), *log.glob("*.checkpoint.parquet")], days=40)
    before = set(log.iterdir())
    table.load()
    last = table.append(rows((7, "g")), MINE)
    now = CLOCK.now()
    table.expire({named, last}, now, now, MINE)
    assert content(table, named) == [(1, "a"), (2, "b"), (3, "c"), (5, "e")]
    assert set(log.iterdir()) > before
