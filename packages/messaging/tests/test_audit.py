"""The comparison of database and topic."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.protocol import ConfigError, KafkaSettings, StateError, SystemClock, epoch_ms
from slackwater_lab.messaging.sending.world import World
from slackwater_messaging import AuditReport, AuditWindow, audit_messages, id_finder

NOW = SystemClock().now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
"""Brokers refuse records from the future."""
HOUR = timedelta(hours=1)
WINDOW = AuditWindow(start=NOW - HOUR, end=NOW)
Pairs = Sequence[tuple[str, datetime]]


class FakeRecord:
    def __init__(
        self, key: bytes | None = None, value: bytes | None = None, at: datetime | None = None
    ) -> None:
        self._key, self._value, self._at = key, value, at

    def timestamp(self) -> tuple[int, int]:
        return 1, epoch_ms(self._at or NOW)

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
    with pytest.raises(ConfigError, match="expected key, header:NAME, or value:FIELD"):
        id_finder(place)


def compared(
    monkeypatch: pytest.MonkeyPatch, committed: Pairs, shown: Pairs, window: AuditWindow = WINDOW
) -> AuditReport:
    """Compares what a database and a topic in memory hold, each with its time."""

    class Database:
        def execute(self, _: object, bounds: dict[str, datetime]) -> list[tuple[str, datetime]]:
            return [row for row in committed if bounds["start"] <= row[1] < bounds["end"]]

    class Reader:
        def since(self, _: object, time_ms: int) -> list[FakeRecord]:
            return [FakeRecord(key.encode(), at=at) for key, at in shown if epoch_ms(at) >= time_ms]

    @contextmanager
    def topic_reader(*_: object) -> Iterator[Reader]:
        yield Reader()

    monkeypatch.setattr("slackwater_messaging.audit.topic_reader", topic_reader)
    database: Any = Database()
    how = {"query": "", "topics": ["paid"], "find_id": id_finder("key"), "window": window}
    return audit_messages(database, KafkaSettings("127.0.0.1:1"), **how)  # type: ignore[arg-type]


NOON, SECOND = NOW - HOUR / 2, timedelta(seconds=1)


def test_only_what_was_committed_in_the_window_can_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"before": NOW - HOUR - SECOND, "first": NOW - HOUR, "last": NOW - SECOND, "after": NOW}
    report = compared(monkeypatch, list(times.items()), [])
    assert (report.committed, report.lost) == (2, ("first", "last"))
    assert not report.is_clean


def test_a_ghost_is_shown_in_the_window_and_was_not_committed_beside_it_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    margin = WINDOW.margin
    committed = [("early", NOW - HOUR - SECOND), ("later", NOW), ("long ago", NOW - HOUR - margin - SECOND)]
    shown = [
        ("early", NOW - HOUR),
        ("later", NOW - SECOND),
        ("ghost", NOON),
        ("ghost", NOON),
        ("long ago", NOON),
        ("before", NOW - HOUR - SECOND),
        ("after", NOW),
    ]
    report = compared(monkeypatch, committed, shown)
    assert (report.ghosts, report.lost, report.repeated) == (("ghost", "long ago"), (), ())


def test_a_message_is_late_by_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    late_after = WINDOW.late_after
    committed = [("in time", NOON), ("late", NOON), ("at the limit", NOON)]
    shown = [
        ("in time", NOON + SECOND),
        ("in time", NOON + 3 * late_after),
        ("late", NOON + 2 * late_after),
        ("late", NOON + 3 * late_after),
        ("at the limit", NOON + late_after),
    ]
    report = compared(monkeypatch, committed, shown)
    assert report.late == (("late", 2 * late_after),)
    assert report.repeated == ("in time", "late")


def test_records_that_are_older_than_their_commit_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By up to the margin: the first message of the window may have been written before it began."""
    first = NOW - HOUR
    report = compared(monkeypatch, [("a", first)], [("a", first - WINDOW.margin)])
    assert report.is_clean
    assert compared(monkeypatch, [("a", first)], [("a", first - WINDOW.margin - SECOND)]).lost == ("a",)


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Any:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    made.connection.execute(f"CREATE TABLE {made.name}_paid (id text, paid_at timestamptz)".encode())
    yield made
    made.connection.close()


def pay(world: World, number: int | str, at: datetime) -> None:
    world.connection.execute(f"INSERT INTO {world.name}_paid VALUES (%s, %s)".encode(), [number, at])  # noqa: S608


def show(world: World, number: int | str, at: datetime) -> None:
    producer = Producer({"bootstrap.servers": world.bootstrap, "enable.idempotence": True})
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
    with pytest.raises(ConfigError, match="expected SELECT id, committed_at"):
        compare(world, query="SELECT 1, now()::timestamp, %(start)s < %(end)s")
    with pytest.raises(ConfigError, match="expected SELECT id, committed_at"):
        compare(world, query="SELECT 1, now()::timestamp WHERE %(start)s < %(end)s")
    with pytest.raises(StateError, match="does not exist"):
        compare(world, topics=[f"{world.name}.nowhere"])


@pytest.mark.integration
def test_long_work_is_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater_messaging.audit._NEWS_EVERY", 2)
    for number in range(5):
        show(world, number, NOW - HOUR / 2)
    news: list[int] = []
    compare(world, progress=news.append)
    assert news == [2, 4]
