"""The tables of lakes: what is in them, what somebody else does to them, what is kept. Needs no server."""

import json
import os
import resource
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table
from pyiceberg.types import StringType

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.batch import progress_after
from slackwater.outputs.contract import OutputRefusedError, OutputTable, SinkStep
from slackwater.outputs.lake.delta import DeltaLake
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.outputs.lake.ledger import Ledger, LedgerRow
from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings
from slackwater.outputs.lake.table import (
    Snapshot,
    SnapshotConflictError,
    SnapshotGoneError,
    lake_error,
)
from slackwater.outputs.sink import Waiting
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    LakeSettings,
    OvertakenError,
    StateError,
    SystemClock,
    UnavailableError,
)
from slackwater.sql.plan import OutputColumn

MakeBatch = Callable[..., DocumentBatch]
Document = tuple[int, bytes, bytes | None]
QUERY = "0f5c2f6e-query"
COLUMNS = (
    OutputColumn("id", "BIGINT"),
    OutputColumn("Total", "DECIMAL(12,2)"),
    OutputColumn("lines", "STRUCT(product VARCHAR, price DECIMAL(10,2))[]"),
)


class MovedClock(SystemClock):
    """The system's clock, some time ahead."""

    ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


class Lake(ABC):
    """A pipeline of one view into a table ``s.orders``, with what somebody else can do to it."""

    def __init__(self, folder: Path, settings: LakeSettings) -> None:
        self.folder = folder
        self.settings = LakeSinkSettings(
            pipeline="p",
            outputs=(OutputTable(name="s.orders", columns=COLUMNS, key=("id",), view="orders"),),
            lake=replace(settings, maintain_every=4),
            patience=timedelta(milliseconds=1),
            request_timeout=timedelta(milliseconds=1),
        )

    def sink(self, settings: LakeSinkSettings | None = None, **options: Any) -> LakeSink:
        return LakeSink(settings or self.settings, self.adapter, **options)

    @property
    @abstractmethod
    def adapter(self) -> Any: ...

    def head(self, name: str = "s.orders") -> Snapshot:
        found: Snapshot | None = self.adapter.table(name).load()
        assert found is not None
        return found

    def read(self, name: str = "s.orders", snapshot: int | None = None) -> list[dict[str, Any]]:
        table = self.adapter.table(name)
        head = table.load()
        found: list[dict[str, Any]] = table.read(head.id if snapshot is None else snapshot).to_pylist()
        return found

    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.read(), key=lambda row: (row["id"] is None, row["id"] or 0))

    def ids(self) -> list[int | None]:
        return [row["id"] for row in self.rows()]

    def ledger(self) -> list[dict[str, Any]]:
        return sorted(self.read("slackwater.p"), key=lambda row: row["batch_id"])

    def versions(self) -> list[int]:
        """Those that the ledger names."""
        return [dict(row["snapshots"])["s.orders"] for row in self.ledger()]

    def can_read(self, version: int) -> bool:
        try:
            self.read(snapshot=version)
        except SnapshotGoneError:
            return False
        return True

    def stored(self) -> int:
        """How many data files are there, whether needed or not."""
        return len(list(self.folder.joinpath("s", "orders").rglob("*.parquet")))

    @abstractmethod
    def files(self) -> int:
        """How many files the newest snapshot has."""

    @abstractmethod
    def rename(self, name: str, other: str) -> None: ...

    @abstractmethod
    def make(self, rows: Any) -> None:
        """Makes the table with rows, in several commits."""

    @abstractmethod
    def add_row(self) -> None: ...

    @abstractmethod
    def delete_rows(self) -> None: ...

    @abstractmethod
    def restore(self) -> None:
        """Brings back what the ledger names."""

    @abstractmethod
    def add_column(self) -> None: ...

    @abstractmethod
    def take_column_away(self) -> None: ...


class DeltaTables(Lake):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LakeSettings(place=str(folder)))

    @property
    def adapter(self) -> DeltaLake:
        return DeltaLake(self.settings.lake)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(str(self.folder / "s" / "orders"))

    def files(self) -> int:
        return len(self.table.file_uris())

    def rename(self, name: str, other: str) -> None:
        paths = [self.folder / each.replace(".", "/") for each in (name, other)]
        paths[1].parent.mkdir(exist_ok=True)
        paths[0].rename(paths[1])

    def make(self, rows: Any) -> None:
        for _ in range(4):
            write_deltalake(self.folder / "s" / "orders", rows, mode="append")

    def add_row(self) -> None:
        write_deltalake(self.table, self.table.to_pyarrow_table().slice(0, 1), mode="append")

    def delete_rows(self) -> None:
        self.table.delete()

    def restore(self) -> None:
        self.table.restore(self.versions()[-1])

    def add_column(self) -> None:
        self.table.alter.add_columns([Field("more", PrimitiveType("string"))])

    def take_column_away(self) -> None:
        self.restore()

    def optimize(self) -> None:
        table = self.table
        table.optimize.compact()
        table.vacuum(retention_hours=200, dry_run=False)


class IcebergTables(Lake):
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        catalogue, warehouse = f"sqlite:///{folder / 'catalogue.db'}", f"file://{folder}"
        options = {"type": "sql", "uri": catalogue, "warehouse": warehouse}
        super().__init__(folder, LakeSettings(place="test", options=options))

    @property
    def adapter(self) -> IcebergLake:
        return IcebergLake(self.settings.lake)

    @property
    def table(self) -> Table:
        return self.adapter.catalog().load_table("s.orders")

    def files(self) -> int:
        return len(list(self.table.scan().plan_files()))

    def rename(self, name: str, other: str) -> None:
        catalog = self.adapter.catalog()
        catalog.create_namespace_if_not_exists(other.partition(".")[0])
        catalog.rename_table(name, other)

    def make(self, rows: Any) -> None:
        table = self.adapter.catalog().create_table("s.orders", rows.schema)
        for _ in range(2):
            table.append(rows)

    def add_row(self) -> None:
        self.table.append(self.table.scan().to_arrow().slice(0, 1))

    def delete_rows(self) -> None:
        self.table.delete(AlwaysTrue())

    def restore(self) -> None:
        self.table.manage_snapshots().rollback_to_snapshot(self.versions()[-1]).commit()

    def add_column(self) -> None:
        with self.table.update_schema() as update:
            update.add_column("more", StringType())

    def take_column_away(self) -> None:
        with self.table.update_schema() as update:
            update.delete_column("more")


LAKES = {"delta": DeltaTables, "iceberg": IcebergTables}
OF_DELTA = pytest.mark.parametrize("lake", ["delta"], indirect=True)


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return LAKES[request.param](tmp_path / "lake")


def order(lsn: int, order_id: int | None, *prices: str) -> Document:
    key = json.dumps({"id": order_id}).encode()
    lines = [{"product": "é", "price": price} for price in prices]
    total = str(sum(map(Decimal, prices), Decimal("0.00")))
    return lsn, key, json.dumps({"id": order_id, "Total": total, "lines": lines}).encode()


def gone(lsn: int, order_id: int | None) -> Document:
    return lsn, json.dumps({"id": order_id}).encode(), None


def run(sink: LakeSink, *batches: DocumentBatch) -> None:
    sink.open()
    sink.hold({})
    for batch in batches:
        sink.write(QUERY, batch)


@pytest.fixture
def batches(make_batch: MakeBatch) -> list[DocumentBatch]:
    """Each adds two orders and changes or takes away one."""
    return [
        make_batch(
            n,
            [order(10 * n + 10, 2 * n, "1.10"), order(10 * n + 10, 2 * n + 1), gone(10 * n + 10, 2 * n - 2)],
        )
        for n in range(12)
    ]


def test_a_row_has_all_of_its_document_and_goes_with_it(lake: Lake, make_batch: MakeBatch) -> None:
    first = make_batch(0, [order(10, 1, "1.10", "2.20"), order(10, 2, "3"), order(10, None)])
    second = make_batch(1, [order(20, 1), gone(20, 2), gone(20, 9), order(20, None, "5.00")])
    run(lake.sink(), first)
    line = {"product": "é", "price": Decimal("1.10")}
    assert lake.rows()[0] == {
        "id": 1,
        "Total": Decimal("3.30"),
        "lines": [line, {**line, "price": Decimal("2.20")}],
    }
    run(lake.sink(), second)
    assert [(row["id"], row["Total"]) for row in lake.rows()] == [(1, Decimal(0)), (None, Decimal(5))]


def test_a_view_of_one_row_has_one(lake: Lake, make_batch: MakeBatch) -> None:
    output = OutputTable(name="s.orders", columns=(OutputColumn("id", "BIGINT"),), key=(), view="orders")
    sink = lake.sink(replace(lake.settings, outputs=(output,)))
    sink.open()
    for number, expected in enumerate([[7], [8], []]):
        document = b'{"id":%d}' % expected[0] if expected else None
        sink.write(QUERY, make_batch(number, [(10 * number + 10, b"{}", document)]))
        assert lake.ids() == expected


def test_a_snapshot_and_the_ledger_say_which_commit_they_show(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    run(lake.sink(), *batches[:2])
    commit = lake.head().properties
    noted = {
        name.removeprefix("slackwater."): value for name, value in commit.items() if "slackwater." in name
    }
    noted.pop("run")
    assert noted == {
        "pipeline": "p",
        "batch": "1",
        "source": "inv",
        "timeline": "1",
        "previous_lsn": "10",
        "commit_lsn": "20",
    }
    rows = [
        {name: row[name] for name in ("batch_id", "source", "timeline", "previous_lsn", "commit_lsn")}
        for row in lake.ledger()
    ]
    assert rows == [
        {"batch_id": 0, "source": "inv", "timeline": 1, "previous_lsn": 0, "commit_lsn": 10},
        {"batch_id": 1, "source": "inv", "timeline": 1, "previous_lsn": 10, "commit_lsn": 20},
    ]


def test_a_value_that_does_not_fit_is_refused_and_nothing_of_its_batch_is_visible(
    lake: Lake, make_batch: MakeBatch, batches: list[DocumentBatch]
) -> None:
    sink = lake.sink()
    sink.open()
    with pytest.raises(OutputRefusedError, match=r'key \{"id": 1\}, commit LSN 0/A'):
        sink.write(QUERY, make_batch(0, [order(10, 1, "1" * 11)]))
    assert lake.ledger() == []
    sink.write(QUERY, batches[0])
    assert lake.ids() == [0, 1]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process can grow above a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 500, 1500])
def test_a_full_disk_is_waited_for_and_nothing_is_lost(
    lake: Lake, batches: list[DocumentBatch], size: int
) -> None:
    sink = lake.sink()
    run(sink, batches[0])
    with full_disk(size), pytest.raises(UnavailableError, match="batch 1"):
        sink.write(QUERY, batches[1])
    assert [row["batch_id"] for row in lake.ledger()] == [0]
    sink.write(QUERY, batches[1])
    run(lake.sink(), batches[2])
    assert lake.ids() == [1, 3, 4, 5]


def test_a_column_that_somebody_adds_is_named_and_the_run_goes_on_when_it_is_gone(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    sink = lake.sink()
    run(sink, batches[0])
    lake.add_column()
    for _ in range(2):
        with pytest.raises(ConfigError, match="column 'more' is string instead of missing"):
            sink.write(QUERY, batches[1])
    with pytest.raises(ConfigError, match=r"s\.orders does not fit view 'orders'"):
        lake.sink().open()
    lake.take_column_away()
    run(lake.sink(), batches[1])
    assert lake.ids() == [1, 2, 3]


def test_rows_that_somebody_adds_are_refused_until_they_are_accepted_or_taken_back(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    sink = lake.sink()
    run(sink, *batches[:2])
    lake.add_row()
    with pytest.raises(StateError, match=r"another writer has changed rows of table s\.orders"):
        sink.write(QUERY, batches[2])
    with pytest.raises(StateError, match="another writer"):
        lake.sink().open()
    run(lake.sink(replace(lake.settings, accept_changed_output=True)), batches[2])
    assert len(lake.ids()) == 5
    run(lake.sink(), batches[3])
    lake.add_row()
    lake.restore()
    run(lake.sink(), batches[4])
    assert len(lake.ids()) == 7


@OF_DELTA
def test_files_that_somebody_else_writes_together_are_no_change(
    lake: DeltaTables, batches: list[DocumentBatch]
) -> None:
    sink = lake.sink()
    run(sink, *batches[:3])
    lake.optimize()
    sink.write(QUERY, batches[3])
    lake.optimize()
    run(lake.sink(), batches[4])
    assert lake.ids() == [1, 3, 5, 7, 8, 9]


@OF_DELTA
def test_rows_that_a_compaction_of_an_overtaken_run_doubles_are_taken_back(
    lake: DeltaTables, make_batch: MakeBatch
) -> None:
    sink = lake.sink()
    run(sink, *(make_batch(n, [order(10 * n + 10, n)]) for n in range(3)))
    late = lake.table
    lake.optimize()
    late.optimize.compact(commit_properties=CommitProperties({"slackwater.pipeline": "p"}))
    assert lake.ids() == [0, 0, 1, 1, 2, 2]
    sink.write(QUERY, make_batch(3, [order(40, 3)]))
    assert lake.ids() == [0, 1, 2, 3]


def test_a_table_that_was_made_anew_is_refused(lake: Lake, batches: list[DocumentBatch]) -> None:
    run(lake.sink(), *batches[:2])
    schema = lake.adapter.table("s.orders")
    schema.load()
    lake.rename("s.orders", "gone.orders")
    lake.make(schema.schema().empty_table())
    with pytest.raises(StateError, match="is not the one that its batches were written to"):
        lake.sink().open()


def test_a_table_that_is_gone_is_refused_until_that_is_accepted(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    run(lake.sink(), *batches[:2])
    lake.rename("s.orders", "gone.orders")
    with pytest.raises(StateError, match="is not the one that its batches were written to"):
        lake.sink().open()
    run(lake.sink(replace(lake.settings, accept_changed_output=True)), batches[2])
    assert lake.ids() == [4, 5]


def test_a_table_with_rows_of_somebody_else_is_refused(lake: Lake, batches: list[DocumentBatch]) -> None:
    run(lake.sink(), batches[0])
    table = lake.adapter.table("s.orders")
    rows = table.read(table.load().id)
    lake.rename("s.orders", "gone.orders")
    lake.rename("slackwater.p", "gone.p")
    lake.make(rows)
    with pytest.raises(ConfigError, match="contains rows that the pipeline has not written"):
        lake.sink().open()
    lake.delete_rows()
    run(lake.sink(), batches[0])
    assert lake.ids() == [0, 1]


def test_a_second_pipeline_into_a_table_is_refused(lake: Lake, batches: list[DocumentBatch]) -> None:
    run(lake.sink(), batches[0])
    other = replace(lake.settings, pipeline="q")
    with pytest.raises(ConfigError, match=r"'q': table s\.orders is written by pipeline 'p'"):
        lake.sink(other).open()
    run(lake.sink(), batches[1])


def test_two_names_for_one_ledger_are_refused(lake: Lake, batches: list[DocumentBatch]) -> None:
    run(lake.sink(replace(lake.settings, pipeline="a.b")), batches[0])
    with pytest.raises(ConfigError, match=r"its ledger slackwater\.a_b belongs to pipeline 'a\.b'"):
        lake.sink(replace(lake.settings, pipeline="a_b")).open()


def test_small_files_are_written_together_now_and_then(lake: Lake, make_batch: MakeBatch) -> None:
    sink, found = lake.sink(), []
    sink.open()
    for number in range(4):
        sink.write(QUERY, make_batch(number, [order(10 * number + 10, number)]))
        found.append(lake.files())
    assert found == [1, 2, 3, 1]
    assert lake.ids() == [0, 1, 2, 3]


def without_past(lake: Lake) -> LakeSinkSettings:
    return replace(lake.settings, lake=replace(lake.settings.lake, keep=timedelta(0)))


def test_what_the_ledger_names_stays_readable_and_what_it_dropped_goes(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    sink = lake.sink(without_past(lake))
    run(sink, *batches[:3])
    dropped = lake.versions()
    sink.write(QUERY, batches[3])
    assert [row["batch_id"] for row in lake.ledger()] == [3]
    assert not any(lake.can_read(version) for version in dropped)
    assert lake.stored() == lake.files()
    for batch in batches[4:]:
        sink.write(QUERY, batch)
        assert all(lake.can_read(version) for version in lake.versions())
    assert lake.ids() == [2 * n + 1 for n in range(11)] + [22, 23]


def at(batch_id: int) -> CommitPosition:
    return CommitPosition(1, 10 * batch_id + 10)


LATER = datetime(2100, 1, 1, tzinfo=UTC)


def test_what_readers_hold_stays_readable_until_they_are_done(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    sink = lake.sink(without_past(lake))
    run(sink, *batches[:2])
    held = lake.versions()[1]
    assert sink.hold({at(1): LATER}) == {}
    for batch in batches[2:9]:
        sink.write(QUERY, batch)
    assert [row["batch_id"] for row in lake.ledger()] == list(range(9)), "and the row before"
    assert lake.can_read(held)
    sink.hold({})
    for batch in batches[9:]:
        sink.write(QUERY, batch)
    assert [row["batch_id"] for row in lake.ledger()] == [11]
    assert not lake.can_read(held)


def test_of_several_states_that_are_held_the_oldest_counts(lake: Lake, batches: list[DocumentBatch]) -> None:
    sink = lake.sink(without_past(lake))
    run(sink, *batches[:3])
    sink.hold({at(2): LATER, at(1): LATER})
    sink.write(QUERY, batches[3])
    assert [row["batch_id"] for row in lake.ledger()] == [0, 1, 2, 3]


def test_a_state_that_the_ledger_does_not_have_is_refused_and_the_others_are_held(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    sink = lake.sink(without_past(lake))
    run(sink, *batches[:3])
    missing = CommitPosition(2, 20)
    assert sink.hold({missing: LATER, at(1): LATER}) == {missing: "its ledger has no batch that ends there"}
    sink.write(QUERY, batches[3])
    assert [row["batch_id"] for row in lake.ledger()] == [0, 1, 2, 3]


def test_until_it_is_known_what_readers_hold_nothing_is_dropped_also_by_the_next_run(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    for some in (batches[:4], batches[4:8]):
        sink = lake.sink(without_past(lake))
        sink.open()
        for batch in some:
            sink.write(QUERY, batch)
    assert [row["batch_id"] for row in lake.ledger()] == list(range(8))
    assert all(lake.can_read(version) for version in lake.versions())


def test_a_clock_that_goes_back_takes_no_row_and_no_state_of_a_reader(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    clock = MovedClock()
    sink = lake.sink(without_past(lake), clock=clock)
    clock.ahead = timedelta(hours=3)
    run(sink, *batches[:2])
    assert sink.hold({at(1): LATER}) == {}
    clock.ahead = timedelta(0)
    sink.write(QUERY, batches[2])
    clock.ahead = timedelta(hours=3) - timedelta(minutes=1)
    sink.write(QUERY, batches[3])
    assert [row["batch_id"] for row in lake.ledger()] == [0, 1, 2, 3]
    assert all(lake.can_read(version) for version in lake.versions())


def test_a_driver_whose_clock_is_behind_drops_no_row_that_it_has_not_replaced(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    clock = MovedClock()
    clock.ahead = timedelta(days=1)
    run(lake.sink(without_past(lake), clock=clock), batches[0])
    sink = lake.sink(without_past(lake))
    sink.open()
    sink.hold({})
    for batch in batches[1:4]:
        sink.write(QUERY, batch)
    assert [row["batch_id"] for row in lake.ledger()] == [0, 1, 2, 3]


def test_what_is_young_stays(lake: Lake, batches: list[DocumentBatch]) -> None:
    run(lake.sink(), *batches)
    assert [row["batch_id"] for row in lake.ledger()] == list(range(12))
    assert all(lake.can_read(version) for version in lake.versions())


def test_the_row_that_was_the_newest_one_stays_with_its_snapshot(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    """Somebody may be reading it, however old it is."""
    clock = MovedClock()
    sink = lake.sink(clock=clock)
    run(sink, *batches[:3])
    clock.ahead = timedelta(days=2)
    sink.write(QUERY, batches[3])
    assert [row["batch_id"] for row in lake.ledger()] == [2, 3]
    assert all(lake.can_read(version) for version in lake.versions())


def test_an_idle_table_stays_readable_however_often_others_change(
    lake: Lake, make_batch: MakeBatch, batches: list[DocumentBatch]
) -> None:
    sink = lake.sink(without_past(lake))
    run(sink, batches[0], batches[1])
    for number in range(2, 12):
        sink.write(QUERY, make_batch(number, []))
    assert [row["batch_id"] for row in lake.ledger()] == [11]
    assert lake.can_read(lake.versions()[0])
    assert lake.ids() == [1, 2, 3]


@OF_DELTA
def test_a_failure_to_remove_old_files_is_told_and_the_run_goes_on(
    lake: DeltaTables,
    batches: list[DocumentBatch],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = lake.sink(without_past(lake))
    run(sink, *batches[:3])
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "vacuum", fails)
        sink.write(QUERY, batches[3])
    assert "old snapshots could not be removed yet: no disk" in caplog.text
    sink.write(QUERY, batches[4])
    assert lake.ids() == [1, 3, 5, 7, 8, 9]


def fails(*args: object, **options: object) -> None:
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("Generic S3 error: 403 Forbidden, AccessDenied", True),
        ("s3://lake/orders: status 403 <Error><Code>SignatureDoesNotMatch</Code>", True),
        ("When reading 'lake/orders': AWS Error ACCESS_DENIED during HeadObject operation", True),
        ('"/data/forbidden zone/orders": Permission denied', True),
        ('Local path "/data/lake 401/forbidden" does not exist', False),
        ("cannot connect to https://access-denied.example/403: timed out", False),
        ("Permission denied (os error 13)", True),
        ("you don't have access! Error: Os { code: 13, kind: PermissionDenied }", True),
        ("No space left on device (os error 28)", False),
        ("error sending request: connection refused", False),
    ],
)
def test_only_missing_rights_are_not_waited_for(text: str, is_refused: bool) -> None:
    assert bool(lake_error(OSError(text)).hint) is is_refused


def test_secrets_are_left_out_of_messages() -> None:
    error = lake_error(OSError("aws_secret_access_key=abc, token: def"))
    assert "abc" not in str(error)
    assert "def" not in str(error)


def test_a_right_that_is_missing_ends_the_run_at_once_and_the_next_one_goes_on(
    lake: Lake, batches: list[DocumentBatch], without_rights: Callable[[Path], AbstractContextManager[None]]
) -> None:
    sink = lake.sink()
    run(sink, batches[0])
    with (
        without_rights(lake.folder),
        pytest.raises(OutputRefusedError, match=r"ermission denied.*give the pipeline's"),
    ):
        sink.write(QUERY, batches[1])
    assert [row["batch_id"] for row in lake.ledger()] == [0]
    sink.write(QUERY, batches[1])
    run(lake.sink(), batches[2])
    assert lake.ids() == [1, 3, 4, 5]


@pytest.fixture
def without_rights() -> Callable[[Path], AbstractContextManager[None]]:
    """Takes the right to write away from this process, and from root by changing the user meanwhile."""

    @contextmanager
    def run(folder: Path) -> Iterator[None]:
        user = os.geteuid()
        before = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
        for path in before:
            path.chmod(0o555)
        if user == 0:
            for path in folder.parents:  # those of pytest; others are open or not ours to open
                path.chmod(path.stat().st_mode | 0o055)
            os.seteuid(65534)
        try:
            yield
        finally:
            if user == 0:
                os.seteuid(user)
            for path, mode in before.items():
                path.chmod(mode)

    return run


def test_a_ledger_that_is_gone_is_no_other_run(lake: Lake, batches: list[DocumentBatch]) -> None:
    sink = lake.sink()
    run(sink, batches[0])
    lake.rename("slackwater.p", "gone.p")
    with pytest.raises(StateError, match=r"its ledger slackwater\.p is gone"):
        sink.write(QUERY, batches[1])
    lake.rename("gone.p", "slackwater.p")
    run(lake.sink(), batches[1])
    assert lake.ids() == [1, 2, 3]


def test_an_overtaken_run_says_so_also_when_the_ledger_is_gone(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    sink = lake.sink()
    run(sink, batches[0])
    lake.sink().open()
    with pytest.raises(OvertakenError):
        sink.write(QUERY, batches[1])
    lake.rename("slackwater.p", "gone.p")
    with pytest.raises(OvertakenError):
        sink.write(QUERY, batches[1])


def test_a_first_batch_that_was_lost_leaves_nothing_behind(
    lake: Lake, make_batch: MakeBatch, batches: list[DocumentBatch]
) -> None:
    def die(step: SinkStep, batch_id: int) -> None:
        if step is SinkStep.PROGRESS:
            raise InterruptedError(batch_id)

    with pytest.raises(InterruptedError):
        run(lake.sink(probe=die), batches[0])
    assert lake.ids() == [0, 1]
    run(lake.sink(), make_batch(0, [order(10, 7)]))
    assert lake.ids() == [7]


def test_the_newest_batch_is_the_last_one_though_the_clock_went_back(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    clock = MovedClock()
    clock.ahead = timedelta(days=1)
    sink = lake.sink(clock=clock)
    run(sink, batches[0])
    clock.ahead = timedelta(0)
    sink.write(QUERY, batches[1])
    progress = lake.sink().open()
    assert progress is not None
    assert progress.batch_id == 1
    assert lake.ids() == [1, 2, 3]


@OF_DELTA
def test_what_the_newest_row_names_stays_though_somebody_whose_clock_is_behind_has_replaced_its_files(
    lake: DeltaTables, make_batch: MakeBatch, batches: list[DocumentBatch]
) -> None:
    """Fails when only the oldest row's snapshot is named: files count as removed at the other's time."""
    run(lake.sink(), *(make_batch(n, [order(10 * n + 10, n)]) for n in range(2)))
    lake.table.optimize.compact()
    log = lake.folder / "s" / "orders" / "_delta_log"
    commit = max(log.glob("*.json"))
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("remove", {})["deletionTimestamp"] = 0
    commit.write_text("\n".join(map(json.dumps, actions)))
    run(lake.sink(), *(replace(make_batch(n, []), payloads={}) for n in (2, 3)))
    assert lake.can_read(lake.versions()[-1])


@OF_DELTA
def test_after_a_removal_whose_answer_was_lost_the_next_batch_waits_for_nothing(
    lake: DeltaTables, batches: list[DocumentBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sink = lake.sink(without_past(lake), waiting=Waiting(on_step=steps.append))
    run(sink, *batches[:3])

    def lost(table: DeltaTable, *args: object, **options: object) -> None:
        lake.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "cleanup_metadata", lost)
        sink.write(QUERY, batches[3])
    sink.write(QUERY, batches[4])
    assert steps == []
    assert lake.ids() == [1, 3, 5, 7, 8, 9]


def row(batch: DocumentBatch, run: str) -> LedgerRow:
    written_at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=batch.batch_id)
    return LedgerRow(progress_after("p", QUERY, batch, run), batch.header.from_lsn, {}, written_at)


def test_a_run_that_has_taken_over_the_ledger_ends_the_earlier_one(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    early, late = Ledger(lake.adapter, "p", "early"), Ledger(lake.adapter, "p", "late")
    early.take_over(LATER)
    early.add(row(batches[0], "early"))
    late.take_over(LATER)
    with pytest.raises(SnapshotConflictError):
        early.add(row(batches[1], "early"))
    with pytest.raises(SnapshotConflictError):
        early.drop_old(LATER, LATER)
    with pytest.raises(OvertakenError, match="is of run late"):
        early.refresh()
    late.add(row(batches[1], "late"))
    assert [each["batch_id"] for each in lake.ledger()] == [0, 1]


def test_a_row_whose_commit_was_not_answered_is_found(lake: Lake, batches: list[DocumentBatch]) -> None:
    ledger, other = (Ledger(lake.adapter, "p", "one run") for _ in range(2))
    ledger.take_over(LATER)
    other.refresh()
    other.add(row(batches[0], "one run"))
    ledger.refresh()
    assert ledger.newest == row(batches[0], "one run")
    assert ledger.drop_old(LATER, LATER) == [ledger.newest]


def test_rows_are_dropped_after_each_batch_without_reading_the_ledger_anew(
    lake: Lake, batches: list[DocumentBatch]
) -> None:
    """Fails when the commit of a removal counts as that of somebody else."""
    ledger = Ledger(lake.adapter, "p", "one run")
    ledger.take_over(LATER)
    for batch in batches[:3]:
        ledger.add(row(batch, "one run"))
        for _ in range(2):
            now = SystemClock().now()
            assert ledger.drop_old(now, now) == [row(batch, "one run")]
