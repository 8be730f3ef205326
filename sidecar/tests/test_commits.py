"""The commit records of a source in Avro: pure, and over a real broker with a cut log that tests write."""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from io import BytesIO
from itertools import pairwise
from typing import Any

import fastavro
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer

from slackwater.cuts import CutLog
from slackwater.dev import KafkaBroker
from slackwater.kafka.reader import TopicReader
from slackwater.kafka.topic import LogTopic
from slackwater.protocol import (
    CommittedTransaction,
    ConfigError,
    Cut,
    InputError,
    KafkaSettings,
    RegistrySettings,
    SchemaLanguage,
    Servers,
    SourceTopics,
    StateError,
    UnavailableError,
    commit_id,
    commit_schema,
)
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.topics import make_topics
from slackwater_sidecar import commits
from slackwater_sidecar.commits import SourceCommits, commit_of_cut
from slackwater_sidecar.settings import SidecarSettings

Wait = Callable[[Callable[[], object]], None]
SECONDS = 300.0
TOPICS = SourceTopics("inv")


def cut(lsn: int, previous: int, ends: Mapping[str, tuple[int, ...]], events: int = 0, **other: Any) -> Cut:
    fields: dict[str, Any] = {
        "source": "inv",
        "timeline": 1,
        "lsn": lsn,
        "previous_lsn": previous,
        "commit_ts_ms": 1_000 + lsn,
        "event_count": events,
        "transactions": (CommittedTransaction(lsn, lsn, 1_000 + lsn),),
        "end_offsets": ends,
        "transaction_offset": lsn,
    }
    return Cut(**fields | other)


def ranges(
    of: Cut, before: Cut | None, topics: SourceTopics = TOPICS
) -> dict[tuple[str, int], tuple[int, int]]:
    record, _ = commit_of_cut(of, before, topics)
    return {
        (topic, n): (held.first_offset, held.last_offset)
        for topic, found in record.offsets.items()
        for n, held in found.items()
    }


def test_a_record_begins_where_the_cut_before_ends() -> None:
    first = cut(10, 0, {"inv.s.a": (3, 0)}, 3)
    second = cut(20, 10, {"inv.s.a": (5, 1)}, 6)
    assert ranges(first, None) == {("inv.s.a", 0): (0, 2)}
    assert ranges(second, first) == {("inv.s.a", 0): (3, 4), ("inv.s.a", 1): (0, 0)}
    record, count = commit_of_cut(second, first, TOPICS)
    assert (record.commit_id, record.pipeline, record.commit_ts_ms, count) == (
        commit_id(1, 20),
        "inv",
        1_020,
        3,
    )


def test_partitions_and_topics_that_are_added_begin_at_their_beginning() -> None:
    first = cut(10, 0, {"inv.s.a": (3,)})
    second = cut(20, 10, {"inv.s.a": (3, 2), "inv.s.b": (4,)})
    assert ranges(second, first) == {("inv.s.a", 1): (0, 1), ("inv.s.b", 0): (0, 3)}


def test_a_new_timeline_continues_in_the_topics() -> None:
    first = cut(90, 0, {"inv.s.a": (3,)}, 3)
    second = cut(5, 0, {"inv.s.a": (4,)}, 4, timeline=2)
    assert ranges(second, first) == {("inv.s.a", 0): (3, 3)}


def test_a_cut_that_is_missing_in_between_is_refused() -> None:
    with pytest.raises(StateError, match="no cut between 1/0/A and 1/0/1E"):
        commit_of_cut(cut(30, 20, {}), cut(10, 0, {}), TOPICS)


def test_schemas_have_the_names_that_debezium_gives_them() -> None:
    topics = SourceTopics("inv", {"s.a": "all", "s.b": "all"})
    record, _ = commit_of_cut(cut(10, 0, {"all": (1,), "inv.s.c": (1,)}), None, topics)
    assert record.schemas == {
        "all": ("inv.s.a.Envelope", "inv.s.b.Envelope"),
        "inv.s.c": ("inv.s.c.Envelope",),
    }


@dataclass
class World:
    """A cut log that the test writes, and what readers of the commit topic see."""

    source: str
    settings: SidecarSettings
    registry: RegistryServer
    log: CutLog
    newest: Cut | None = None

    @property
    def topic(self) -> str:
        return f"{self.source}.commits-avro"

    def append(self, count: int = 1) -> None:
        """Appends cuts, each of two change events in one of two partitions."""
        made = []
        for _ in range(count):
            before = self.newest
            lsn = 10 if before is None else before.lsn + 10
            a, b = (0, 0) if before is None else before.end_offsets["t"]
            ends = {"t": (a + 2, b) if lsn % 20 else (a, b + 2)}
            self.newest = cut(lsn, lsn - 10, ends, lsn // 5, source=self.source)
            made.append(self.newest)
        self.log.append(made)

    def records(self) -> list[Any]:
        """As a plain reader sees them, and as one with Confluent's library does."""
        place = (self.topic, 0)
        schema = fastavro.parse_schema(json.loads(commit_schema(SchemaLanguage.AVRO)))
        with TopicReader(self.settings.servers.kafka.client_config, SECONDS) as reader:
            if self.topic not in reader.topics():
                return []
            values = [m.value() or b"" for m in reader.read({place: reader.bounds(place)})]
        found = [fastavro.schemaless_reader(BytesIO(value[5:]), schema, None) for value in values]
        if self.registry.failure is None:
            with SchemaRegistryClient({"url": self.registry.url}) as client:
                deserialise: Any = AvroDeserializer(client)
                assert [deserialise(value, None) for value in values] == found
        return found

    def ids(self) -> list[str]:
        return [each["commit_id"] for each in self.records()]

    def has_all(self) -> bool:
        newest = self.newest
        return newest is not None and self.ids()[-1:] == [commit_id(1, newest.lsn)]

    def check(self) -> None:
        """Each cut has one record, in order, and together they have every offset once."""
        assert self.newest is not None
        found = self.records()
        assert [each["commit_id"] for each in found] == [
            commit_id(1, lsn) for lsn in range(10, self.newest.lsn + 1, 10)
        ]
        assert {each["record_count"] for each in found} == {2}
        spans = [
            (o["partition"], o["min_offset"], o["max_offset"])
            for r in found
            for o in r["topics"][0]["offsets"]
        ]
        for number, end in enumerate(self.newest.end_offsets["t"]):
            own = [(low, high) for n, low, high in spans if n == number]
            assert own[0][0] == 0
            assert own[-1][1] == end - 1
            assert all(high + 1 == low for (_, high), (low, _) in pairwise(own))


@pytest.fixture
def world(kafka_broker: KafkaBroker) -> Iterator[World]:
    source = f"s{uuid.uuid4().hex[:10]}"
    kafka = KafkaSettings(kafka_broker.bootstrap)
    with RegistryServer() as registry:
        servers = Servers(kafka, registry=RegistrySettings(url=registry.url))
        settings = SidecarSettings(source=source, servers=servers, commit_format="avro")
        log = CutLog(source, kafka, timeout=timedelta(seconds=SECONDS))
        log.ensure_topic()
        yield World(source, settings, registry, log)
        log.close()


class Running:
    """The thread of a sidecar."""

    def __init__(self, world: World) -> None:
        self.thread = SourceCommits(world.settings)
        self.thread.start()

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.thread.close()
        self.thread.join(SECONDS)
        if kind is None:
            self.check()

    def check(self) -> None:
        if self.thread.error is not None:
            raise self.thread.error

    def ended(self) -> bool:
        return not self.thread.is_alive()


@pytest.mark.integration
def test_every_cut_has_one_record_whoever_writes_and_however_often_it_begins(
    world: World, wait_until: Wait
) -> None:
    world.append(3)
    for _ in range(2):
        with Running(world):
            world.append(3)
            wait_until(world.has_all)
    world.check()


@pytest.mark.integration
def test_cuts_that_another_sidecar_has_written_again_have_no_second_record(
    world: World, wait_until: Wait
) -> None:
    with Running(world):
        for _ in range(3):
            world.append()
            assert world.newest is not None
            world.log.append([world.newest])
        world.append()
        wait_until(world.has_all)
    world.check()


@pytest.mark.integration
def test_a_sidecar_takes_over_from_one_that_is_gone(
    world: World, wait_until: Wait, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(commits, "PATIENCE", timedelta(seconds=3))
    caplog.set_level("INFO")

    def is_fenced() -> bool:
        world.append()
        wait_until(world.has_all)
        return "another sidecar writes commit records" in caplog.text

    with Running(world):
        world.append()
        wait_until(world.has_all)
        with Running(world):
            wait_until(is_fenced)
        world.append()
        wait_until(world.has_all)
    world.check()


class LostAnswer(commits._Writer):  # noqa: SLF001 - what a crash leaves
    """The broker commits, and the answer is lost; then the request is lost."""

    commits = 0

    def commit(self) -> None:
        LostAnswer.commits += 1
        if LostAnswer.commits == 2:
            raise UnavailableError("the request was lost", "")
        super().commit()
        if LostAnswer.commits == 1:
            raise UnavailableError("the answer was lost", "")


@pytest.mark.integration
def test_a_commit_whose_outcome_is_unknown_is_looked_up(
    world: World, wait_until: Wait, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LostAnswer, "commits", 0)
    monkeypatch.setattr(commits, "_Writer", LostAnswer)
    world.append()
    with Running(world):
        wait_until(lambda: LostAnswer.commits == 1)
        world.append()
        wait_until(world.has_all)
    world.check()
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        f"commit records are not written: the {what} was lost" for what in ("answer", "request")
    ]


@pytest.mark.integration
def test_without_looking_where_the_topic_ends_records_are_repeated(
    world: World, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(2)
    with Running(world):
        wait_until(world.has_all)
    monkeypatch.setattr(commits, "_resumed", lambda *_: None)
    with Running(world):
        wait_until(lambda: len(world.ids()) > 2)
    assert len(world.ids()) == 4, "the tests of repeats cannot fail"


@pytest.mark.integration
def test_a_registry_that_is_away_is_waited_for_and_named(world: World, wait_until: Wait) -> None:
    world.registry.failure = 503
    world.append()
    with Running(world) as running:
        wait_until(lambda: running.thread.trouble)
        assert f"{world.topic}-value" in running.thread.trouble
        assert "HTTP 503" in running.thread.trouble
        world.registry.failure = None
        wait_until(world.has_all)
        world.registry.failure = 503
        world.append()
        wait_until(lambda: len(world.ids()) == 2)
        assert running.thread.trouble == ""
    world.check()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [(403, ConfigError, "HTTP 403"), (None, InputError, "not compatible.*a field")],
)
def test_a_registry_that_refuses_ends_the_source(
    world: World, wait_until: Wait, status: int | None, kind: type[Exception], told: str
) -> None:
    world.registry.failure = status
    world.registry.incompatible[f"{world.topic}-value"] = "a field is missing"
    running = Running(world)
    wait_until(running.ended)
    with pytest.raises(kind, match=told):
        running.check()
    assert (
        world.topic not in AdminClient(dict(world.settings.servers.kafka.client_config)).list_topics().topics
    )


@pytest.mark.integration
def test_a_commit_topic_that_was_deleted_is_written_again(world: World, wait_until: Wait) -> None:
    world.append(3)
    with Running(world):
        wait_until(world.has_all)
    admin = AdminClient(dict(world.settings.servers.kafka.client_config))
    admin.delete_topics([world.topic])[world.topic].result(SECONDS)
    wait_until(lambda: not world.records())
    with Running(world):
        wait_until(world.has_all)
    world.check()


@pytest.mark.integration
def test_a_record_that_no_sidecar_has_written_is_refused(world: World, wait_until: Wait) -> None:
    make_topics(world.settings.servers.kafka.bootstrap, [world.topic], 1)
    other = LogTopic(world.topic, world.settings.servers.kafka.client_config, SECONDS, reading={}, writing={})
    other.write("test", [(None, b"something else")])
    other.close()
    running = Running(world)
    wait_until(running.ended)
    with pytest.raises(StateError, match="the newest record, at offset 0, is not of a cut"):
        running.check()


@pytest.mark.integration
def test_a_cut_log_that_is_another_one_is_refused(world: World, wait_until: Wait) -> None:
    world.append(2)
    with Running(world):
        wait_until(world.has_all)
    admin, name = (
        AdminClient(dict(world.settings.servers.kafka.client_config)),
        f"{world.source}.slackwater.cuts",
    )
    admin.delete_topics([name])[name].result(SECONDS)
    wait_until(lambda: name not in admin.list_topics().topics)
    world.log.close()
    world.log = CutLog(world.source, world.settings.servers.kafka, timeout=timedelta(seconds=SECONDS))
    world.log.ensure_topic()
    world.log.append([replace(world.newest or cut(1, 0, {}), lsn=lsn) for lsn in (97, 98)])
    running = Running(world)
    wait_until(running.ended)
    with pytest.raises(StateError, match="is not of a cut of the log"):
        running.check()


def test_without_a_registry_the_setting_is_named() -> None:
    settings = SidecarSettings(
        source="inv", servers=Servers(KafkaSettings("nowhere:1")), commit_format="avro"
    )
    thread = SourceCommits(settings)
    thread.run()
    assert isinstance(thread.error, ConfigError)
    assert re.search(r"inv\.commits-avro.*registry\.url", str(thread.error))
