"""``slackwater transactions`` over a real broker: what holds readers back is named; what is ours, ended."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer

from slackwater.cli import main
from slackwater.cli.commands.commits import find_open_transactions
from slackwater.dev import KafkaBroker
from slackwater.protocol import KafkaSettings, ProgressRecord, TopicState, encode_progress_record
from slackwater_lab.topics import make_topics

pytestmark = pytest.mark.integration
SECONDS = 120


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One that has committed a batch; its run holds the transaction of the next one open."""

    bootstrap: str
    name: str
    run: Producer

    @property
    def topics(self) -> tuple[str, str, str]:
        return f"{self.name}.out", f"{self.name}.out.commits", f"{self.name}.slackwater.progress"

    def command(self, *words: str) -> list[str]:
        return ["transactions", *words, "--pipeline", self.name, "--bootstrap", self.bootstrap]

    def write(self, producer: Producer, headers: list[tuple[str, str | bytes | None]]) -> None:
        """Two documents of one partition, in the open transaction."""
        for _ in range(2):
            producer.produce(self.topics[0], b"{}", b"k", 1, headers=headers)
        assert producer.flush(SECONDS) == 0


def producer(bootstrap: str, transactional_id: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    made.init_transactions(SECONDS)
    return made


@pytest.fixture
def pipeline(kafka_broker: KafkaBroker) -> Iterator[Pipeline]:
    name = f"p{uuid.uuid4().hex[:10]}"
    run = producer(kafka_broker.bootstrap, f"slackwater-{name}")
    made = Pipeline(kafka_broker.bootstrap, name, run)
    out, commits, progress = made.topics
    make_topics(kafka_broker.bootstrap, [out], 2)
    make_topics(kafka_broker.bootstrap, [commits, progress], 1)
    record = ProgressRecord(
        pipeline=name,
        query_id="q",
        batch_id=0,
        source="s",
        timeline=1,
        commit_lsn=10,
        topics={topic: TopicState("", (0,), (0,)) for topic in (out, commits)},
    )
    run.begin_transaction()
    run.produce(progress, encode_progress_record(record), name.encode())
    run.commit_transaction(SECONDS)
    run.begin_transaction()
    made.write(run, [("slackwater-pipeline", name.encode())])
    run.produce(progress, encode_progress_record(record), name.encode())
    assert run.flush(SECONDS) == 0
    yield made
    run.purge()


def test_what_holds_readers_back_is_shown_with_its_writer(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(pipeline.command("list", "--json")) == 1
    found = {each["topic"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    out, _, progress = pipeline.topics
    assert set(found) == {out, progress}
    assert {each["pipeline"] for each in found.values()} == {pipeline.name}
    assert (found[out]["partition"], found[out]["stable"], found[out]["lag"]) == (1, 0, 2)
    assert (found[progress]["stable"], found[progress]["lag"]) == (2, 1)
    assert main.run(pipeline.command("list")) == 1
    shown = capsys.readouterr().out
    assert f"{out}/1" in shown
    assert f"pipeline {pipeline.name}" in shown


@pytest.mark.full
def test_the_transaction_of_a_run_that_is_gone_is_aborted(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(pipeline.command("abort")) == 0
    assert "readers see everything that was committed" in capsys.readouterr().out
    assert find_open_transactions(KafkaSettings(pipeline.bootstrap), pipeline.topics) == []
    assert main.run(pipeline.command("list")) == 0


@pytest.mark.full
def test_the_transaction_of_somebody_else_is_named_and_left_alone(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    other = producer(pipeline.bootstrap, f"other-{pipeline.name}")
    other.begin_transaction()
    pipeline.write(other, [])
    assert main.run(pipeline.command("abort")) == 1
    said = capsys.readouterr()
    assert "a producer that is not a pipeline" in said.out
    assert (
        f"open transactions that were not started by pipeline '{pipeline.name}': {pipeline.topics[0]}/1"
    ) in said.err
    assert "kafka-transactions.sh" in said.err
    other.commit_transaction(SECONDS)
    assert main.run(pipeline.command("list")) == 0


def test_a_pipeline_that_nobody_knows_is_refused(
    kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["transactions", "list", "--pipeline", "x", "--bootstrap", kafka_broker.bootstrap]) == 1
    assert "no pipeline 'x' has written to this Kafka" in capsys.readouterr().err
