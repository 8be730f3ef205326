"""A member of a group, without a broker."""

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from slackwater.protocol import KafkaSettings, StateError, SystemClock, UnavailableError
from slackwater_messaging.message import Place
from slackwater_messaging.reading import GroupMember
from slackwater_messaging.receiving import ReceivedMessage

PATIENCE = timedelta(minutes=5)


class ManualClock(SystemClock):
    """Moves only when a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Commits:
    """Takes offsets as a consumer does, and answers when a test lets it."""

    def __init__(self) -> None:
        self.sent: list[list[TopicPartition]] = []

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        self.sent.append(offsets)

    @property
    def offsets(self) -> list[int]:
        return [part.offset for parts in self.sent for part in parts]


def process(member: GroupMember, offset: int) -> None:
    member.batch = [ReceivedMessage(topic="orders", partition=0, offset=offset, value=b"")]
    member.done()
    member.commit()


def test_offsets_wait_for_those_that_are_on_their_way(monkeypatch: Any) -> None:
    """Two requests at once may arrive in any order when a broker has been away; the older one would count."""
    kafka = KafkaSettings("127.0.0.1:1")
    member = GroupMember(
        kafka, ["orders"], "group", latest=False, patience=PATIENCE, on_revoke=lambda places: None
    )
    real, commits = member._consumer, Commits()  # noqa: SLF001
    monkeypatch.setattr(member, "_consumer", commits)
    member.places = (Place("orders", 0),)
    for offset in (4, 9, 19):
        process(member, offset)
    assert commits.offsets == [5]
    failed = KafkaError(KafkaError.NOT_COORDINATOR)
    member._committed(failed, commits.sent[0])  # noqa: SLF001
    member.commit()
    assert commits.offsets == [5, 20]
    member._committed(None, commits.sent[1])  # noqa: SLF001
    member.commit()
    assert commits.offsets == [5, 20]
    real.close()


class Portion:
    """A consumer that hands out messages 0 to 4 at once, with an error in the middle."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error
        self.is_read = False

    def poll(self, _: float) -> Any:
        return None if self.is_read else Fetched(0)

    def consume(self, *_: object) -> list[Any]:
        self.is_read = True
        return [Fetched(1), Fetched(2, self._error), Fetched(2), Fetched(3), Fetched(4)]


class Fetched:
    """A message of Kafka's client, or an error in the place of one."""

    def __init__(self, offset: int, error: KafkaError | None = None, partition: int = 0) -> None:
        self._offset, self._error, self._partition = offset, error, partition

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self._partition

    def timestamp(self) -> tuple[int, int]:
        return 0, 0

    def value(self) -> bytes:
        return b""

    def key(self) -> None:
        return None

    def headers(self) -> None:
        return None


def test_an_error_in_the_middle_of_a_portion_drops_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer's position is behind all of them: a later commit would cover what was dropped."""
    kafka = KafkaSettings("127.0.0.1:1")
    member = GroupMember(
        kafka, ["orders"], "group", latest=False, patience=PATIENCE, on_revoke=lambda places: None
    )
    real = member._consumer  # noqa: SLF001
    monkeypatch.setattr(member, "_consumer", Portion(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
    member.places = (Place("orders", 0),)
    with pytest.raises(UnavailableError, match="reading failed"):
        member.read(10, 0)
    member.read(10, 0)
    assert [each.offset for each in member.batch] == [0, 1, 2, 3, 4]
    real.close()


ZERO, ONE = Place("orders", 0), Place("orders", 1)


def parts(*found: tuple[int, int]) -> list[TopicPartition]:
    return [TopicPartition("orders", partition, offset) for partition, offset in found]


class Consumer:
    """Notes what is asked of a consumer, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[tuple[int, int]]]] = []
        self.stored: list[TopicPartition] = []
        self.waiting: list[Any] = []
        self.sync_error: KafkaException | None = None

    def _note(self, what: str, found: list[TopicPartition]) -> None:
        self.calls.append((what, [(part.partition, part.offset) for part in found]))

    def assign(self, found: list[TopicPartition]) -> None:
        self._note("assign", found)

    def pause(self, found: list[TopicPartition]) -> None:
        self._note("pause", found)

    def resume(self, found: list[TopicPartition]) -> None:
        self._note("resume", found)

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self._note("commit later" if asynchronous else "commit", offsets)
        if self.sync_error is not None and not asynchronous:
            raise self.sync_error

    def committed(self, _: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return self.stored

    def poll(self, _: float) -> Any:
        self.calls.append(("poll", []))
        return self.waiting.pop(0) if self.waiting else None

    def consume(self, *_: object) -> list[Any]:
        found, self.waiting = self.waiting, []
        return found


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def member(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupMember]:
    """A member that both partitions were assigned to."""

    def note(places: Any) -> None:
        consumer.calls.append(("given", [(place.partition, 0) for place in places]))

    made = GroupMember(
        KafkaSettings("127.0.0.1:1"), ["orders"], "group", latest=False, patience=PATIENCE, on_revoke=note
    )
    real = made._consumer  # noqa: SLF001
    monkeypatch.setattr(made, "_consumer", consumer)
    made._assign(consumer, parts((0, 0), (1, 0)))  # type: ignore[arg-type] # noqa: SLF001
    yield made
    real.close()


def offsets(member: GroupMember) -> list[tuple[int, int]]:
    return [(each.partition, each.offset) for each in member.batch]


def fetch(member: GroupMember, consumer: Consumer, *found: tuple[int, int]) -> None:
    consumer.waiting = [Fetched(offset, partition=partition) for partition, offset in found]
    member.read(10, 0)


def test_nothing_is_read_between_an_assignment_and_the_beginning(
    member: GroupMember, consumer: Consumer
) -> None:
    assert (consumer.calls, member.is_begun, member.places) == ([("assign", [])], False, (ZERO, ONE))
    fetch(member, consumer, (0, 7))
    assert offsets(member) == []


def test_an_inbox_s_own_position_counts_more_than_the_group_s(
    member: GroupMember, consumer: Consumer
) -> None:
    consumer.stored = parts((0, 5), (1, 6))
    member.begin({ZERO: 3})
    assert consumer.calls[-1] == ("assign", [(0, 3), (1, 6)])
    assert member.is_begun
    consumer.stored = parts((0, 5), (1, -1001))
    member.begin({})
    assert consumer.calls[-1] == ("assign", [(0, 5), (1, OFFSET_BEGINNING)])


def test_an_offset_that_is_not_known_begins_nothing(member: GroupMember, consumer: Consumer) -> None:
    broken: Any = SimpleNamespace(error=KafkaError(KafkaError.NOT_COORDINATOR))
    consumer.stored = [broken]
    with pytest.raises(KafkaException):
        member.begin({})
    assert not member.is_begun


def test_a_revoked_partition_is_given_away_after_what_is_done_was_committed(
    member: GroupMember, consumer: Consumer
) -> None:
    member.begin({})
    fetch(member, consumer, (0, 4), (1, 8))
    member.done()
    fetch(member, consumer, (0, 5), (1, 9))
    consumer.calls.clear()
    member._revoke(consumer, parts((0, 0)))  # type: ignore[arg-type] # noqa: SLF001
    assert consumer.calls == [("given", [(0, 0)]), ("commit", [(0, 5), (1, 9)])]
    assert (member.places, offsets(member)) == ((ONE,), [(1, 9)])
    fetch(member, consumer)
    member.batch = []
    fetch(member, consumer, (0, 6), (1, 10))
    assert offsets(member) == [(1, 10)]


def test_offsets_that_could_not_be_committed_on_the_way_out_are_kept_for_what_remains(
    member: GroupMember, consumer: Consumer
) -> None:
    member.begin({})
    fetch(member, consumer, (0, 4), (1, 8))
    member.done()
    consumer.sync_error = KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
    member._revoke(consumer, parts((0, 0)))  # type: ignore[arg-type] # noqa: SLF001
    consumer.calls.clear()
    member.commit()
    assert consumer.calls == [("commit later", [(1, 9)])]


def test_of_lost_partitions_nothing_is_committed(member: GroupMember, consumer: Consumer) -> None:
    member.begin({})
    fetch(member, consumer, (0, 4), (1, 8))
    member.done()
    consumer.calls.clear()
    member._lose(consumer, parts((0, 0)))  # type: ignore[arg-type] # noqa: SLF001
    member.commit()
    assert consumer.calls == [("commit later", [(1, 9)])]


def test_a_failed_commit_does_not_take_a_newer_offset_back(member: GroupMember, consumer: Consumer) -> None:
    member.begin({})
    for offset in (4, 5):
        fetch(member, consumer, (0, offset))
        member.done()
        member.commit()
    member._committed(KafkaError(KafkaError.NOT_COORDINATOR), parts((0, 5)))  # noqa: SLF001
    consumer.calls.clear()
    member.commit()
    assert consumer.calls == [("commit later", [(0, 6)])]
    member._lose(consumer, parts((0, 0)))  # type: ignore[arg-type] # noqa: SLF001
    member._committed(KafkaError(KafkaError.NOT_COORDINATOR), parts((0, 6)))  # noqa: SLF001
    member.commit()
    assert len(consumer.calls) == 1


def test_a_batch_is_kept_until_it_is_done(member: GroupMember, consumer: Consumer) -> None:
    member.begin({})
    fetch(member, consumer, (0, 4), (0, 5))
    consumer.calls.clear()
    fetch(member, consumer, (0, 6))
    assert (offsets(member), consumer.calls) == ([(0, 4), (0, 5)], [])
    member.drop_below({ZERO: 5})
    assert offsets(member) == [(0, 5)]


def test_a_member_that_waits_reads_nothing_and_resumes_what_it_still_has(
    member: GroupMember, consumer: Consumer
) -> None:
    member.begin({})
    consumer.waiting = [Fetched(4)]
    consumer.calls.clear()
    member.wait(0)
    assert [what for what, _ in consumer.calls] == ["pause", "poll", "resume"]
    assert [part for part, _ in consumer.calls[0][1]] == [0, 1]
    assert offsets(member) == [(0, 4)]  # it was on its way already
    member._lose(consumer, parts((0, 0)))  # type: ignore[arg-type] # noqa: SLF001
    member.wait(0)
    assert [part for part, _ in consumer.calls[-1][1]] == [1]


def test_failures_end_after_the_patience_and_successes_in_between_begin_it_again(
    member: GroupMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(member._processing, "_clock", clock)  # noqa: SLF001
    away = psycopg.OperationalError("away")
    for _ in range(4):
        member.wait_after(away)
        clock.seconds += 299
        member.succeeded()
    member.wait_after(away)
    clock.seconds += 299
    member.wait_after(away)
    clock.seconds += 1
    with pytest.raises(UnavailableError, match="group: tried for 300 s: away") as caught:
        member.wait_after(away)
    assert caught.value.__cause__ is away


def test_a_broker_that_is_away_is_logged_once(
    member: GroupMember, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    member.begin({})
    consumer.waiting = [Fetched(0, KafkaError(KafkaError._ALL_BROKERS_DOWN)) for _ in range(10)]  # noqa: SLF001
    member.read(10, 0)
    (line,) = (each.getMessage() for each in caplog.records)
    assert line.startswith("group group: Kafka: ")
    assert line.endswith("; trying again")


def test_a_position_that_is_no_longer_in_kafka_is_named(member: GroupMember, consumer: Consumer) -> None:
    member.begin({})
    consumer.waiting = [Fetched(0, KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))]
    with pytest.raises(StateError, match="is no longer in Kafka"):
        member.read(10, 0)


class Client(Consumer):
    """A consumer that a member creates for itself; it notes its calls, and calls what it is given."""

    def __init__(self, config: dict[str, Any], **_: object) -> None:
        super().__init__()
        self.config = config
        self.told: dict[str, Any] = {}

    def subscribe(self, topics: list[str], **told: Any) -> None:
        self.told = told


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> tuple[GroupMember, Client]:
    """A member over its own consumer, whose user has tried to change what the member relies on."""
    monkeypatch.setattr("slackwater_messaging.reading.Consumer", Client)
    wishes = {
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": "true",
        "auto.offset.reset": "latest",
    }
    kafka = KafkaSettings("127.0.0.1:1", wishes)
    member = GroupMember(
        kafka,
        ["orders"],
        "group",
        latest=True,
        patience=PATIENCE,
        on_revoke=lambda places: given.extend(places),
    )
    given: list[Place] = []
    made: Any = member._consumer  # noqa: SLF001
    made.told["on_assign"](made, parts((0, 0), (1, 0)))
    made.told["given"] = given
    return member, made


def test_a_member_reads_committed_messages_alone_and_nobody_else_decides_about_offsets(
    client: tuple[GroupMember, Client],
) -> None:
    config = client[1].config
    assert config["isolation.level"] == "read_committed"
    assert config["enable.auto.commit"] is False
    assert config["auto.offset.reset"] == "error"
    client[0].begin({})
    assert client[1].calls[-1] == ("assign", [(0, OFFSET_END), (1, OFFSET_END)])


def test_lost_partitions_are_neither_given_away_nor_committed(client: tuple[GroupMember, Client]) -> None:
    """The group has removed the member; somebody else may have processed more of them already."""
    member, consumer = client
    member.begin({})
    fetch(member, consumer, (0, 4), (1, 8))
    member.done()
    consumer.calls.clear()
    consumer.told["on_lost"](consumer, parts((0, 0)))
    assert (consumer.calls, consumer.told["given"], member.places) == ([], [], (ONE,))
    member.commit()
    assert consumer.calls == [("commit later", [(1, 9)])]


def test_the_answer_to_a_commit_reaches_the_member(client: tuple[GroupMember, Client]) -> None:
    member, consumer = client
    member.begin({})
    fetch(member, consumer, (0, 4))
    member.done()
    member.commit()
    consumer.config["on_commit"](KafkaError(KafkaError.NOT_COORDINATOR), parts((0, 5)))
    consumer.calls.clear()
    member.commit()
    assert consumer.calls == [("commit later", [(0, 5)])]
