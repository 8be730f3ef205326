"""What no record tells, behind a real connector: another replica identity, and a placeholder of one's own."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import TopicPartition

from slackwater.cli import main
from slackwater.dev import DevStack
from slackwater.engine.packer import packing_spec
from slackwater.engine.table_packer import TablePacker
from slackwater.protocol import InputError, parse_position
from slackwater.sql.catalog import Catalog, Table, TypeKind
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.column_types import PREPARATION, SAMPLES, SCHEMA, TYPES
from slackwater_lab.errors import ProgramEndedError
from slackwater_lab.programs import Product, slackwater_command
from slackwater_lab.topics import open_consumer

if TYPE_CHECKING:
    from slackwater_lab.servers.pytest_plugin import DevStackFactory

pytestmark = pytest.mark.system

LAST = 9999
OVERRIDES = {"unavailable.value.placeholder": "gone", "heartbeat.interval.ms": "0"}
"""Records are the only sign of this connector: it writes no heartbeats."""
LATE = f"{SCHEMA}.late"
"""A table without records until a test writes some."""
SECONDS = 300.0
KEYS = {
    **{sample.type: sample.values[0] for sample in SAMPLES},
    "bigserial": "1",
    "bigint DEFAULT 7": "1",
    "text DEFAULT 'x'": "'a'",
    "date DEFAULT '2020-01-01'": "'2021-01-01'",
    "timestamptz DEFAULT now()": "'2021-01-01'",
    "uuid DEFAULT gen_random_uuid()": "'550e8400-e29b-41d4-a716-446655440000'",
}
"""A value of each type that a primary key may have, by the declaration."""


@pytest.fixture(scope="module")
def stack(dev_stack: "DevStackFactory") -> DevStack:
    return dev_stack(partitions=1, kafka_heap="512m", connector_overrides=OVERRIDES)


@pytest.fixture(scope="module")
def records(stack: DevStack) -> Mapping[str, list[dict[str, Any]]]:
    """The records of each table, by its name."""
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as database:
        database.execute(PREPARATION.encode())
        tables = {name: KEYS[type_] for name, type_ in _make_tables(database)}
        doc = f"{SCHEMA}.doc"
        database.execute(f"CREATE TABLE {doc} (key int PRIMARY KEY, other int NOT NULL, note text)".encode())
        database.execute(f"ALTER TABLE {doc} ALTER note SET STORAGE EXTERNAL".encode())
        database.execute(f"CREATE TABLE {LATE} (key int PRIMARY KEY, note text)".encode())
        stack.start_connector([doc, LATE, *tables])
        stack.wait_until_streaming()
        for statement in _changes(doc, tables):
            database.execute(statement.encode())
    return _read(stack, [doc, *tables])


def _make_tables(database: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """Makes a table for each supported type with an order, whose replica identity is not its primary key.

    A primary key of another type may stop the connector, an array whose elements it cannot read for example.
    """
    for number, declared in enumerate(KEYS):
        name = f"{SCHEMA}.k{number}"
        columns = f"key {declared}, other int NOT NULL CONSTRAINT o{number} UNIQUE, PRIMARY KEY (key)"
        if declared in {"xml[]", "json[]"}:  # PostgreSQL allows the key, but no row with one
            continue
        if not all(column.type.is_supported for column in _declared(name, declared).columns):
            continue
        try:
            database.execute(f"CREATE TABLE {name} ({columns})".encode())
        except psycopg.errors.UndefinedObject:
            continue
        database.execute(f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX o{number}".encode())
        yield name, declared


def _changes(doc: str, tables: Mapping[str, str]) -> Iterator[str]:
    yield f"INSERT INTO {doc} VALUES (1, 10, repeat('x', 6000))"  # noqa: S608 - our own
    yield f"UPDATE {doc} SET other = {LAST}"  # noqa: S608 - our own
    for name, value in tables.items():
        yield f"INSERT INTO {name} VALUES ({value}, 10)"  # noqa: S608 - our own
        yield f"UPDATE {name} SET other = 11"  # noqa: S608 - our own
        yield f"DELETE FROM {name}"  # noqa: S608 - our own
        yield f"INSERT INTO {name} VALUES ({value}, {LAST})"  # noqa: S608 - our own


def _read(stack: DevStack, names: Collection[str]) -> Mapping[str, list[dict[str, Any]]]:
    """Returns the records of each table up to its last row."""
    prefix, unfinished = f"{stack.settings.prefix}.", set(names)
    found = defaultdict[str, list[dict[str, Any]]](list)
    with closing(open_consumer(stack.kafka.bootstrap)) as consumer:
        consumer.assign([TopicPartition(prefix + name, 0, 0) for name in names])
        while unfinished:
            if not (messages := consumer.consume(500, 1.0)):
                stack.wait_until_streaming()  # fails if the connector has stopped
            for message in messages:
                if message.error() is None and (value := message.value()) is not None:
                    name, record = str(message.topic()).removeprefix(prefix), json.loads(value)
                    found[name].append(record)
                    if (record["after"] or {}).get("other") == LAST:
                        unfinished.discard(name)
    return found


def test_no_row_is_deleted_whose_key_the_database_has_not_told(
    records: Mapping[str, list[dict[str, Any]]],
) -> None:
    refused, types = [], list(KEYS)
    for name in records.keys() - {f"{SCHEMA}.doc"}:
        declared = types[int(name.removeprefix(f"{SCHEMA}.k"))]
        table = _declared(name, declared)
        if declared == "jsonb[]":  # the planner refuses it as a record key
            continue
        packer, deletes = _packer(table), [each for each in records[name] if each["op"] == "d"]
        assert len(deletes) == 2, "the second statement is a delete and an insert"
        for each in deletes:
            before = json.dumps(each["before"]).encode()
            with pytest.raises(InputError, match="but column other: its REPLICA IDENTITY is another index"):
                packer.add("d", 100, before, None)
        refused.append(declared)
    assert len(refused) > 30
    assert {"bigint", "text", "uuid", "bigint DEFAULT 7", "bytea"} <= set(refused)


def _declared(name: str, declared: str) -> Table:
    columns = f"key {declared} PRIMARY KEY, other int NOT NULL"
    (table,) = parse_catalog({"": f"{TYPES} CREATE TABLE {name} ({columns});"}).tables
    return table


def _packer(table: Table) -> TablePacker:
    key = "to_base64(key) AS key" if table.columns[0].type.kind is TypeKind.BYTEA else "key"
    view = f"SELECT TRANSACTIONALLY {key}, other FROM {table.full_name}"  # noqa: S608 - our own
    plan = compile_pipeline([("v.sql", view)], Catalog((table,)))
    return TablePacker([(*packing_spec(plan, 1).inputs[0][1:], {})], 1)


def test_a_placeholder_of_ones_own_is_refused_by_name(
    stack: DevStack,
    records: Mapping[str, list[dict[str, Any]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert records[f"{SCHEMA}.doc"][-1]["after"]["note"] == "gone", "no record tells that it is no value"
    folder = _pipeline(tmp_path, "docs", stack, f"{SCHEMA}.doc")
    run = ["run", str(folder), "--bootstrap", stack.kafka.bootstrap, "--checkpoint", str(tmp_path / "state")]

    def said(*options: str) -> str:
        capsys.readouterr()
        assert main.run([*run, *options]) == 1
        both = capsys.readouterr()
        return " ".join((both.out + both.err).split())

    for options in ((), ("--dry-run",)):
        unknown = said(*options)
        assert f"column {SCHEMA}.doc.note may be stored out of line" in unknown
        assert "[connect.properties]" in unknown
        known = said(*options, "--connect-url", stack.connect.address)
        assert "unavailable.value.placeholder: gone, but must be __debezium_unavailable_value" in known


@pytest.mark.full
def test_a_connector_that_starts_after_the_run_shows_nothing(
    stack: DevStack, records: Mapping[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    assert LATE not in records
    folder = _pipeline(tmp_path, "late", stack, LATE)
    with Product(stack, tmp_path / "product") as product:
        product.start_sidecar()
        servers = ("--bootstrap", stack.kafka.bootstrap, "--redis-url", stack.redis.url)
        options = ("--checkpoint", str(tmp_path / "checkpoint"), "--allow-missing-tables")
        command = slackwater_command("run", str(folder), *servers, *options, "--master", "local[1]")
        pipeline = product.start("pipeline", command)
        visible = product.watch(folder)
        with psycopg.connect(stack.postgres.dsn(), autocommit=True) as database:
            shown = product.wait_until(lambda: visible.newest_lsn > 0, SECONDS)
            assert shown, "commits without rows of a connector are shown"
            (before,) = database.execute(b"SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
            database.execute(f"INSERT INTO {LATE} VALUES (1, 'gone')".encode())  # noqa: S608 - our own
            with pytest.raises(ProgramEndedError) as ended:
                product.wait_until(lambda: False, SECONDS)
        assert visible.newest_lsn <= parse_position(before), "something of the transaction is visible"
    assert ended.value.program == "pipeline"
    said = " ".join(pipeline.last_words().split())
    assert f"a change of table {LATE} that neither a pipeline nor a service wrote" in said
    assert "[connect.properties]" in said


def _pipeline(place: Path, name: str, stack: DevStack, table: str) -> Path:
    folder, source = place / name, stack.settings.prefix
    (folder / "views").mkdir(parents=True)
    (folder / "pipeline.toml").write_text(
        f'name = "{name}"\nsource = "{source}"\n[output]\ntopic = "{name}"\n'
    )
    (folder / "schema.sql").write_text(f"CREATE TABLE {table} (key int PRIMARY KEY, note text);")
    (folder / "views" / f"{name}.sql").write_text(f"SELECT TRANSACTIONALLY key, note FROM {table}")  # noqa: S608 - our own
    return folder
