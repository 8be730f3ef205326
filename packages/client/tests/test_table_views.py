"""Views as of one commit, from tables that the PostgreSQL sink has written. Real servers."""

import json
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest

from slackwater_client import (
    ClientConfigError,
    ClientUnavailableError,
    NotVisibleError,
    StateNotKeptError,
    ViewSnapshot,
    read_views,
    wait_visible,
)
from slackwater_client.table_views import TableOutput
from slackwater_devstack import PostgresServer
from slackwater_engine.documents import DocumentBatch
from slackwater_engine.payloads import Document, document_payloads
from slackwater_protocol import BatchHeader, CommitPosition, PostgresSettings
from slackwater_spark.sink import Emit
from slackwater_spark.sink.postgres import OutputTable, PostgresSink, PostgresSinkSettings, TableColumn

pytestmark = pytest.mark.integration


class Pipeline:
    """Publishes two views; batch `n` has the commit `10 (n + 1)`."""

    def __init__(self, server: PostgresServer, *, history: bool) -> None:
        self.url, self.name = server.dsn(), f"p{uuid.uuid4().hex[:10]}"
        columns = (TableColumn("id", "bigint"), TableColumn("value", "bigint"))
        outputs = tuple(
            OutputTable(schema=self.name, name=view, columns=columns, key=("id",), view=view, history=history)
            for view in ("one", "two")
        )
        settings = PostgresSinkSettings(
            pipeline=self.name, outputs=outputs, emit=Emit.TRANSACTIONS, postgres=PostgresSettings(self.url)
        )
        self.sink = PostgresSink(settings)
        self.sink.open()
        self._batch_id = 0

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
            number: tuple(document_payloads(document(lsn, key, value) for key, value in rows.items()))
            for number, rows in enumerate(views)
        }
        self.sink.write("q", DocumentBatch(self._batch_id, header, payloads, f"state {self._batch_id}"))
        self._batch_id += 1


def document(lsn: int, key: int, value: int | None) -> Document:
    body = None if value is None else json.dumps({"id": key, "value": value}).encode()
    return lsn, json.dumps({"id": key}).encode(), body


def rows(snapshot: ViewSnapshot) -> dict[str, dict[int, int]]:
    found = {view: [json.loads(each) for each in held] for view, held in snapshot.documents.items()}
    return {view: {each["id"]: each["value"] for each in held} for view, held in found.items()}


def at(lsn: int) -> CommitPosition:
    return CommitPosition(1, lsn)


@pytest.fixture(params=[True, False], ids=["history", "newest"])
def pipeline(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[Pipeline]:
    made = Pipeline(postgres_server, history=request.param)
    made.publish({1: 1, 2: 2}, {1: 10})
    made.publish({1: 3, 2: None}, {1: 30})
    yield made
    made.sink.close()


@pytest.fixture
def output(pipeline: Pipeline) -> Iterator[TableOutput]:
    made = TableOutput(pipeline.url, pipeline.name)
    yield made
    made.close()


def test_the_newest_commit_is_read(output: TableOutput) -> None:
    snapshot = read_views([output])
    assert (snapshot.source, snapshot.position) == ("inv", at(20))
    assert rows(snapshot) == {"one": {1: 3}, "two": {1: 30}}
    assert rows(read_views([output], ["one"], key={"id": 7})) == {"one": {}}
    assert rows(read_views([output], ["two"], key={"id": 1})) == {"two": {1: 30}}


def test_earlier_commits_are_read_from_versions(pipeline: Pipeline, output: TableOutput) -> None:
    has_history = pipeline.sink._settings.outputs[0].history  # noqa: SLF001
    if not has_history:
        with pytest.raises(StateNotKeptError, match="keeps the newest state only"):
            read_views([output], at=at(10))
        return
    for lsn in (10, 15):
        assert rows(read_views([output], at=at(lsn))) == {"one": {1: 1, 2: 2}, "two": {1: 10}}
    with pytest.raises(StateNotKeptError, match="begin after commit"):
        read_views([output], at=at(5))


def test_what_was_published_since_is_seen_by_the_next_question(
    pipeline: Pipeline, output: TableOutput
) -> None:
    with pytest.raises(NotVisibleError, match="newest visible commit is 1/0/14 and commit 1/0/1E"):
        read_views([output], at=at(30))
    with pytest.raises(NotVisibleError):
        wait_visible([output], at(30), timeout=timedelta(0))
    pipeline.publish({9: 9}, {})
    assert wait_visible([output], at(30), timeout=timedelta(seconds=60)) == at(30)
    assert rows(read_views([output], at=at(30)))["one"] == {1: 3, 9: 9}


def test_a_pipeline_and_a_server_that_are_not_there_are_named(pipeline: Pipeline) -> None:
    other = TableOutput(pipeline.url, "nobody")
    with pytest.raises(ClientConfigError, match="no pipeline 'nobody'"):
        read_views([other])
    other.close()
    with pytest.raises(ClientUnavailableError, match="PostgreSQL refuses or does not answer"):
        TableOutput("postgresql://nobody@127.0.0.1:1/none", pipeline.name)
