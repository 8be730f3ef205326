"""The comparison of database and topic."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.protocol import SystemClock, epoch_ms
from slackwater_lab.messaging.sending.world import World
from slackwater_messaging import (
    AuditReport,
    AuditWindow,
    MessagingConfigError,
    MessagingStateError,
    audit_messages,
    id_finder,
)

NOW = SystemClock().now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
"""Brokers refuse records from the future."""
HOUR = timedelta(hours=1)
WINDOW = AuditWindow(start=NOW - HOUR, end=NOW)


class FakeRecord:
    def __init__(self, key: bytes | None = None, value: bytes | None = None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        return [("id", b"7")]


@pytest.mark.parametrize(
    ("place", "record", "expected"),
    [
        ("key", FakeRecord(key=b"7"), "7"),
        ("key", FakeRecord(key=b"\xff"), None),
        ("key", FakeRecord(), None),
        ("header:id", FakeRecord(), "7"),
        ("header:other", FakeRecord(), None),
        ("value:id", FakeRecord(value=b'{"id": 7}'), "7"),
        ("value:order.id", FakeRecord(value=b'{"order": {"id": "a"}}'), "a"),
        ("value:order.id", FakeRecord(value=b'{"order": 1}'), None),
        ("value:id", FakeRecord(value=b'{"id": {}}'), None),
        ("value:id", FakeRecord(value=b"text"), None),
        ("value:id", FakeRecord(), None),
    ],
)
def test_an_id_is_found_where_it_is_said_to_be(place: str, record: Any, expected: str | None) -> None:
    assert id_finder(place)(record) == expected


@pytest.mark.parametrize("place", ["", "value", "header:", "offset"])
def test_another_place_is_refused(place: str) -> None:
    with pytest.raises(MessagingConfigError, match="expected key, header:NAME, or value:FIELD"):
        id_finder(place)


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Any:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    made.connection.execute(f"CREATE TABLE {made.name}_paid (id text, paid_at timestamptz)".encode())
    yield made
    made.connection.close()


def pay(world: World, number: int | str, at: datetime) -> None:
    world.connection.execute(f"INSERT INTO {world.name}_paid VALUES (%s, %s)".encode(), [number, at])  # noqa: S608


def show(world: World, number: int | str, at: datetime) -> None:
    producer = Producer({"bootstrap.servers": world.bootstrap})
    producer.produce(world.topic, b"", str(number).encode(), timestamp=epoch_ms(at))
    assert producer.flush(60) == 0


def compare(world: World, **options: Any) -> AuditReport:
    query = f"SELECT id, paid_at FROM {world.name}_paid WHERE paid_at >= %(start)s AND paid_at < %(end)s"  # noqa: S608
    how = {"query": query, "topics": [world.topic], "find_id": id_finder("key"), "window": WINDOW, **options}
    return audit_messages(world.connection, world.kafka, **how)


@pytest.mark.integration
def test_lost_repeated_late_messages_and_ghosts_are_told_apart(world: World) -> None:
    noon = NOW - HOUR / 2
    for number, shown in {"fine": [1], "lost": [], "twice": [1, 2], "late": [90, 100]}.items():
        pay(world, number, noon)
        for seconds in shown:
            show(world, number, noon + timedelta(seconds=seconds))
    show(world, "ghost", noon)
    report = compare(world)
    assert report == AuditReport(
        committed=4,
        lost=("lost",),
        repeated=("twice", "late"),
        ghosts=("ghost",),
        late=(("late", timedelta(seconds=90)),),
    )
    assert not report.is_clean


@pytest.mark.integration
def test_what_lies_beside_the_window_counts_neither_as_lost_nor_as_a_ghost(world: World) -> None:
    second = timedelta(seconds=1)
    for number, at in {"before": NOW - HOUR - second, "first": NOW - HOUR, "after": NOW}.items():
        pay(world, number, at)
    show(world, "before", NOW - HOUR + second)  # committed before the window, shown in it
    show(world, "first", NOW - HOUR - second)  # the clocks differ
    show(world, "ghost before", NOW - HOUR - second)
    show(world, "ghost after", NOW)
    report = compare(world)
    assert (report.committed, report.is_clean) == (1, True)
    later = compare(world, window=AuditWindow(start=NOW, end=NOW + HOUR))
    assert (later.lost, later.ghosts) == (("after",), ("ghost after",))


@pytest.mark.integration
def test_a_query_or_a_topic_that_cannot_be_compared_is_refused(world: World) -> None:
    with pytest.raises(MessagingConfigError, match="expected SELECT id, committed_at"):
        compare(world, query="SELECT 1, now()::timestamp, %(start)s < %(end)s")
    with pytest.raises(MessagingConfigError, match="expected SELECT id, committed_at"):
        compare(world, query="SELECT 1, now()::timestamp WHERE %(start)s < %(end)s")
    with pytest.raises(MessagingStateError, match="does not exist"):
        compare(world, topics=[f"{world.name}.nowhere"])


@pytest.mark.integration
def test_long_work_is_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater_messaging.audit._NEWS_EVERY", 2)
    for number in range(5):
        show(world, number, NOW - HOUR / 2)
    news: list[int] = []
    compare(world, progress=news.append)
    assert news == [2, 4]
