"""Everything a real connector writes, in every format and topic, on its way to rows and documents."""

import base64
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Message, Producer
from pyspark.sql.types import StructType

from slackwater.cdc import BadInputError, Frontier
from slackwater.cdc.avro import AvroToJson, ToJson
from slackwater.cdc.batch import BatchTask, OffsetSpan, TransactionTable
from slackwater.cdc.changes import BatchChanges
from slackwater.dev import KafkaBroker
from slackwater.engine.local import LocalEngine
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.task import RowWriter, read_task
from slackwater.protocol import CommittedTransaction, Cut, RegistrySettings, SourceTopics, UnavailableError
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.topics import make_topics

RECORDINGS = Path(__file__).parents[4] / "slackwater/tests/cdc/recordings"
PREFIXES = {"avro": "av", "json": "js", "json_with_schemas": "jw"}
TABLES = ("inv.kinds", "inv.nokey", "inv.orders")
ROWS = StructType()
for column, kind in (
    ("source", "string"),
    ("table", "string"),
    ("op", "string"),
    ("key", "string"),
    ("before", "string"),
    ("after", "string"),
    ("xid", "long"),
    ("commit_lsn", "long"),
    ("commit_ts", "timestamp"),
    ("order_in_transaction", "long"),
    ("partition", "integer"),
    ("offset", "long"),
):
    ROWS = ROWS.add(column, kind)
Record = Callable[..., Message]
Value = Callable[..., bytes]


def recorded(name: str) -> list[dict[str, Any]]:
    """What one connector wrote, with bytes as they were in Kafka."""
    lines = (RECORDINGS / f"avro/{name}.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        for part in ("key", "value"):
            text = record[part]
            if text is not None:
                record[part] = base64.b64decode(text) if name == "avro" else text.encode()
        record["topic"] = record["topic"].replace(PREFIXES[name], "x", 1)
    return records


def to_json_of(name: str) -> ToJson | None:
    schemas = json.loads((RECORDINGS / "avro/schemas.json").read_text())
    return AvroToJson(lambda schema_id: json.dumps(schemas[str(schema_id)])) if name == "avro" else None


def cuts_of(records: list[dict[str, Any]], to_json: ToJson | None) -> list[Cut]:
    """What a sidecar publishes when it has read everything."""
    frontier, convert = Frontier("x"), to_json or (lambda value: value)
    partitions = {f"x.{table}": frontier.add_partition(f"x.{table}", 0, 0) for table in TABLES}
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        topic, pair = record["topic"], (record["offset"], convert(record["value"]))
        ends[topic, 0] = record["offset"] + 1
        if topic in partitions:
            partitions[topic].read([pair], record["run"], is_keyless=topic.endswith("nokey"))
        elif topic == "x.transaction":
            frontier.read_transactions([(*pair, record["timestamp_ms"])])
        elif topic == "x.notifications":
            frontier.read_notifications([pair])
    for _ in range(3):
        frontier.end_offsets(ends)
        frontier.advance()
    return frontier.cuts()


def changes_of(name: str) -> tuple[BatchChanges, list[tuple[OffsetSpan, list[Message]]], ToJson | None]:
    records, to_json = recorded(name), to_json_of(name)
    cuts = cuts_of(records, to_json)
    assert cuts[-1].event_count == 18
    transactions = [t for cut in cuts for t in cut.transactions]
    portions = []
    for number, table in enumerate(TABLES):
        topic = f"x.{table}"
        messages = [
            Message(topic=topic, partition=0, offset=r["offset"], key=r["key"], value=r["value"])
            for r in records
            if r["topic"] == topic
        ]
        portions.append((OffsetSpan(topic, 0, 0, len(messages), number), messages))
    task = BatchTask(tuple(span for span, _ in portions), TransactionTable(transactions))
    return BatchChanges(task, "x", TABLES, to_json=to_json), portions, to_json


def rows_of(name: str) -> list[dict[str, Any]]:
    changes, portions, to_json = changes_of(name)
    writer = RowWriter("x", ROWS, changes, to_json)
    return [row for batch in writer.write(iter(portions)) for row in batch.to_pylist()]


def comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without the time and place of a snapshot, which each connector takes for itself."""
    left_out = {"commit_lsn", "commit_ts"} if row["op"] == "r" else set()
    parsed = {name: json.loads(row[name] or "null") for name in ("key", "before", "after")}
    return {name: value for name, value in {**row, **parsed}.items() if name not in left_out}


@pytest.mark.parametrize("name", ["avro", "json_with_schemas"])
def test_rows_are_the_same_in_every_format(name: str) -> None:
    plain = rows_of("json")

    assert [comparable(row) for row in rows_of(name)] == [comparable(row) for row in plain]
    assert [row["op"] for row in plain if row["table"] == "inv.orders"] == list("rccdcdctc")
    assert len(plain) == 18


@pytest.mark.parametrize("name", sorted(PREFIXES))
def test_documents_are_the_same_in_every_format(name: str) -> None:
    """Key update, delete and TRUNCATE between two inserts of one transaction are among the changes."""
    tables = "CREATE TABLE inv.orders (id bigint, line int, customer text, PRIMARY KEY (id, line));"
    view = (
        "SELECT TRANSACTIONALLY o.id, count(*) AS lines, list(o.customer ORDER BY o.line) AS customers "
        "FROM inv.orders o GROUP BY o.id"
    )
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"t.sql": tables}))
    changes, portions, _ = changes_of(name)
    events = [
        (c.table, c.op, lsn, c.before and bytes(c.before), c.after and bytes(c.after), c.lsn)
        for span, messages in portions
        if span.topic == "x.inv.orders"
        for _, c, lsn in changes.find(span, messages)
    ]
    documents = LocalEngine(plan, every_commit=True).run(events)[0]

    history = [(json.loads(key)["id"], doc and json.loads(doc)["customers"]) for _, key, doc in documents]
    by_key = {key: [customers for other, customers in history if other == key] for key in (1, 2, 5, 6, 9)}
    assert by_key == {
        1: [["a"], ["a", "a"], ["a"], None],
        2: [[None], None],
        5: [],
        6: [["after"]],
        9: [[None], None],
    }


def changes(
    *xids: int, tables: tuple[str, ...] = ("s.a", "s.b"), topics: SourceTopics | None = None, **fields: Any
) -> BatchChanges:
    table = TransactionTable(CommittedTransaction(xid, xid * 100, 0) for xid in xids)
    return BatchChanges(BatchTask((), table, **fields), "inv", tables, topics=topics)


def found(batch: BatchChanges, topic: str, *messages: Message) -> list[tuple[str, str, int]]:
    span = OffsetSpan(topic, 0, 0, 100, 0)
    return [(c.table, c.op, lsn) for _, c, lsn in batch.find(span, list(messages))]


def test_tables_that_share_a_topic_are_told_apart_by_their_rows(row_value: Value, record: Record) -> None:
    topics = SourceTopics("inv", routed={"s.a": "all", "s.b": "all"})
    messages = [record(row_value(7, 600, table=f"s.{name}"), topic="all") for name in "abc"]

    assert found(changes(7, topics=topics), "all", *messages) == [("s.a", "c", 700), ("s.b", "c", 700)]
    assert found(changes(7, topics=topics, tables=("s.b",)), "all", *messages) == [("s.b", "c", 700)]


def test_rows_of_an_ad_hoc_snapshot_of_a_table_that_is_not_read_are_left_out(
    row_value: Value, record: Record
) -> None:
    topics = SourceTopics("inv", routed={"s.a": "all"})
    row = row_value(None, 0, op="r", snapshot="incremental", table="s.other")

    assert found(changes(7, topics=topics, tables=("s.a",)), "all", record(row, topic="all")) == []


def test_a_table_found_elsewhere_than_said_is_bad_input(row_value: Value, record: Record) -> None:
    """Else the query would wait for its rows in an empty topic, and say nothing."""
    topics = SourceTopics("inv", routed={"s.a": "all"})
    with pytest.raises(BadInputError, match=r"'s\.b', which is expected in topic inv\.s\.b.*'topics'"):
        found(changes(7, topics=topics), "all", record(row_value(7, 600, table="s.b"), topic="all"))


def test_rows_of_other_tables_in_a_topic_named_after_one_are_bad_input(
    row_value: Value, record: Record
) -> None:
    with pytest.raises(BadInputError, match=r"'s\.c', which is expected in topic inv\.s\.c"):
        found(changes(7), "inv.s.a", record(row_value(7, 600, table="s.c"), topic="inv.s.a"))


def test_a_truncate_is_a_change_without_key_and_row(row_value: Value, record: Record) -> None:
    truncate = record(row_value(7, 600, op="t", table="s.a"), key=None, topic="inv.s.a")

    assert found(changes(7), "inv.s.a", truncate) == [("s.a", "t", 700)]
    assert found(changes(8), "inv.s.a", truncate) == []


def test_a_truncate_in_a_repeated_transaction_counts_once_per_partition(
    row_value: Value, record: Record
) -> None:
    batch = changes(7, repeated=frozenset({700}))
    truncate = [record(row_value(7, 600, op="t", table="s.a"), key=None, topic="inv.s.a") for _ in range(2)]

    assert found(batch, "inv.s.a", *truncate) == [("s.a", "t", 700)]


def test_a_key_that_its_schema_does_not_describe_is_bad_input(row_value: Value, record: Record) -> None:
    batch, span = changes(7), OffsetSpan("inv.s.a", 0, 0, 1, 0)
    message = record(row_value(7, 600, table="s.a"), key=b"\0\0\0\0\x01\x02", topic="inv.s.a")
    writer = RowWriter("inv", ROWS, batch, AvroToJson(lambda schema_id: '"string"'))

    with pytest.raises(BadInputError, match=r"its key: .* of schema 1: "):
        list(writer.write(iter([(span, [message])])))


def test_a_value_that_its_schema_does_not_describe_is_bad_input(record: Record) -> None:
    task = BatchTask((), TransactionTable(()))
    batch = BatchChanges(task, "inv", ("s.a",), to_json=AvroToJson(lambda schema_id: "no schema"))

    with pytest.raises(BadInputError, match="of schema 258: "):
        found(batch, "inv.s.a", record(b"\0\0\0\x01\x02\x02", topic="inv.s.a"))


@pytest.mark.integration
def test_avro_in_routed_topics_is_read_from_kafka(kafka_broker: KafkaBroker, source: str) -> None:
    """Two tables share a topic with a third one that is not read."""
    everything, alone = f"{source}-everything", f"{source}-alone"
    routed = {"inv.kinds": everything, "inv.orders": everything, "inv.nokey": everything}
    positions = written(kafka_broker, {**routed, "inv.kinds": alone})
    read = {"inv.kinds": alone, "inv.orders": everything}
    ends = (26637632, 26638640, 26638824, 26644928)
    transactions = [CommittedTransaction(735 + number, lsn, 0) for number, lsn in enumerate(ends)]
    spans = tuple(OffsetSpan(topic, 0, 0, end, n) for n, (topic, end) in enumerate(sorted(positions.items())))
    with RegistryServer(user="u", password="p") as registry:
        for schema_id, schema in json.loads((RECORDINGS / "avro/schemas.json").read_text()).items():
            registry.register(json.dumps(schema), schema_id=int(schema_id))
        options = SourceOptions.parse(
            {
                "source": source,
                "bootstrap": kafka_broker.bootstrap,
                "tables": ",".join(read),
                "topics": json.dumps(read),
                "schema_registry": registry.url,
                "schema_registry.user": "u",
                "schema_registry.password": "p",
            }
        )
        task = BatchTask(spans, TransactionTable(transactions))
        rows = [row for batch in read_task(options, ROWS, task) for row in batch.to_pylist()]
        asked = len(registry.requests)
        again = [row for batch in read_task(options, ROWS, task) for row in batch.to_pylist()]

        assert sorted(map(str, again)) == sorted(map(str, rows))
        assert len(registry.requests) == asked, "a worker keeps its schemas"
        registry.failure = 500
        others = dataclasses.replace(
            options,
            servers=dataclasses.replace(options.servers, registry=RegistrySettings(url=registry.url)),
        )
        with pytest.raises(UnavailableError, match=r"HTTP 500.*nothing is lost"):
            list(read_task(others, ROWS, task))

    plain = [comparable(row) for row in rows_of("json") if row["op"] != "r" and row["table"] in read]
    ours = [comparable({**row, "source": "x", "offset": 0}) for row in rows]
    assert len(ours) == 13
    assert sorted(ours, key=str) == sorted([{**row, "offset": 0} for row in plain], key=str)


def written(broker: KafkaBroker, topics: Mapping[str, str]) -> dict[str, int]:
    """Puts the recorded Avro into topics by table; the end offset of each."""
    make_topics(broker.bootstrap, [*set(topics.values())], 1)
    producer, ends = (
        Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}),
        dict.fromkeys(topics.values(), 0),
    )
    for record in recorded("avro"):
        topic = topics.get(record["topic"].removeprefix("x."))
        if topic is not None:
            producer.produce(topic, record["value"], key=record["key"])
            ends[topic] += 1
    producer.flush(30)
    return ends


NAMES = sorted({f.name.split(".")[0] for f in RECORDINGS.glob("*.tsv")})
Line = tuple[str, bytes, bytes | None, str]


def lines_of(name: str) -> Iterator[Line]:
    """Topic, key, value, run; a crashed run, then the next one."""
    files = [f for part in ("", ".run1", ".run2") if (f := RECORDINGS / f"{name}{part}.tsv").exists()]
    for file in files:
        for line in file.read_text().splitlines():
            topic, _, key, value, headers, *_ = line.split("\t")
            runs = (h.split("=")[1] for h in headers.split(";") if h.startswith("__debezium.context.runId"))
            yield topic, key.encode(), None if value == "null" else value.encode(), next(runs, "")


def is_row(line: Line) -> bool:
    topic, _, value, _ = line
    return value is not None and b'"op":' in value and not topic.endswith(".message")


def payload_of(value: bytes | None) -> Any:
    document = msgspec.json.decode(value or b"{}")
    return document.get("payload", document)


def commits_of(name: str) -> dict[int, int]:
    """Commit LSN by xid, from the ENDs."""
    ends = [payload_of(v) for topic, _, v, _ in lines_of(name) if topic.endswith(".transaction")]
    ids = [end["id"].split(":") for end in ends if end["status"] == "END"]
    return {int(xid): int(lsn) for xid, lsn in ids}


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_change_of_a_recording_becomes_one_row_with_its_true_commit(name: str, partitions: int) -> None:
    """All records of all data topics go in; ENDs alone say what has to come out."""
    commits, lines = commits_of(name), [line for line in lines_of(name) if is_row(line) or line[2] is None]
    lines = [line for line in lines if line[0].count(".") == 2]
    prefix = lines[0][0].split(".")[0]
    tables = tuple(sorted({line[0].split(".", 1)[1] for line in lines}))
    transactions = [CommittedTransaction(xid, lsn, 0) for xid, lsn in sorted(commits.items())]
    task = BatchTask((), TransactionTable(transactions), repeated=frozenset(commits.values()))
    batch = BatchChanges(task, prefix, [table for table in tables if not table.endswith("nokey")])

    seen: dict[tuple[Any, ...], int] = {}
    for topic in sorted({line[0] for line in lines if not line[0].endswith("nokey")}):
        for number in range(partitions):
            of_partition = [
                line for line in lines if line[0] == topic and sum(line[1]) % partitions == number
            ]
            messages = [
                Message(topic=topic, partition=number, offset=offset, key=_key(line), value=line[2])
                for offset, line in enumerate(of_partition)
                if line[2] is None or payload_of(line[2])["transaction"] is not None
            ]
            for message, change, lsn in batch.find(OffsetSpan(topic, number, 0, 10**6, 0), messages):
                identity = (change.xid, change.lsn, change.table, change.op, message.key())
                assert identity not in seen
                assert lsn == commits[change.xid or 0]
                seen[identity] = lsn
    assert seen.keys() == set(expected_of(lines, commits))


def _key(line: Line) -> bytes | None:
    return None if line[1] == b"null" else line[1]


def expected_of(lines: Iterable[Line], commits: Mapping[int, int]) -> Iterator[tuple[Any, ...]]:
    for line in lines:
        row = payload_of(line[2])
        if line[2] is None or row["transaction"] is None or line[0].endswith("nokey"):
            continue
        source = row["source"]
        if source["txId"] in commits:
            yield (
                source["txId"],
                source["lsn"],
                f"{source['schema']}.{source['table']}",
                row["op"],
                _key(line),
            )


@pytest.mark.parametrize("damaged", ["after", "key"])
def test_what_is_no_text_is_bad_input(row_value: Value, record: Record, damaged: str) -> None:
    batch, span = changes(7), OffsetSpan("inv.s.a", 0, 0, 1, 0)
    value = row_value(7, 600, table="s.a", after={"id": 1, "note": "?"})
    key = b'{"id":"\xff"}' if damaged == "key" else b'{"id":1}'
    value = value.replace(b'"?"', b'"\xff"') if damaged == "after" else value
    message = record(value, key=key, topic="inv.s.a", offset=0)

    with pytest.raises(BadInputError, match=r"inv\.s\.a.* UTF-8"):
        list(RowWriter("inv", ROWS, batch).write(iter([(span, [message])])))
