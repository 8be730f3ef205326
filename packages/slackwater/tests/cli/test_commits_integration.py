"""``slackwater commits`` and the plain example over a real broker."""

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from slackwater.cdc.commit_avro import encode_commit_avro
from slackwater.cli import main
from slackwater.dev import KafkaBroker
from slackwater.kafka.registry import wire_header
from slackwater.protocol import (
    CommitRecord,
    OffsetRange,
    ProgressRecord,
    SchemaLanguage,
    TopicState,
    commit_schema,
    encode_commit_record,
    encode_progress_record,
)
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.topics import make_topics

pytestmark = pytest.mark.integration
EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "whole_transactions.py"
SECONDS = 120
COMMITS = 5


@dataclass(frozen=True, slots=True)
class Written:
    bootstrap: str
    pipeline: str
    topics: tuple[str, str]
    offsets: list[dict[str, dict[int, OffsetRange]]]
    """Of each commit, by topic and partition."""


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


@pytest.fixture(scope="module")
def written(kafka_broker: KafkaBroker, registry: RegistryServer) -> Written:
    """Five commits, LSN 10 to 50, each in its own Kafka transaction; an aborted one after the second."""
    name = f"p{uuid.uuid4().hex[:10]}"
    topics = (f"{name}.a", f"{name}.b")
    make_topics(kafka_broker.bootstrap, topics, 2)
    begin = wire_header(registry.register(commit_schema(SchemaLanguage.AVRO)))
    in_avro = f"{topics[0]}.commits-avro"
    others = [*(f"{topic}.commits" for topic in topics), in_avro, f"{name}.slackwater.progress"]
    make_topics(kafka_broker.bootstrap, others, 1)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS)
    offsets = []
    for number in range(1, COMMITS + 1):
        producer.begin_transaction()
        offsets.append(produce(producer, topics, number))
        record = commit(name, number, offsets[-1])
        for topic in topics:
            producer.produce(f"{topic}.commits", encode_commit_record(record))
        producer.produce(in_avro, begin + encode_commit_avro(record))
        left = {t: TopicState("", (0,), (0,)) for t in (*topics, *(f"{t}.commits" for t in topics))}
        progress = ProgressRecord(
            pipeline=name,
            query_id="q",
            batch_id=number,
            source="s",
            timeline=1,
            commit_lsn=number * 10,
            topics=left,
        )
        producer.produce(f"{name}.slackwater.progress", encode_progress_record(progress), name.encode())
        producer.commit_transaction(SECONDS)
        if number == 2:
            producer.begin_transaction()
            produce(producer, topics, 99)
            for log in (f"{topics[0]}.commits", in_avro):
                producer.produce(log, b"never visible")
            producer.abort_transaction(SECONDS)
    return Written(kafka_broker.bootstrap, name, topics, offsets)


def produce(producer: Producer, topics: tuple[str, str], number: int) -> dict[str, dict[int, OffsetRange]]:
    """Two documents per partition of the first topic, one in the second topic's partition 1."""
    places: dict[str, dict[int, list[int]]] = {}

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None
        by_partition = places.setdefault(message.topic() or "", {})
        by_partition.setdefault(message.partition() or 0, []).append(message.offset() or 0)

    for topic, partition in ((topics[0], 0), (topics[0], 0), (topics[0], 1), (topics[1], 1)):
        producer.produce(topic, f"{number}", f"k{number}", partition, on_delivery=report)
    producer.flush(SECONDS)
    return {
        topic: {p: OffsetRange(len(found), min(found), max(found)) for p, found in sorted(each.items())}
        for topic, each in sorted(places.items())
    }


def commit(pipeline: str, number: int, offsets: dict[str, dict[int, OffsetRange]]) -> CommitRecord:
    return CommitRecord(
        pipeline=pipeline,
        source="s",
        timeline=1,
        commit_lsn=number * 10,
        previous_lsn=number * 10 - 10,
        xid=None,
        commit_ts_ms=number,
        commit_ts_ns=number * 10**6,
        offsets=offsets,
        schemas=dict.fromkeys(offsets, ("v:1",)),
    )


def asked(written: Written, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    arguments = ["commits", "--pipeline", written.pipeline, "--bootstrap", written.bootstrap, *flags]
    assert main.run(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def lsns(lines: str) -> list[int]:
    return [json.loads(line)["commit_lsn"] for line in lines.splitlines()]


def test_the_command_shows_the_newest_and_those_from_a_commit_on(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lsns(asked(written, capsys, "--json")) == [10, 20, 30, 40, 50]
    assert lsns(asked(written, capsys, "--json", "--last", "2")) == [40, 50]
    assert lsns(asked(written, capsys, "--json", "--from", "25")) == [30, 40, 50]
    assert lsns(asked(written, capsys, "--json", "--from", "51")) == []
    table = asked(written, capsys)
    assert "1/0/32" in table
    assert f"{written.topics[1]}/1: 0-0" in table


def test_the_command_says_which_commit_holds_a_record_and_where_a_commit_begins(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = written.topics[0]
    third = written.offsets[2][topic][0]
    told = asked(written, capsys, "--where", f"{topic}/0/{third.last_offset}")
    assert "in commit 1/0/1E" in told
    assert "not a document" in asked(written, capsys, "--where", f"{topic}/0/{third.first_offset - 1}")
    assert "not visible yet" in asked(written, capsys, "--where", f"{topic}/0/999")
    told = asked(written, capsys, "--lsn", "25")
    assert "(0/14, 0/1E]" in told
    assert f"{topic}/0  begins at offset {third.first_offset}" in told


@pytest.mark.full
@pytest.mark.parametrize("form", ["json", "avro"])
def test_the_plain_example_reads_every_transaction_whole(
    written: Written, registry: RegistryServer, form: str
) -> None:
    log = (
        [f"{written.topics[0]}.commits"]
        if form == "json"
        else [f"{written.topics[0]}.commits-avro", registry.url]
    )
    arguments = [sys.executable, str(EXAMPLE), written.bootstrap, *log]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [each["id"] for each in found] == [f"00000001-{n * 10:016X}" for n in range(1, COMMITS + 1)]
    assert {each["removed"] for each in found} == {0}
    one, two = written.topics
    assert [[[d[0], *d[3:]] for d in each["documents"]] for each in found] == [
        [[topic, f"k{n}", f"{n}"] for topic in (one, one, one, two)] for n in range(1, COMMITS + 1)
    ]
    assert "slackwater" not in EXAMPLE.read_text()


def test_a_pipeline_that_nobody_knows_is_named_as_such(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["commits", "--pipeline", "nobody", "--bootstrap", written.bootstrap]) == 1
    assert "no pipeline 'nobody' has written" in capsys.readouterr().err
