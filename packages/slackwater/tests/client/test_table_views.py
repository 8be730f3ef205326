"""Views as of one commit, from tables that sinks have written: in a real PostgreSQL, in lakes."""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import cast

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from slackwater.client import (
    NotVisibleError,
    PipelineOutput,
    ReadLevel,
    StateNotKeptError,
    ViewSnapshot,
    lake_views,
    read_views,
    wait_visible,
)
from slackwater.client.lake_views import LakeOutput
from slackwater.client.table_views import TableOutput
from slackwater.dev import PostgresServer
from slackwater.engine.payloads import Document, DocumentBatch, pack_items
from slackwater.outputs.contract import Emit, OutputTable, SinkStep
from slackwater.outputs.lake.delta import DeltaLake
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings
from slackwater.outputs.postgres.sink import PostgresSink
from slackwater.outputs.postgres.tables import PostgresSinkSettings
from slackwater.outputs.sink import Sink
from slackwater.protocol import (
    BatchHeader,
    CommitPosition,
    ConfigError,
    LakeSettings,
    PostgresSettings,
    StateError,
    UnavailableError,
)
from slackwater.sql.plan import OutputColumn
from slackwater_lab.probes import CrashAt, CrashError

pytestmark = pytest.mark.integration


class Pipeline:
    """Publishes two views; batch `n` has the commit `10 (n + 1)`.

    Args:
        kind: Of its outputs.
        server: For those of kind ``history`` and ``newest``.
        folder: For lakes.
    """

    def __init__(self, kind: str, server: PostgresServer, folder: Path) -> None:
        self.kind, self.name, self._batch_id = kind, f"p{uuid.uuid4().hex[:10]}", 0
        self.folder, self.url = folder, server.dsn()
        self.views = {view: f"{self.name}.{view}" if self.is_lake else view for view in ("one", "two")}
        self.sink: Sink = self._lake_sink() if self.is_lake else self._table_sink()
        self.sink.open()

    @property
    def is_lake(self) -> bool:
        return self.kind in ("delta", "iceberg")

    @property
    def lake(self) -> LakeSettings:
        if self.kind == "delta":
            return LakeSettings(place=str(self.folder))
        uri, warehouse = f"sqlite:///{self.folder / 'catalogue.db'}", f"file://{self.folder}"
        return LakeSettings(place="test", options={"type": "sql", "uri": uri, "warehouse": warehouse})

    def open_output(self, name: str | None = None) -> PipelineOutput:
        if not self.is_lake:
            return TableOutput(self.url, name or self.name)
        tables = (DeltaLake if self.kind == "delta" else IcebergLake)(self.lake)
        return LakeOutput(tables, name or self.name)

    def _table_sink(self) -> PostgresSink:
        columns = (OutputColumn("id", "BIGINT"), OutputColumn("value", "BIGINT"))
        history = self.kind == "history"
        outputs = tuple(
            OutputTable(name=f"{self.name}.{view}", columns=columns, key=("id",), view=view, history=history)
            for view in self.views
        )
        postgres = PostgresSettings(self.url)
        return PostgresSink(
            PostgresSinkSettings(
                pipeline=self.name, outputs=outputs, emit=Emit.TRANSACTIONS, postgres=postgres
            )
        )

    def _lake_sink(self) -> LakeSink:
        columns = (OutputColumn("id", "BIGINT"), OutputColumn("value", "BIGINT"))
        outputs = tuple(
            OutputTable(name=table, columns=columns, key=("id",), view=view)
            for view, table in self.views.items()
        )
        settings = LakeSinkSettings(
            pipeline=self.name, outputs=outputs, emit=Emit.TRANSACTIONS, lake=self.lake
        )
        return LakeSink(settings, (DeltaLake if self.kind == "delta" else IcebergLake)(self.lake))

    def publish(self, *views: dict[int, int | None]) -> None:
        lsn = 10 * (self._batch_id + 1)
        header = BatchHeader(
            source="inv",
            timeline=1,
            from_lsn=lsn - 10,
            to_lsn=lsn,
            commit_ts_ms=lsn,
            event_count=1,
            transactions=((lsn, lsn, lsn),),
        )
        payloads = {
            number: tuple(pack_items(document(lsn, key, value) for key, value in rows.items()))
            for number, rows in enumerate(views)
        }
        self.sink.write("q", DocumentBatch(self._batch_id, header, payloads, f"state {self._batch_id}"))
        self._batch_id += 1


def document(lsn: int, key: int, value: int | None) -> Document:
    body = None if value is None else json.dumps({"id": key, "value": value}).encode()
    return lsn, json.dumps({"id": key}).encode(), body


def rows(snapshot: ViewSnapshot) -> dict[str, dict[int, int]]:
    found = {view: [json.loads(each) for each in held] for view, held in snapshot.documents.items()}
    return {
        view.rpartition(".")[2]: {each["id"]: each["value"] for each in held} for view, held in found.items()
    }


def at(lsn: int) -> CommitPosition:
    return CommitPosition(1, lsn)


@pytest.fixture(params=["history", "newest", "delta", "iceberg"])
def pipeline(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, tmp_path: Path
) -> Iterator[Pipeline]:
    made = Pipeline(request.param, postgres_server, tmp_path)
    yield made
    made.sink.close()


@pytest.fixture
def output(pipeline: Pipeline) -> Iterator[PipelineOutput]:
    pipeline.publish({1: 1, 2: 2}, {1: 10})
    pipeline.publish({1: 3, 2: None}, {1: 30})
    made = pipeline.open_output()
    yield made
    made.close()


def test_the_newest_commit_is_read(pipeline: Pipeline, output: PipelineOutput) -> None:
    snapshot = read_views([output])
    assert (snapshot.source, snapshot.position) == ("inv", at(20))
    assert rows(snapshot) == {"one": {1: 3}, "two": {1: 30}}
    one, two = pipeline.views.values()
    assert rows(read_views([output], [one], key={"id": 7})) == {"one": {}}
    assert rows(read_views([output], [two], key={"id": 1})) == {"two": {1: 30}}


def test_earlier_commits_are_read_from_what_is_kept(pipeline: Pipeline, output: PipelineOutput) -> None:
    if pipeline.kind == "newest":
        with pytest.raises(StateNotKeptError, match="keeps only the newest state"):
            read_views([output], at=at(10))
        return
    assert rows(read_views([output], at=at(10))) == {"one": {1: 1, 2: 2}, "two": {1: 10}}
    if pipeline.is_lake:
        with pytest.raises(StateNotKeptError, match=r"keeps no batch that ends at 1/0/F.* 1/0/A, 1/0/14"):
            read_views([output], at=at(15))
    else:
        assert rows(read_views([output], at=at(15))) == {"one": {1: 1, 2: 2}, "two": {1: 10}}
    with pytest.raises(StateNotKeptError, match=r"begin after commit|the nearest batches end at 1/0/A"):
        read_views([output], at=at(5))


def test_a_pipeline_says_at_which_commits_it_can_be_read(pipeline: Pipeline, output: PipelineOutput) -> None:
    states = output.states(output.views())
    assert states is not None
    below = [states.at_or_below(at(lsn)) for lsn in (9, 10, 15, 20, 25)]
    assert below == {
        "newest": [None, None, None, at(20), at(20)],
        "history": [None, at(10), at(15), at(20), at(20)],
    }.get(pipeline.kind, [None, at(10), at(10), at(20), at(20)])
    assert states.published_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("kind", ["history", "delta"])
def test_a_view_that_was_empty_at_a_commit_is_read_there_again(
    kind: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    pipeline = Pipeline(kind, postgres_server, tmp_path)
    pipeline.publish({1: 1}, {})
    pipeline.publish({1: 2}, {})
    with closing(pipeline.sink), closing(pipeline.open_output()) as output:
        for _ in range(2):
            for lsn in (10, 20):
                assert rows(read_views([output], at=at(lsn)))["two"] == {}
                states = output.states([pipeline.views["two"]])
                assert states is not None
                assert states.at_or_below(at(lsn)) == at(lsn)
                assert states.at_or_below(at(9)) is None
            pipeline.publish({1: 3}, {5: 5})
        with pytest.raises(StateNotKeptError):
            read_views([output], at=at(9))


def test_a_history_that_an_earlier_version_has_begun_is_read_from_its_first_row_on(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """So are tables that were accepted: since when they have everything is not known."""
    pipeline = Pipeline("history", postgres_server, tmp_path)
    pipeline.publish({1: 1}, {})
    pipeline.sink.close()
    settings = cast("PostgresSink", pipeline.sink)._settings  # noqa: SLF001
    pipeline.sink = PostgresSink(replace(settings, accept_changed_output=True))
    pipeline.sink.open()
    pipeline.publish({1: 2}, {5: 5})
    pipeline.publish({1: 3}, {5: 6})
    with closing(pipeline.sink), closing(pipeline.open_output()) as output:
        assert rows(read_views([output], ["two"], at=at(20)))["two"] == {5: 5}
        assert rows(read_views([output], ["one"], at=at(10)))["one"] == {1: 1}
        with pytest.raises(StateNotKeptError, match="begin after commit"):
            read_views([output], ["two"], at=at(10))


def test_a_lake_is_read_where_a_table_without_a_history_stands(
    pipeline: Pipeline, output: PipelineOutput, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    if not pipeline.is_lake:
        return
    behind = Pipeline("newest", postgres_server, tmp_path / "other")
    behind.publish({1: 1, 2: 2}, {})
    with closing(behind.sink), closing(behind.open_output()) as other:
        found = read_views([output, other], timeout=timedelta(0))

    assert (found.position, found.is_consistent) == (at(10), True)
    one = pipeline.views["one"]
    assert rows(replace(found, documents={one: found.documents[one]})) == {"one": {1: 1, 2: 2}}


def test_what_was_published_since_is_seen_by_the_next_question(
    pipeline: Pipeline, output: PipelineOutput
) -> None:
    with pytest.raises(NotVisibleError, match="newest visible commit is 1/0/14, but commit 1/0/1E"):
        read_views([output], at=at(30))
    with pytest.raises(NotVisibleError):
        wait_visible([output], at(30), timeout=timedelta(0))
    pipeline.publish({9: 9}, {})
    assert wait_visible([output], at(30), timeout=timedelta(seconds=60)) == at(30)
    assert rows(read_views([output], at=at(30)))["one"] == {1: 3, 9: 9}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_that_are_ahead_of_the_ledger_are_read_as_it_says(
    kind: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    pipeline = Pipeline(kind, postgres_server, tmp_path)
    output = pipeline.open_output()
    assert output.newest() is None
    assert list(output.views()) == []
    pipeline.publish({1: 1}, {1: 10})
    pipeline.sink.close()
    dying = LakeSink(
        cast("LakeSink", pipeline.sink)._settings,  # noqa: SLF001
        (DeltaLake if kind == "delta" else IcebergLake)(pipeline.lake),
        probe=CrashAt(SinkStep.PROGRESS, 1),
    )
    dying.open()
    pipeline.sink = dying
    with pytest.raises(CrashError):
        pipeline.publish({1: 2}, {1: 20})
    dying.close()
    assert rows(read_views([output])) == {"one": {1: 1}, "two": {1: 10}}
    output.close()


def test_values_are_json_as_they_stand_in_rows(postgres_server: PostgresServer, tmp_path: Path) -> None:
    table = pa.table(
        {
            "amount": pa.array([Decimal("3.50")], pa.decimal128(10, 2)),
            "total": pa.array([Decimal(17)], pa.decimal128(38, 0)),
            "at": pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "raw": [b"\x00"],
            "ratio": [float("nan")],
            "lines": [[{"name": "a", "price": Decimal("1.5")}]],
            "tags": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())),
            "none": pa.array([None], pa.string()),
        }
    )
    place = tmp_path / "s" / "t"
    write_deltalake(str(place), table.drop_columns(["ratio"]))
    read = DeltaLake(LakeSettings(place=str(tmp_path))).table("s.t").read(None)
    found = [json.loads(each) for each in lake_views._documents(read, {})]  # noqa: SLF001
    assert found == [
        {
            "amount": "3.50",
            "total": 17,
            "at": "2026-01-02T00:00:00.000000Z",
            "raw": "AA==",
            "lines": [{"name": "a", "price": "1.5"}],
            "tags": {"x": 1},
            "none": None,
        }
    ]
    assert [json.loads(each)["ratio"] for each in lake_views._documents(table, {})] == ["NaN"]  # noqa: SLF001


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE slackwater.ledger SET commit_lsn = commit_lsn + 10 WHERE pipeline = '{0}'",
        "UPDATE slackwater.ledger SET timeline = 2 WHERE pipeline = '{0}'",
        "UPDATE slackwater.ledger SET source = 'other' WHERE pipeline = '{0}'",
        "UPDATE slackwater.ledger SET progress = replace(progress, '{0}', 'p') WHERE pipeline = '{0}'",
        "UPDATE slackwater.ledger SET progress = '{{}}' WHERE pipeline = '{0}'",
        "UPDATE slackwater.ledger_tables SET name = 'pg_catalog.pg_authid' WHERE name = '{0}.one'",
        "UPDATE slackwater.ledger_tables SET name = 'pg_catalog.pg_authid', oid = 'pg_authid'::regclass "
        "WHERE name = '{0}.one'",
        "UPDATE slackwater.ledger_tables SET view = 'one' WHERE name = '{0}.two'",
        "CREATE TABLE {0}.three AS TABLE {0}.one; DROP TABLE {0}.one; ALTER TABLE {0}.three RENAME TO one",
    ],
)
def test_a_ledger_that_contradicts_itself_is_refused(
    postgres_server: PostgresServer, tmp_path: Path, statement: str
) -> None:
    pipeline = Pipeline("newest", postgres_server, tmp_path)
    pipeline.publish({1: 1}, {1: 10})
    pipeline.sink.close()
    with psycopg.connect(postgres_server.dsn()) as database:
        database.execute(statement.format(pipeline.name).encode())
    try:
        with closing(pipeline.open_output()) as output, pytest.raises(StateError):
            read_views([output], level=ReadLevel.UNCOMMITTED)
    finally:
        with psycopg.connect(postgres_server.dsn()) as database:
            database.execute("DELETE FROM slackwater.ledger WHERE pipeline = %s", (pipeline.name,))
            database.execute("DELETE FROM slackwater.ledger_tables WHERE pipeline = %s", (pipeline.name,))


def test_a_pipeline_that_is_not_there_is_named(pipeline: Pipeline) -> None:
    other = pipeline.open_output("nobody")
    with pytest.raises(ConfigError, match="no pipeline 'nobody'"):
        read_views([other])
    other.close()


def test_a_server_that_is_not_there_is_said() -> None:
    with pytest.raises(UnavailableError, match="PostgreSQL failed or did not answer"):
        TableOutput("postgresql://nobody@127.0.0.1:1/none", "p")
    options = {"type": "sql", "uri": "postgresql+psycopg://nobody@127.0.0.1:1/none"}
    with pytest.raises(UnavailableError, match="the lake cannot be accessed"):
        LakeOutput(IcebergLake(LakeSettings(place="test", options=options)), "p").newest()
