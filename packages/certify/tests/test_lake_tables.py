"""Delta and Iceberg tables: every version is a state that has to be at one commit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, StaticTable, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.types import (
    DecimalType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from slackwater_certify import Certificate, Connections, OutputRecords, Specification
from slackwater_certify.certifier import judge, read_output, wall_clock_ms
from slackwater_certify.committed_states import evaluate_committed_states
from slackwater_certify.errors import CertifyError
from slackwater_certify.history import History
from slackwater_certify.specification import OutputKind
from slackwater_certify.view import View
from slackwater_lab.fakes.certified import SourceLog, line, order

Document = Mapping[str, Any]
State = Mapping[int, Document]
Write = Callable[[Sequence[State]], str]

LINES = pa.list_(pa.struct([("id", pa.int64()), ("price", pa.decimal128(10, 2))]))
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("total", pa.decimal128(12, 2)),
        ("placed_at", pa.timestamp("us", "UTC")),
        ("lines", LINES),
    ]
)


LINE = StructType(NestedField(5, "id", LongType()), NestedField(6, "price", DecimalType(10, 2)))
FIELDS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "total", DecimalType(12, 2)),
    NestedField(3, "placed_at", TimestamptzType()),
    NestedField(4, "lines", ListType(7, LINE, element_required=False)),
)


class FolderCatalog(NoopCatalog):
    """Keeps one table's metadata files in its folder, as an engine without a catalogue would."""

    def create(self, location: str, fields: Schema = FIELDS) -> Table:
        metadata = new_table_metadata(fields, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location, {})
        return Table(("lake", "orders"), metadata, self._write(metadata), PyArrowFileIO(), self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        metadata = update_table_metadata(table.metadata, updates, False, table.metadata_location)
        return CommitTableResponse(metadata=metadata, **{"metadata-location": self._write(metadata)})

    def _write(self, metadata: TableMetadata) -> str:
        number = len(metadata.metadata_log) + len(metadata.snapshots)
        file = f"{metadata.location}/metadata/{number:05}-{metadata.last_updated_ms}.metadata.json"
        ToOutputFile.table_metadata(metadata, PyArrowFileIO().new_output(file), overwrite=True)
        return file


def table_of(state: State) -> pa.Table:
    rows = [
        {
            "id": each["id"],
            "total": Decimal(each["total"]),
            "placed_at": datetime.fromisoformat(each["placed_at"]),
            "lines": [{"id": x["id"], "price": Decimal(x["price"])} for x in each["lines"]],
        }
        for each in state.values()
    ]
    return pa.Table.from_pylist(rows, schema=COLUMNS)


@pytest.fixture(params=[OutputKind.DELTA, OutputKind.ICEBERG])
def kind(request: pytest.FixtureRequest) -> OutputKind:
    return OutputKind(request.param)


@pytest.fixture
def write(kind: OutputKind, tmp_path: Path) -> Write:
    """Writes states, each as a version of one table; returns its location."""

    def delta(states: Sequence[State]) -> str:
        for state in states:
            write_deltalake(str(tmp_path / "delta"), table_of(state), mode="overwrite")
        return str(tmp_path / "delta")

    def iceberg(states: Sequence[State]) -> str:
        table = FolderCatalog("test").create(f"file://{tmp_path}/iceberg")
        table.append(table_of(states[0]))
        for state in states[1:]:
            table.overwrite(table_of(state))
        return str(table.location())

    return delta if kind is OutputKind.DELTA else iceberg


@pytest.fixture
def log() -> SourceLog:
    log = SourceLog()
    log.snapshot([("orders", order(1, "1.50")), ("lines", line(11, 1, "1.50"))])
    log.commit(("orders", 2, order(2, "3.00")), ("lines", 21, line(21, 2, "3.00")))
    log.commit(
        ("lines", 21, line(21, 1, "3.00")), ("orders", 1, order(1, "4.50")), ("orders", 2, order(2, "0.00"))
    )
    log.commit(("orders", 2, None))
    return log


def certificate_of(
    location: str,
    kind: OutputKind,
    log: SourceLog,
    specification: Specification,
    view: View,
    ledger: str | None = None,
) -> Certificate:
    output = replace(specification.output, kind=kind, name=location, ledger=ledger, table="lake.orders")
    specification = replace(specification, output=output)
    history = History(view.tables)
    for record in log.records:
        is_transaction = record.topic.endswith(".transaction")
        (history.add_transaction_record if is_transaction else history.add_row)(record.value)
    records: OutputRecords = read_output(output, view.reader, Connections(), wall_clock_ms)
    with evaluate_committed_states(history, specification, view, lambda _: None) as committed:
        return judge(specification, view, records, committed)


def test_versions_at_single_commits_are_clean(
    write: Write, kind: OutputKind, log: SourceLog, specification: Specification, view: View
) -> None:
    certificate = certificate_of(write(log.states), kind, log, specification, view)
    assert certificate.examples == {}
    assert certificate.snapshots >= len(log.states)
    assert certificate.is_clean


def test_a_version_between_two_commits_is_inconsistent_though_each_document_is_right(
    write: Write, kind: OutputKind, log: SourceLog, specification: Specification, view: View
) -> None:
    half = {1: log.states[1][1], 2: log.states[2][2]}
    certificate = certificate_of(
        write([log.states[1], half, *log.states[2:]]), kind, log, specification, view
    )
    assert certificate.torn == 0
    assert certificate.inconsistent_states == 1


def test_versions_that_go_back_are_order_violations(
    write: Write, kind: OutputKind, log: SourceLog, specification: Specification, view: View
) -> None:
    certificate = certificate_of(
        write([log.states[2], log.states[1], log.states[3]]), kind, log, specification, view
    )
    assert certificate.inconsistent_states == 0
    assert certificate.order_violations > 0


def test_a_table_that_is_not_there_is_named(
    kind: OutputKind, specification: Specification, view: View
) -> None:
    output = replace(specification.output, kind=kind, name="/nowhere/at/all")
    with pytest.raises(CertifyError, match="/nowhere/at/all"):
        read_output(output, view.reader, Connections(), wall_clock_ms)


LedgerRow = tuple[int, int, int]
"""Previous commit LSN, commit LSN, snapshot."""


LEDGER_FIELDS = Schema(
    NestedField(1, "timeline", LongType()),
    NestedField(2, "previous_lsn", LongType()),
    NestedField(3, "commit_lsn", LongType()),
    NestedField(4, "written_at", TimestamptzType()),
    NestedField(5, "snapshots", MapType(6, StringType(), 7, LongType(), value_required=False)),
)


def write_ledger(kind: OutputKind, location: str, rows: Sequence[LedgerRow]) -> str:
    """A ledger beside a table."""
    schema = pa.schema(
        [
            ("timeline", pa.int64()),
            ("previous_lsn", pa.int64()),
            ("commit_lsn", pa.int64()),
            ("written_at", pa.timestamp("us", "UTC")),
            ("snapshots", pa.map_(pa.string(), pa.int64())),
        ]
    )
    found = [
        {
            "timeline": 1,
            "previous_lsn": previous,
            "commit_lsn": lsn,
            "written_at": datetime.fromtimestamp(lsn, UTC),
            "snapshots": [("lake.orders", snapshot)],
        }
        for previous, lsn, snapshot in rows
    ]
    content = pa.Table.from_pylist(found, schema=schema)
    if kind is OutputKind.DELTA:
        write_deltalake(f"{location}-ledger", content)
    else:
        FolderCatalog("test").create(f"{location}-ledger", LEDGER_FIELDS).append(content)
    return f"{location}-ledger"


def snapshots_of(kind: OutputKind, location: str) -> list[int]:
    """Those that readers could see, ascending."""
    if kind is OutputKind.DELTA:
        return sorted(int(commit["version"]) for commit in DeltaTable(location).history())
    folder = Path(location.removeprefix("file://")) / "metadata"
    files = sorted(folder.glob("*.metadata.json"), key=lambda file: file.stat().st_mtime_ns)
    found = [StaticTable.from_metadata(str(file)).metadata.current_snapshot_id for file in files]
    return [snapshot for snapshot in found if snapshot is not None]


def test_snapshots_that_a_ledger_names_are_judged_at_its_commits(
    write: Write, kind: OutputKind, log: SourceLog, specification: Specification, view: View
) -> None:
    """A snapshot in between, which the ledger does not name, is nobody's business."""
    lost = {**log.states[1], 1: log.states[2][1]}
    location = write([log.states[1], lost, log.states[2], log.states[3]])
    first, _, *others = snapshots_of(kind, location)
    lsns = [lsn for lsn, _ in log.commits]
    ledger = write_ledger(kind, location, list(zip([0, *lsns], lsns, [first, *others], strict=False)))
    assert certificate_of(location, kind, log, specification, view, ledger).is_clean
    assert not certificate_of(location, kind, log, specification, view).is_clean


def test_a_ledger_that_names_a_wrong_snapshot_or_leaves_a_commit_out_is_found(
    write: Write, kind: OutputKind, log: SourceLog, specification: Specification, view: View
) -> None:
    location = write(log.states[1:])
    one, two, three = snapshots_of(kind, location)
    a, b, c = (lsn for lsn, _ in log.commits)
    late = write_ledger(kind, location, [(0, a, one), (a, b, one), (b, c, three)])
    assert certificate_of(location, kind, log, specification, view, late).lost > 0
    early = write_ledger(kind, f"{location}-early", [(0, a, two), (a, b, two), (b, c, three)])
    assert certificate_of(location, kind, log, specification, view, early).wrong_lsn > 0
    hole = write_ledger(kind, f"{location}-hole", [(0, a, one), (b, c, three)])
    assert certificate_of(location, kind, log, specification, view, hole).order_violations > 0
