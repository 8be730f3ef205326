"""A delivery listener whose calls fail, without servers: nothing that it has read is forgotten."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from slackwater.protocol import ConfigError, KafkaSettings, UnavailableError
from slackwater_lab.probes import At
from slackwater_messaging import DeliveryListener, MessageId, Outbox, SendStep
from slackwater_messaging.message import Place

Refused = UnavailableError


class Record:
    """A record of the topic, or an error that the client reports as one."""

    def __init__(self, number: int, error: KafkaError | None = None, *, outbox: str = "outbox") -> None:
        self._number, self._error, self._outbox = number, error, outbox

    def error(self) -> KafkaError | None:
        return self._error

    def headers(self) -> list[tuple[str, bytes]]:
        return [("slackwater-message", str(MessageId(self._outbox, self._number, 1)).encode())]

    def topic(self) -> str:
        return "paid"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._number

    def timestamp(self) -> tuple[int, int]:
        return 0, 0

    def value(self) -> None:
        return None

    def key(self) -> None:
        return None


class Topic:
    """Hands out portions of records, and notes what has been committed."""

    def __init__(self, *portions: list[Record]) -> None:
        self.portions = list(portions)
        self.commits: list[list[int]] = []
        self.removed: list[int] = []
        self.failures: list[Exception] = []
        self.commit_failures: list[Exception] = []
        self.member: Any = None
        self.assigned: list[int] = []
        self.sent: list[TopicPartition] = []
        """A commit whose answer comes with the next call."""

    def poll(self, _: float) -> Record | None:
        self.member._committed(None, self.sent)  # noqa: SLF001
        return self.portions[0].pop(0) if self.portions else None

    def consume(self, *_: object) -> list[Record]:
        return self.portions.pop(0)

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        if self.commit_failures:
            raise self.commit_failures.pop()
        self.commits.append([part.offset for part in offsets])
        self.sent = offsets

    def assign(self, found: list[TopicPartition]) -> None:
        self.assigned = [part.offset for part in found]

    def committed(self, *_: object, **__: object) -> list[TopicPartition]:
        return [TopicPartition("paid", 0, 7)]

    def remove(self, _: object, ids: Sequence[MessageId]) -> int:
        if self.failures:
            raise self.failures.pop()
        self.removed += [each.id for each in ids]
        return len(ids)


def listening(monkeypatch: pytest.MonkeyPatch, topic: Topic, probe: Any = lambda _: None) -> DeliveryListener:
    kafka, outbox = KafkaSettings("127.0.0.1:1"), Outbox("outbox")
    listener = DeliveryListener("", kafka, outbox, topics=["paid"], group="deliveries", probe=probe)
    topic.member = listener._member  # noqa: SLF001
    topic.member._consumer.close()  # noqa: SLF001
    topic.member.places = (Place("paid", 0),)
    monkeypatch.setattr(topic.member, "_consumer", topic)
    monkeypatch.setattr(listener._connection, "open", lambda: None)  # noqa: SLF001
    monkeypatch.setattr(outbox, "remove", topic.remove)
    return listener


def test_rows_that_could_not_be_removed_are_removed_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic([Record(0), Record(1)], [Record(2)])
    listener = listening(monkeypatch, topic)
    topic.failures.append(psycopg.OperationalError("the database is away"))
    with pytest.raises(psycopg.OperationalError):
        listener.run_once()
    assert (topic.removed, topic.commits) == ([], [])
    assert [listener.run_once() for _ in range(3)] == [2, 1, 0]
    assert topic.commits == [[2], [3]]


def test_rows_of_other_tables_are_read_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of two tables may be equal, and so may the times at which their transactions have begun."""
    topic = Topic([Record(0, outbox="outbox2"), Record(1), Record(2, outbox="shop.outbox")])
    listener = listening(monkeypatch, topic)
    assert (listener.run_once(), topic.removed, topic.commits) == (1, [1], [[3]])


def test_an_error_among_records_forgets_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    topic = Topic([Record(0), Record(1, refused), Record(2)])
    listener = listening(monkeypatch, topic)
    with pytest.raises(Refused, match="group deliveries: reading failed"):
        listener.run_once()
    assert (listener.run_once(), topic.removed, topic.commits) == (2, [0, 2], [[3]])


def test_a_passing_error_among_records_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    away = KafkaError(KafkaError._TRANSPORT)  # noqa: SLF001 - librdkafka's name
    topic = Topic([Record(0, away)], [Record(1), Record(2, away)])
    listener = listening(monkeypatch, topic)
    assert [listener.run_once() for _ in range(2)] == [0, 1]
    assert topic.commits == [[2]]  # nothing to commit after an error alone


def test_a_position_that_could_not_be_committed_is_committed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic([Record(0)], [Record(1)])
    listener = listening(monkeypatch, topic)
    topic.commit_failures.append(KafkaException(KafkaError(KafkaError.NOT_COORDINATOR)))
    assert listener.run_once() == 1
    assert topic.commits == []
    assert [listener.run_once(timedelta(0)) for _ in range(2)] == [1, 0]
    assert topic.commits == [[2]]


def test_a_listener_continues_where_its_group_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic([Record(7)])
    listener = listening(monkeypatch, topic)
    topic.member._assign(topic, [TopicPartition("paid", 0)])  # noqa: SLF001
    assert listener.run_once() == 1
    assert topic.assigned == [7]


def test_a_second_caller_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic([Record(0)], [Record(1)])
    refused: list[str] = []

    def again() -> None:
        with pytest.raises(ConfigError, match="in use by another thread or task") as caught:
            listener.run_once()
        refused.append(str(caught.value))

    listener = listening(monkeypatch, topic, At(SendStep.TAKEN, again))
    assert [listener.run_once() for _ in range(2)] == [1, 1]
    assert len(refused) == 1
