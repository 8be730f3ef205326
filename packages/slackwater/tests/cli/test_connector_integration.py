"""``slackwater connector`` over a real database and a real Kafka Connect."""

import json
import zlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from slackwater.cli import main
from slackwater.dev import DevStack, PostgresServer

if TYPE_CHECKING:
    from slackwater_lab.servers.pytest_plugin import DevStackFactory

pytestmark = pytest.mark.integration
SECONDS = 120
DDL = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id bigint PRIMARY KEY, total numeric(10,2), note text DEFAULT 'none')
    PARTITION BY RANGE (id);
CREATE TABLE shop.orders_1 PARTITION OF shop.orders FOR VALUES FROM (0) TO (100);
CREATE TABLE shop."Odd Lines" (id bigint PRIMARY KEY);
INSERT INTO shop.orders VALUES (1, 10.5, NULL);
"""
PASSWORD = "o'clock"


class Shop:
    """A database of its own."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.name = name
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        self.dsn = server.dsn(name)
        self.run(DDL)

    def run(self, statement: str) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute(statement.encode())

    def command(self, what: str, *words: str) -> list[str]:
        user = f"reader_{self.name}"
        common = ["--source", self.name, "--schema", "shop", "--postgres-url", self.dsn, "--user", user]
        return ["connector", what, *common, *words]


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_CONNECT_DATABASE_PASSWORD", PASSWORD)


@pytest.fixture(scope="module")
def stack(dev_stack: "DevStackFactory") -> DevStack:
    started = dev_stack(redis=False)
    started.start_connector()
    return started


@pytest.fixture
def shop(stack: DevStack, request: pytest.FixtureRequest) -> Shop:
    return Shop(stack.postgres, f"s{zlib.crc32(request.node.name.encode())}")


def problems(out: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("problem ")]


def first_value(bootstrap: str, topic: str) -> dict[str, Any]:
    """The first record of a topic, which need not be there yet."""
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 200}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe([topic])
    try:
        for _ in range(SECONDS):
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found: dict[str, Any] = json.loads(message.value() or b"")
                return found
    finally:
        consumer.close()
    pytest.fail(f"topic {topic} has no record")


def test_what_is_printed_is_what_a_database_needs(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(shop.command("print")) == 0
    out = capsys.readouterr().out
    assert PASSWORD not in out
    text, _, properties = out.partition("\n-- For Kafka Connect")
    config = json.loads(properties[properties.index("{") :])
    assert config["table.include.list"] == r"shop\.Odd\x20Lines,shop\.orders"
    assert config["database.dbname"] == shop.name
    shop.run("\n".join(line for line in text.splitlines() if not line.startswith("--")))
    assert main.run(shop.command("check")) == 0
    assert problems(capsys.readouterr().out) == []


def test_all_that_a_database_lacks_is_listed_and_then_applied(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(shop.command("check")) == 1
    found = problems(capsys.readouterr().out)
    assert found == [
        f"user reader_{shop.name}: the role does not exist",
        f"privileges: reader_{shop.name} cannot read schema shop, shop.Odd Lines, shop.orders, so "
        "the snapshot would fail",
        f"publication slackwater_{shop.name}: it does not exist",
    ]
    assert main.run(shop.command("apply")) == 0
    out = capsys.readouterr().out
    assert PASSWORD not in out
    assert "PASSWORD '********';" in out
    assert f"next: slackwater sidecar --source {shop.name}" in out
    assert main.run(shop.command("apply")) == 0
    again = capsys.readouterr().out
    assert not [word for word in ("CREATE", "ALTER", "GRANT") if word in again], "nothing is left to do"


def test_what_is_there_in_another_form_is_found_and_changed(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.run(
        f"""
        CREATE ROLE reader_{shop.name} LOGIN;
        GRANT USAGE ON SCHEMA shop TO reader_{shop.name};
        CREATE PUBLICATION slackwater_{shop.name} FOR TABLE shop.orders WITH (publish = 'insert, update');
        CREATE TABLE shop.log (text text);
        """
    )
    assert main.run(shop.command("check")) == 1
    publication = f"publication slackwater_{shop.name}: "
    assert [line for line in problems(capsys.readouterr().out) if not line.startswith("privileges")] == [
        f"user reader_{shop.name}: it does not have the REPLICATION attribute",
        f"{publication}publish_via_partition_root is off, so changes of partitioned tables are "
        "published under "
        "the partitions' names",
        f"{publication}it does not publish delete, truncate",
        f"{publication}it does not contain shop.Odd Lines, shop.log",
        "replica identity: shop.log: no primary key, so PostgreSQL refuses updates and deletes",
    ]
    assert main.run(shop.command("apply")) == 1, "the replica identity is for its owner to choose"
    assert len(problems(capsys.readouterr().out)) == 1


def test_the_connector_runs_and_is_checked(
    stack: DevStack, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of a partitioned table come under its own name; topics have the partitions that were asked for."""
    url = stack.connect.address
    assert main.run(shop.command("check", "--connect-url", url)) == 1
    assert f"connector: Kafka Connect has no connector {shop.name}" in problems(capsys.readouterr().out)
    assert main.run(shop.command("apply", "--connect-url", url, "--partitions", "3")) == 0
    capsys.readouterr()
    topic = f"{shop.name}.shop.orders"
    assert first_value(stack.kafka.bootstrap, topic)["after"] == {
        "id": 1,
        "total": "10.50",
        "note": None,
    }, "NULL is no DEFAULT"
    found = AdminClient({"bootstrap.servers": stack.kafka.bootstrap}).list_topics(timeout=SECONDS).topics
    assert len(found[topic].partitions) == 3
    assert f"{shop.name}.shop.orders_1" not in found
    assert main.run(shop.command("check", "--connect-url", url)) == 0
    assert problems(capsys.readouterr().out) == []


def test_a_slot_that_exists_before_its_connector_is_pointed_out(
    stack: DevStack, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    check = shop.command("check", "--connect-url", stack.connect.address)
    main.run(check)
    assert "it exists before the connector" not in capsys.readouterr().out
    shop.run(f"SELECT pg_create_logical_replication_slot('{shop.name}', 'pgoutput')")
    try:
        main.run(check)
        out = capsys.readouterr().out
    finally:
        shop.run(f"SELECT pg_drop_replication_slot('{shop.name}')")
    assert f"replication slot {shop.name}: it exists before the connector" in out


def test_a_table_that_the_database_has_not_is_named(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(shop.command("print", "--table", "shop.order")) == 1
    assert "the database has no table shop.order" in capsys.readouterr().err
    no_table = ["connector", "print", "--source", "inv", "--postgres-url", shop.dsn]
    assert main.run(no_table) == 2
    assert "--table SCHEMA.TABLE or --schema NAME" in capsys.readouterr().err


def test_tables_that_would_share_a_topic_are_refused(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.run('CREATE TABLE shop."Odd_Lines" (id bigint PRIMARY KEY)')
    for what in ("print", "check", "apply"):
        assert main.run(shop.command(what)) != 0
        told = capsys.readouterr()
        assert f"table shop.Odd Lines: its topic {shop.name}.shop.Odd_Lines is also that of" in told.err
        assert not told.out
    odd = ["--source", shop.name, "--postgres-url", shop.dsn, "--table", '"shop"."Odd Lines"']
    assert main.run(["connector", "print", *odd]) == 0
    assert 'FOR TABLE "shop"."Odd Lines" WITH' in capsys.readouterr().out
