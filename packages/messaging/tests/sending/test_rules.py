"""The rules of every way of sending, one at a time and without servers."""

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from slackwater.protocol import (
    ConfigError,
    KafkaSettings,
    SlackwaterError,
    StateError,
    SystemClock,
    UnavailableError,
    epoch_ms,
)
from slackwater_messaging import (
    HEADER_MESSAGE,
    CapturedOutbox,
    ChainedSender,
    CommitOrder,
    HalfCommittedError,
    Message,
    MessageId,
    Outbox,
    PollingRelay,
    PreparedSender,
    ProvenSender,
    Recovery,
    SavedMessage,
    SavedSender,
    SenderPool,
    SenderSettings,
    find_prepared,
)
from slackwater_messaging.committing import finish
from slackwater_messaging.sender import Sender, SendingTransaction

KAFKA = KafkaSettings("127.0.0.1:1", {"log_level": "0"})
AWAY = UnavailableError("away")
IDLE, OPEN, FAILED = TransactionStatus.IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR
HOUR = timedelta(hours=1)


def message(value: str, topic: str = "paid") -> Message:
    return Message(topic=topic, key=b"k", value=value.encode())


class Database:
    """A connection of psycopg as far as senders use it. COMMIT of a failed transaction raises no error."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.status, self.autocommit = log, IDLE, False
        self.isolation_level = self.read_only = self.deferrable = None
        self.commit_error: Exception | None = None
        self.prepared = "PREPARE TRANSACTION"

    @property
    def info(self) -> Any:
        return SimpleNamespace(transaction_status=self.status)

    def execute(self, query: Any, *_: object) -> Any:
        text = query.decode() if isinstance(query, bytes) else query.as_string(None)
        self.log.append(text.partition(" '")[0])
        self.status = OPEN if text == "BEGIN" else IDLE
        return SimpleNamespace(statusmessage=self.prepared)

    def commit(self) -> None:
        self.log.append("commit database")
        self.status = IDLE
        if self.commit_error is not None:
            raise self.commit_error

    def rollback(self) -> None:
        self.log.append("rollback")
        self.status = IDLE


class Kafka:
    """The Kafka side of a sender, which notes what is sent. Calls fail as long as they are in `failing`."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.kafka, self.settings = log, KAFKA, SenderSettings()
        self.failing: dict[str, SlackwaterError] = {}

    def _note(self, name: str) -> None:
        self.log.append(name)
        if name in self.failing:
            raise self.failing[name]

    def write(self, messages: Any) -> None:
        self._note(" ".join(["write", *((each.value or b"").decode() for each, _ in messages)]))

    def open(self) -> None:
        self._note("open")

    def commit(self) -> None:
        self._note("commit")

    def abort(self) -> None:
        self._note("abort")

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def database(log: list[str]) -> Any:
    return Database(log)


@pytest.fixture
def kafka(log: list[str]) -> Kafka:
    return Kafka(log)


def over(kafka: Kafka, sender: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sender, "_producer", kafka)
    return sender


# --- one commit after the other


@pytest.fixture(params=CommitOrder)
def chained(request: Any, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Any:
    return over(kafka, ChainedSender(KAFKA, "shop-1", order=request.param), monkeypatch)


def test_a_failed_statement_that_the_service_hides_is_committed_by_neither_side(
    chained: ChainedSender, database: Any, log: list[str]
) -> None:
    refused = pytest.raises(StateError, match="has failed or was ended")
    with refused, chained.transaction(database) as sending:
        sending.send(message("1"))
        database.status = FAILED
    assert log == ["BEGIN", "rollback", "abort"]


@pytest.mark.parametrize("status", [OPEN, FAILED])
def test_a_transaction_that_is_open_already_is_refused_before_anything_happens(
    chained: ChainedSender, database: Any, log: list[str], status: TransactionStatus
) -> None:
    database.status = status
    refused = pytest.raises(ConfigError, match="already has an open transaction")
    with refused, chained.transaction(database):
        pass
    assert log == []


def test_a_database_that_does_not_commit_ends_the_kafka_transaction_unless_that_was_committed(
    kafka: Kafka, database: Any, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database.commit_error = psycopg.errors.ForeignKeyViolation("deferred")
    for order, error, end in (
        (CommitOrder.DATABASE_FIRST, psycopg.errors.ForeignKeyViolation, ["commit database", "abort"]),
        (CommitOrder.KAFKA_FIRST, HalfCommittedError, ["commit", "commit database"]),
    ):
        sender = over(kafka, ChainedSender(KAFKA, "shop-1", order=order), monkeypatch)
        with pytest.raises(error), sender.transaction(database) as sending:
            sending.send(message("1"))
        assert log[-2:] == end


# --- saved messages


class Table(Outbox):
    """An outbox in memory, in which another process with the same name may leave rows."""

    def __init__(self) -> None:
        super().__init__("outbox")
        self.rows: list[SavedMessage] = []

    def read(self, connection: object, sender: str) -> list[SavedMessage]:
        return list(self.rows)

    def save(self, connection: object, messages: Sequence[Message], sender: str) -> list[SavedMessage]:
        first = len(self.rows)
        saved = [SavedMessage(MessageId("outbox", first + n, 7), each) for n, each in enumerate(messages)]
        self.rows += saved
        return saved

    def remove_own(self, connection: object, ids: Sequence[MessageId], sender: str) -> bool:
        self.rows = [each for each in self.rows if each.id not in ids]
        return bool(self.rows)


class Still(SystemClock):
    """A monotonic clock that a test sets, also back."""

    at = 1_000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, MessageId]]:
    """What the topics hold: the time of each record and the message that it names."""
    held: list[tuple[int, MessageId]] = []

    class Reader:
        def since(self, _: object, time_ms: int) -> Iterator[Any]:
            for at, each in held:
                if at >= time_ms:
                    yield SimpleNamespace(headers=lambda each=each: [(HEADER_MESSAGE, str(each).encode())])

    @contextmanager
    def topic_reader(*_: object) -> Iterator[Reader]:
        yield Reader()

    monkeypatch.setattr("slackwater_messaging.saved.topic_reader", topic_reader)
    return held


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def clock() -> Still:
    return Still()


@pytest.fixture
def saved(
    table: Table, clock: Still, reader: object, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> SavedSender:
    return over(kafka, SavedSender(KAFKA, table, "shop-1", clock=clock), monkeypatch)  # type: ignore[no-any-return]


def send(sender: Any, database: Any, *values: str) -> None:
    with sender.transaction(database) as sending:
        sending.send(*map(message, values))


@pytest.mark.parametrize("call", ["open", "write 0", "commit"])
def test_messages_do_not_overtake_those_that_wait_for_kafka(
    saved: SavedSender, table: Table, kafka: Kafka, clock: Still, database: Any, log: list[str], call: str
) -> None:
    kafka.failing[call] = AWAY
    send(saved, database, "0")
    kafka.failing.clear()
    log.clear()
    send(saved, database, "1")
    send(saved, database, "2")
    assert log == ["BEGIN", "commit database"] * 2
    assert [each.message.value for each in table.rows] == [b"0", b"1", b"2"]
    clock.at += SenderSettings().retry_after.total_seconds()
    send(saved, database, "3")
    assert [entry for entry in log if entry.startswith("write")] == ["write 0 1 2", "write 3"]
    assert table.rows == []


def test_recovery_looks_further_back_than_its_oldest_message_because_clocks_differ(
    saved: SavedSender, table: Table, reader: list[tuple[int, MessageId]], database: Any, log: list[str]
) -> None:
    created = datetime(2026, 1, 5, 12, tzinfo=UTC)
    late, early = (
        SavedMessage(MessageId("outbox", number, epoch_ms(created + after) * 1_000), message(str(number)))
        for number, after in enumerate((HOUR, timedelta(0)))
    )
    table.rows = [late, early]
    margin = SenderSettings().clock_margin
    reader += [(epoch_ms(created - margin), early.id), (epoch_ms(created + HOUR - margin), late.id)]
    assert saved.recover(database) == Recovery(2, 0)
    assert log == ["open"]
    assert table.rows == []


def test_rows_that_an_overtaken_process_has_left_are_sent_by_the_next_transaction(
    saved: SavedSender, table: Table, kafka: Kafka, database: Any, log: list[str]
) -> None:
    send(saved, database, "0")
    table.save(database, [message("late")], "shop-1")
    send(saved, database, "1")
    assert (saved.is_settled, len(table.rows)) == (False, 1)
    send(saved, database, "2")
    writes = [entry for entry in log if entry.startswith("write")]
    assert writes == ["write 0", "write 1", "write late", "write 2"]
    assert (saved.is_settled, table.rows) == (True, [])


def test_a_sender_that_does_not_remove_leaves_its_rows_to_the_listener(
    table: Table, reader: object, kafka: Kafka, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = over(kafka, ProvenSender(KAFKA, table, "shop-1"), monkeypatch)
    send(sender, database, "0", "1")
    assert sender.is_settled
    assert len(table.rows) == 2


# --- prepared transactions


@pytest.mark.parametrize("answer", ["ROLLBACK", None])
def test_what_the_database_has_not_prepared_is_not_committed_by_kafka(
    kafka: Kafka, database: Any, log: list[str], monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    sender = over(kafka, PreparedSender(KAFKA, "shop-1"), monkeypatch)
    monkeypatch.setattr(sender, "_is_settled", True)
    monkeypatch.setattr(sender, "_has_topic", True)
    database.prepared = answer
    with pytest.raises(StateError, match=f"did not prepare the transaction, but answered {answer}"):
        send(sender, database, "1")
    assert "commit" not in log
    assert log[-1] == "abort"


def test_only_prepared_transactions_of_the_sender_in_this_database_are_decided() -> None:
    now = datetime(2026, 1, 5, tzinfo=UTC)
    kinds = [
        ("slackwater:shop-1:a", True),
        ("slackwater:shop-1:b", False),
        ("slackwater:shop-10:c", True),
        ("slackwater:shop:d", True),
        ("other:shop-1:e", True),
        ("by hand", True),
    ]
    rows = [(gid, now, "shop", is_here, "shop") for gid, is_here in kinds]
    connection: Any = SimpleNamespace(execute=lambda _: rows)
    assert [each.gid for each in find_prepared(connection, "shop-1")] == ["slackwater:shop-1:a"]
    assert [each.sender for each in find_prepared(connection)] == [
        "shop-1",
        "shop-1",
        "shop-10",
        "shop",
        None,
        None,
    ]


def test_a_transaction_that_somebody_else_has_decided_is_finished_and_other_errors_are_not_hidden() -> None:
    def raising(error: Exception) -> Any:
        def execute(_: object) -> None:
            raise error

        return SimpleNamespace(autocommit=True, execute=execute)

    finish(raising(psycopg.errors.UndefinedObject("is gone")), "slackwater:shop-1:a", is_commit=True)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        finish(raising(psycopg.errors.InsufficientPrivilege("no")), "slackwater:shop-1:a", is_commit=True)


# --- relays


class Lanes(Outbox):
    """An outbox in memory with some lanes. A list of waiting messages for each of them."""

    def __init__(self, lanes: dict[int, list[SavedMessage]]) -> None:
        super().__init__("outbox")
        self.lanes = lanes

    def busy_lanes(self, connection: object) -> list[int]:
        return [lane for lane, waiting in self.lanes.items() if waiting]

    def take(self, connection: object, lane: int, limit: int) -> list[SavedMessage]:
        return self.lanes[lane][:limit]

    def remove_taken(self, connection: object, lane: int, taken: Sequence[SavedMessage]) -> None:
        self.lanes[lane] = [each for each in self.lanes[lane] if each not in taken]


def row(number: int, topic: str = "paid") -> SavedMessage:
    return SavedMessage(MessageId("outbox", number, 7), message(str(number), topic))


def relaying(outbox: Outbox, clock: Still, monkeypatch: pytest.MonkeyPatch) -> PollingRelay:
    """A relay to a broker that refuses messages of the topic ``bad``."""
    relay = PollingRelay("", KAFKA, outbox, clock=clock)

    @contextmanager
    def transaction() -> Iterator[None]:
        yield

    def deliver(batch: Sequence[SavedMessage]) -> dict[int, SlackwaterError]:
        refused = ConfigError("refused")
        return {place: refused for place, each in enumerate(batch) if each.message.topic == "bad"}

    monkeypatch.setattr(relay._connection, "open", lambda: SimpleNamespace(transaction=transaction))  # noqa: SLF001
    monkeypatch.setattr(relay._waking, "listen", lambda connection: None)  # noqa: SLF001
    monkeypatch.setattr(relay._producer, "deliver", deliver)  # noqa: SLF001
    return relay


def test_of_a_batch_only_what_was_refused_stays_and_it_blocks_its_lane_alone(
    clock: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Lanes({3: [row(1), row(2, "bad"), row(3), row(4, "bad")], 5: [row(6)]})
    relay = relaying(outbox, clock, monkeypatch)
    assert relay.run_once() == 3
    assert outbox.lanes == {3: [row(2, "bad"), row(4, "bad")], 5: []}
    assert list(relay.refused) == [3]
    outbox.lanes[3].append(row(7))
    outbox.lanes[5].append(row(8))
    assert relay.run_once() == 1
    assert outbox.lanes[3] == [row(2, "bad"), row(4, "bad"), row(7)]


def test_a_lane_is_free_again_as_soon_as_its_batch_arrives(
    clock: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Lanes({3: [row(1, "bad")]})
    relay = relaying(outbox, clock, monkeypatch)
    assert (relay.run_once(), list(relay.refused)) == (0, [3])
    outbox.lanes[3] = [row(2)]
    clock.at += 30
    assert (relay.run_once(), relay.refused) == (1, {})
    outbox.lanes[3] = [row(3)]
    clock.at -= 500  # a lane that is free does not depend on a clock
    assert relay.run_once() == 1


def change(op: str, schema: str, table: str, value: str) -> Any:
    after = {
        "id": 1,
        "topic": "paid",
        "key": None,
        "value": base64.b64encode(value.encode()).decode(),
        "headers": "[]",
        "created_at": "2026-11-25T04:37:43.150517Z",
    }
    source = {"schema": schema, "table": table, "lsn": 1, "ts_ms": 1}
    return SimpleNamespace(value=lambda: json.dumps({"op": op, "after": after, "source": source}).encode())


def test_only_rows_that_were_inserted_into_the_captured_table_are_messages() -> None:
    found = CapturedOutbox("public.outbox").messages(
        [
            change("c", "public", "outbox", "message"),
            change("r", "public", "outbox", "snapshot"),
            change("u", "public", "outbox", "update"),
            change("c", "public", "orders", "other table"),
            change("c", "other", "outbox", "other schema"),
        ]
    )
    assert [each.message.value for each in found] == [b"message"]


# --- pools


class Slot(Sender):
    """A sender that notes what becomes of it; `left` has the names under which something waits."""

    def __init__(self, name: str, log: list[str], left: set[str]) -> None:
        super().__init__(KAFKA, name)
        self.log, self.left, self.settled = log, left, True

    @property
    def is_settled(self) -> bool:
        return self.settled

    @contextmanager
    def _transaction(self, connection: Any) -> Iterator[SendingTransaction[Any]]:
        self.log.append(f"begin {self.name}")
        yield SendingTransaction(connection)

    def recover(self, connection: object) -> None:
        self.log.append(f"recover {self.name}")
        self.left.discard(self.name)

    def waiting_senders(self, connection: object) -> set[str]:
        return set(self.left)

    def close(self) -> None:
        self.log.append(f"close {self.name}")


def pool_of(log: list[str], left: set[str], size: int, **options: Any) -> SenderPool[Slot]:
    return SenderPool(lambda name: Slot(name, log, left), "shop", size=size, **options)


def enter(pool: SenderPool[Slot], database: Any) -> None:
    with pool.transaction(database):
        pass


def test_a_pool_recovers_every_slot_of_its_name_before_its_first_transaction_and_no_other(
    database: Any, log: list[str], clock: Still
) -> None:
    others = {"shop.slot-7x", "shop-1", "a-shop.slot-0", "shop", "shopXslot-0", "shop.slot-"}
    left = {"shop.slot-0", "shop.slot-7", *others}
    pool = pool_of(log, left, 1, clock=clock)
    enter(pool, database)
    assert log == ["recover shop.slot-0", "recover shop.slot-7", "close shop.slot-7", "begin shop.slot-0"]
    assert left == others
    log.clear()
    enter(pool, database)
    assert log == ["begin shop.slot-0"]


def test_what_is_left_by_a_process_that_was_still_running_is_found_later(
    database: Any, log: list[str], clock: Still
) -> None:
    left: set[str] = set()
    pool = pool_of(log, left, 1, clock=clock)
    enter(pool, database)
    left.add("shop.slot-3")
    enter(pool, database)
    assert left
    clock.at += 60
    enter(pool, database)
    assert log[-4:] == ["begin shop.slot-0", "recover shop.slot-3", "close shop.slot-3", "begin shop.slot-0"]


def test_a_pool_whose_recovery_fails_sends_and_tries_again_after_its_time(
    database: Any, log: list[str], clock: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {"shop.slot-3"}
    pool = pool_of(log, left, 1, clock=clock)
    with monkeypatch.context() as away:
        away.setattr(Slot, "recover", _away)
        enter(pool, database)
    enter(pool, database)
    assert log.count("begin shop.slot-0") == 2
    assert left
    clock.at += 5
    enter(pool, database)
    assert left == set()


def _away(*_: object) -> None:
    raise AWAY


def test_a_slot_in_use_is_not_recovered_by_others_and_an_unsettled_one_is_used_first(
    database: Any, log: list[str], clock: Still
) -> None:
    left: set[str] = set()
    pool = pool_of(log, left, 3, clock=clock)
    enter(pool, database)
    pool._senders["shop.slot-2"].settled = False  # noqa: SLF001
    left.update(("shop.slot-0", "shop.slot-2"))
    log.clear()
    with pool.transaction(database):
        pool.recover(database)
    assert log == ["begin shop.slot-2"]
    pool.recover(database)
    assert log == ["begin shop.slot-2", "recover shop.slot-2"]
