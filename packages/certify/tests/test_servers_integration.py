"""Outputs and change topics in a real broker, output tables in a real PostgreSQL."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from psycopg import sql

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_certify import Certificate, Connections, Mode, certify, watch_output
from slackwater_certify.errors import CertifyConfigError, CertifyError
from slackwater_certify.kafka import current_ends
from slackwater_certify.specification import OutputKind
from slackwater_lab.fakes.certified import (
    PARTITIONS,
    SCHEMA,
    RightOutput,
    SourceLog,
    SourceRecord,
    Topics,
    line,
    order,
)
from slackwater_lab.topics import make_topics

pytestmark = pytest.mark.integration


def write_output(topics: Topics, output: RightOutput) -> None:
    """Writes outputs to their partitions, and commit records; partitions must be empty before."""
    producer = topics.producer
    for each in output.outputs:
        value = None if each.document is None else json.dumps(each.document)
        headers: dict[str, str | bytes | None] = {"lsn": str(each.lsn)}
        producer.produce(
            topics.output,
            value,
            json.dumps(each.key),
            each.place[0],
            timestamp=each.visible_ms,
            headers=headers,
        )
    for commit in output.commits:
        ranges = {str(each.partition): [each.count, each.first, each.last] for each in commit.ranges}
        content = {
            "v": 1,
            "pipeline": "orders",
            "source": topics.prefix,
            "timeline": commit.timeline,
            "commit_lsn": commit.lsn,
            "previous_lsn": commit.previous_lsn,
            "xid": None,
            "commit_ts": commit.commit_ts_ms,
            "offsets": {topics.output: ranges},
            "skipped": commit.skipped,
        }
        producer.produce(f"{topics.output}.commits", json.dumps(content), timestamp=commit.visible_ms)
    producer.flush(30)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA shop; " + SCHEMA)
        yield server
    finally:
        server.stop()
        server.delete_data()


@pytest.fixture
def topics(kafka_broker: KafkaBroker, request: pytest.FixtureRequest, tmp_path: Path) -> Topics:
    return Topics(kafka_broker.bootstrap, request.node.name.replace("_", "-"), tmp_path)


def source(prefix: str) -> SourceLog:
    log = SourceLog(prefix)
    log.snapshot([("orders", order(1, "1.50")), ("lines", line(11, 1, "1.50"))])
    for number in range(2, 60):
        log.commit(
            ("orders", number, order(number, "3.00")),
            ("lines", 10 * number, line(10 * number, number, "1.00")),
            ("lines", 10 * number + 1, line(10 * number + 1, number, "2.00")),
        )
    log.commit(("orders", 2, None), ("lines", 20, None), ("lines", 21, None))
    return log


def test_a_source_whose_topics_lack_records_or_ends_is_refused(topics: Topics) -> None:
    log, connections = source(topics.prefix), Connections(bootstrap=topics.bootstrap)
    topics.write_source(each for each in log.records if not each.topic.endswith(".transaction"))
    with pytest.raises(CertifyConfigError, match=r"\.transaction has no END of any transaction"):
        certify(topics.plain, connections)
    topics.write_source(each for each in log.records if each.topic.endswith(".transaction"))
    place = TopicPartition(f"{topics.prefix}.transaction", 0, 1)
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    admin.delete_records([place])[place].result(30)
    with pytest.raises(CertifyConfigError, match=r"\.transaction/0 begins at offset 1"):
        certify(topics.plain, connections)


@pytest.mark.full
def test_a_right_topic_is_clean_with_claims_and_without(topics: Topics) -> None:
    log = source(topics.prefix)
    topics.write_source(log.records)
    write_output(topics, RightOutput.publish(log, per_batch=4, partitions=PARTITIONS))
    connections = Connections(bootstrap=topics.bootstrap)
    for specification in (topics.plain, topics.claiming):
        certificate = certify(specification, connections, mode=Mode.BOTH)
        assert certificate.examples == {}
        assert certificate.is_clean
        assert certificate.transactions == len(log.commits)
        assert certificate.events == len(log.records) - len(log.commits)
        assert certificate.delay_ms is not None
        assert certificate.delay_ms.max == 80


def test_what_operators_have_skipped_is_read_from_the_cut_log(topics: Topics) -> None:
    log = source(topics.prefix)
    log.commit(("orders", 70, order(70, "1.00")), ("lines", 700, line(700, 70, "1.00")))
    log.skip("lines", 700)
    cuts, tables = topics.claiming.source.cuts, [f"{topics.prefix}.shop.{t}" for t in ("orders", "lines")]
    (number,) = (n for n, record in enumerate(log.records) if record.topic == cuts)
    topics.write_source(log.records[:number])
    ends = current_ends({"bootstrap.servers": topics.bootstrap}, tables)
    cut = json.loads(log.records[number].value)
    cut["end"] = {t: [ends.get((t, p), 0) for p in range(PARTITIONS)] for t in tables}
    make_topics(topics.bootstrap, [cuts], 1)
    topics.write_source([SourceRecord(cuts, b"", json.dumps(cut).encode()), *log.records[number + 1 :]])
    write_output(topics, RightOutput.publish(log, partitions=PARTITIONS))
    certificate = certify(topics.claiming, Connections(bootstrap=topics.bootstrap))
    assert certificate.examples == {}
    assert "1 transactions were skipped by an operator" in certificate.notes


def test_torn_and_unreadable_records_of_a_topic_are_found(topics: Topics) -> None:
    log = source(topics.prefix)
    output = RightOutput.publish(log, partitions=PARTITIONS)
    document = output.outputs[5].document
    assert document is not None
    output.change(5, document={**document, "lines": document["lines"][1:]})
    topics.write_source(log.records)
    write_output(topics, output)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "enable.idempotence": True})
    producer.produce(topics.output, b"\xff not JSON", b'{"id": 7}', 1)
    producer.produce(topics.output, b"[1]", b'{"id": 7}', 1)
    producer.flush(30)
    certificate = certify(topics.claiming, Connections(bootstrap=topics.bootstrap), mode=Mode.BOTH)
    assert certificate.torn == 3
    assert certificate.uncovered == 2
    assert certificate.invariant_violations == 1


def test_a_missing_topic_is_named(topics: Topics) -> None:
    specification = replace(topics.plain, output=replace(topics.plain.output, name="nowhere"))
    with pytest.raises(CertifyError, match="nowhere"):
        certify(specification, Connections(bootstrap=topics.bootstrap))


def test_a_topic_that_is_watched_has_arrival_times(topics: Topics) -> None:
    log = source(topics.prefix)
    topics.write_source(log.records)
    output = RightOutput.publish(log, partitions=PARTITIONS)
    write_output(topics, output)
    connections, seen = Connections(bootstrap=topics.bootstrap), iter(range(10**9))
    moments: list[int] = []

    def now_ms() -> int:
        moments.append(next(seen))
        return moments[-1]

    total = len(output.outputs) + len(output.commits)
    records = watch_output(topics.claiming, connections, lambda: len(moments) > total, now_ms=now_ms)
    certificate = certify(topics.claiming, connections, records=records)
    assert certificate.examples == {}
    assert certificate.clock == "arrival at the certifier"


def test_tables_are_judged_at_every_snapshot(topics: Topics, postgres: PostgresServer) -> None:
    log = source(topics.prefix)
    topics.write_source(log.records)
    output = replace(topics.plain.output, kind=OutputKind.POSTGRES, name="shop.view")
    specification = replace(topics.plain, output=output)
    connections = Connections(bootstrap=topics.bootstrap, output_dsn=postgres.dsn())
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE shop.view (id bigint, total numeric, placed_at timestamptz, lines jsonb)"
        )
        steps = iter([*range(0, len(log.states), 7), len(log.states) - 1])

        def next_state() -> bool:
            number = next(steps, None)
            if number is not None:
                show(connection, log.states[number])
            return number is None

        records = watch_output(specification, connections, next_state)
        assert len(records.snapshots or ()) > 8
        assert certify(specification, connections, records=records).examples == {}
        torn = {**log.states[9], 3: log.states[3][3], 40: log.states[-1][40]}
        show(connection, torn)
        found = certify(specification, connections)
    assert found.torn == 0
    assert found.inconsistent_states == 1
    assert found.lost > 0


@pytest.mark.full
def test_a_server_that_goes_away_while_a_table_is_watched_is_waited_for(
    topics: Topics, postgres: PostgresServer
) -> None:
    log = source(topics.prefix)
    topics.write_source(log.records)
    output = replace(topics.plain.output, kind=OutputKind.POSTGRES, name="shop.watched")
    specification = replace(topics.plain, output=output)
    connections = Connections(bootstrap=topics.bootstrap, output_dsn=postgres.dsn())
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE shop.watched (id bigint, total numeric, placed_at timestamptz, lines jsonb)"
        )
    steps = iter([0, 7, 14, len(log.states) - 1])

    def next_state() -> bool:
        number = next(steps, None)
        if number is None:
            return True
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            show(connection, log.states[number], "watched")
        if number == 7:
            postgres.kill()
            postgres.start()
        return False

    records = watch_output(specification, connections, next_state)
    assert len(records.snapshots or ()) == 4
    assert certify(specification, connections, records=records).examples == {}


def test_a_server_that_is_away_when_watching_begins_is_said(topics: Topics, postgres: PostgresServer) -> None:
    output = replace(topics.plain.output, kind=OutputKind.POSTGRES, name="shop.nowhere")
    specification = replace(topics.plain, output=output)
    connections = Connections(bootstrap=topics.bootstrap, output_dsn=postgres.dsn("nowhere"))
    with pytest.raises(CertifyError, match=r"shop\.nowhere"):
        watch_output(specification, connections, lambda: False)


def test_tables_that_the_pipeline_has_not_made_yet_are_waited_for(
    topics: Topics, postgres: PostgresServer
) -> None:
    output = replace(topics.plain.output, kind=OutputKind.POSTGRES, name="later.view", ledger="p")
    specification = replace(topics.plain, output=output)
    connections = Connections(bootstrap=topics.bootstrap, output_dsn=postgres.dsn())
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        statements = iter(
            [
                "CREATE SCHEMA slackwater",
                "CREATE TABLE slackwater.ledger (pipeline text, batch_id bigint, timeline bigint, "
                "commit_lsn bigint)",
                "INSERT INTO slackwater.ledger VALUES ('p', 0, 1, 10)",
                "CREATE SCHEMA later",
                "CREATE TABLE later.view (id bigint, total numeric, placed_at timestamptz, lines jsonb)",
            ]
        )

        def next_statement() -> bool:
            statement = next(statements, None)
            if statement is not None:
                connection.execute(statement.encode())
            return statement is None

        records = watch_output(specification, connections, next_statement)
        assert [commit.lsn for commit in records.commits] == [10]
        connection.execute("DROP TABLE later.view")
        with pytest.raises(CertifyError, match=r"later\.view"):
            watch_output(specification, connections, lambda: True)
        connection.execute("DROP SCHEMA slackwater CASCADE")


LEDGER = """
CREATE SCHEMA slackwater;
CREATE TABLE slackwater.ledger (pipeline text, batch_id bigint, timeline bigint, commit_lsn bigint);
INSERT INTO slackwater.ledger VALUES ('other', 0, 1, 7);
CREATE TABLE shop.ledgered (id bigint, total numeric, placed_at timestamptz, lines jsonb);
"""


@pytest.mark.full
def test_a_table_with_a_ledger_is_judged_at_the_commit_that_the_ledger_names(
    topics: Topics, postgres: PostgresServer
) -> None:
    log = source(topics.prefix)
    topics.write_source(log.records)
    output = replace(topics.plain.output, kind=OutputKind.POSTGRES, name="shop.ledgered", ledger="p")
    specification = replace(topics.plain, output=output)
    connections = Connections(bootstrap=topics.bootstrap, output_dsn=postgres.dsn())
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(LEDGER)
        with pytest.raises(CertifyError, match="no batch of pipeline 'p'"):
            certify(specification, connections)

        def publish(table: int, ledger: int) -> None:
            """The states after this many commits."""
            with connection.transaction():
                show(connection, log.states[table], "ledgered")
                connection.execute("DELETE FROM slackwater.ledger WHERE pipeline = 'p'")
                lsn = log.commits[ledger - 1][0]
                connection.execute("INSERT INTO slackwater.ledger VALUES ('p', 0, 1, %s)", [lsn])

        def watched(*steps: tuple[int, int]) -> Certificate:
            left = iter(steps)

            def next_state() -> bool:
                step = next(left, None)
                if step is not None:
                    publish(*step)
                return step is None

            records = watch_output(specification, connections, next_state)
            return certify(specification, connections, records=records)

        last = len(log.commits)
        right = watched(*((number, number) for number in (*range(1, last, 7), last)))
        assert right.examples == {}
        assert right.commits > 8
        assert right.snapshots > right.commits
        assert watched((4, 4), (last, 4)).uncovered > 0, "the table continued, the ledger did not"
        assert watched((4, 5), (last, last)).wrong_lsn + watched((4, 5), (last, last)).lost > 0
        assert watched((4, 4), (last, last), (4, 4)).order_violations > 0
        assert certify(specification, connections).lost > 0, "the end was not reached"


@pytest.mark.full
def test_the_final_state_is_compared_with_the_database(topics: Topics, postgres: PostgresServer) -> None:
    log = source(topics.prefix)
    topics.write_source(log.records)
    write_output(topics, RightOutput.publish(log, partitions=PARTITIONS))
    final = log.states[-1].values()
    with psycopg.connect(postgres.dsn()) as connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE shop.orders, shop.lines")
        for each in final:
            cursor.execute(
                "INSERT INTO shop.orders VALUES (%s, %s, %s)", [each["id"], each["total"], each["placed_at"]]
            )
            cursor.executemany(
                "INSERT INTO shop.lines VALUES (%s, %s, %s)",
                [(x["id"], each["id"], x["price"]) for x in each["lines"]],
            )
    connections = Connections(bootstrap=topics.bootstrap, dsn=postgres.dsn())
    assert certify(topics.claiming, connections).examples == {}
    with psycopg.connect(postgres.dsn()) as connection:
        connection.execute("UPDATE shop.orders SET total = total + 1 WHERE id IN (3, 4)")
    certificate = certify(topics.claiming, connections)
    assert certificate.final_differences == 2
    assert certificate.history_differences == 2
    with psycopg.connect(postgres.dsn()) as connection:
        connection.execute("ALTER TABLE shop.orders ADD code uuid NOT NULL DEFAULT gen_random_uuid()")
        connection.execute("CREATE UNIQUE INDEX code ON shop.orders (code)")
        connection.execute("ALTER TABLE shop.orders REPLICA IDENTITY USING INDEX code")
    try:
        with pytest.raises(CertifyConfigError, match=r"shop\.orders in the database: .* USING INDEX"):
            certify(topics.claiming, connections)
    finally:
        with psycopg.connect(postgres.dsn()) as connection:
            connection.execute("ALTER TABLE shop.orders REPLICA IDENTITY DEFAULT")
            connection.execute("ALTER TABLE shop.orders DROP code")


def show(
    connection: "psycopg.Connection[tuple[Any, ...]]",
    state: Mapping[int, Mapping[str, Any]],
    table: str = "view",
) -> None:
    name = sql.Identifier("shop", table)
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(sql.SQL("DELETE FROM {}").format(name))
        cursor.executemany(
            sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s)").format(name),
            [(d["id"], d["total"], d["placed_at"], json.dumps(d["lines"])) for d in state.values()],
        )
