"""Iceberg tables whose catalogue is in a real PostgreSQL: commits of two runs at once."""

import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from slackwater.dev import PostgresServer
from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import OutputTable, SinkStep
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings
from slackwater.protocol import LakeSettings, OvertakenError
from slackwater.sql.plan import OutputColumn

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(postgres_server: PostgresServer, tmp_path: Path) -> LakeSinkSettings:
    address = urlsplit(postgres_server.dsn())._replace(scheme="postgresql+psycopg").geturl()
    options = {"type": "sql", "uri": address, "warehouse": f"file://{tmp_path}"}
    lake = LakeSettings(place=f"c{uuid.uuid4().hex[:8]}", options=options)
    output = OutputTable(name="s.t", columns=(OutputColumn("id", "BIGINT"),), key=("id",), view="t")
    return LakeSinkSettings(pipeline="p", outputs=(output,), lake=lake)


def test_of_two_runs_that_commit_at_one_moment_the_newer_one_does(
    settings: LakeSinkSettings, make_batch: Callable[..., DocumentBatch]
) -> None:
    batch = make_batch(0, [(10, b'{"id":1}', b'{"id":1}')])
    has_come, may_go = threading.Event(), threading.Event()

    def wait(step: SinkStep, batch_id: int) -> None:
        if step is SinkStep.PROGRESS:
            has_come.set()
            may_go.wait(60)

    older = LakeSink(settings, IcebergLake(settings.lake), probe=wait)
    older.open()
    errors: list[Exception] = []

    def write() -> None:
        try:
            older.write("query", batch)
        except OvertakenError as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    assert has_come.wait(60)
    newer = LakeSink(settings, IcebergLake(settings.lake))
    assert newer.open() is None
    may_go.set()
    newer.write("query", batch)
    thread.join(60)
    assert len(errors) == 1
    reader = IcebergLake(settings.lake)
    last = LakeSink(settings, reader)
    found = last.open()
    assert found is not None
    assert found.batch_id == 0
    table = reader.table("s.t")
    head = table.load()
    assert head is not None
    assert table.read(head.id)["id"].to_pylist() == [1]
    for sink in (older, newer, last):
        sink.close()
