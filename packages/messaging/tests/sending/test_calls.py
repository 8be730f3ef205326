"""Senders whose calls fail one at a time, without servers: the order of fencing, reading and deciding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from slackwater.protocol import (
    ConfigError,
    KafkaSettings,
    OvertakenError,
    SlackwaterError,
    StateError,
    UnavailableError,
)
from slackwater.protocol.keys import outcome_topic
from slackwater_lab.fakes.topics import FlakyConsumer
from slackwater_messaging import (
    CapturedOutbox,
    CaptureRelay,
    Message,
    MessageId,
    Outbox,
    Outcome,
    PollingRelay,
    PreparedSender,
    SavedMessage,
    SavedSender,
    SenderSettings,
    captured,
)
from slackwater_messaging.committing import is_committed
from slackwater_messaging.kafka import MessageTransactions, SenderProducer, failure
from slackwater_messaging.outbox import BatchProducer

KAFKA = KafkaSettings("127.0.0.1:1", {"log_level": "0"})
AWAY = UnavailableError("away")
MESSAGE = Message(topic="paid", value=b"x")


class Calls:
    """Notes the calls of a fake, of which some fail once."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failing: dict[str, BaseException] = {}

    def __call__(self, name: str, answer: Any = None) -> Any:
        self.log.append(name)
        if (error := self.failing.pop(name, None)) is not None:
            raise error
        return answer


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def producer(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> SenderProducer:
    class Transactions:
        def __init__(self, *_: object) -> None:
            calls("new")

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: calls(name)

    monkeypatch.setattr("slackwater_messaging.kafka.MessageTransactions", Transactions)
    return SenderProducer(KAFKA, "shop-1", SenderSettings())


def test_a_transaction_has_one_producer_until_something_fails(producer: SenderProducer, calls: Calls) -> None:
    for _ in range(2):
        producer.write([(MESSAGE, None)])
        producer.commit()
    assert calls.log == ["new", "open", *["begin", "send", "arrive", "commit"] * 2]
    with pytest.raises(StateError, match="ended before its commit"):
        producer.commit()


@pytest.mark.parametrize("call", ["begin", "send", "arrive"])
def test_after_a_failed_write_the_next_transaction_has_a_new_producer(
    producer: SenderProducer, calls: Calls, call: str
) -> None:
    calls.failing[call] = AWAY
    with pytest.raises(UnavailableError):
        producer.write([(MESSAGE, None)])
    assert calls.log[-1] == "discard"
    assert ("abort" in calls.log) is (call != "begin")
    with pytest.raises(StateError):
        producer.commit()
    producer.write([(MESSAGE, None)])
    assert calls.log[-5:] == ["new", "open", "begin", "send", "arrive"]


def test_after_a_failed_commit_nothing_is_aborted_and_the_next_producer_is_new(
    producer: SenderProducer, calls: Calls
) -> None:
    """The outcome is not known: an abort could be answered although the commit has happened."""
    producer.write([(MESSAGE, None)])
    calls.failing["commit"] = AWAY
    with pytest.raises(UnavailableError):
        producer.commit()
    producer.abort()
    assert calls.log[-2:] == ["commit", "discard"]
    producer.write([(MESSAGE, None)])
    assert calls.log[-5:-3] == ["new", "open"]


def test_a_producer_that_could_not_take_over_the_name_is_discarded(
    producer: SenderProducer, calls: Calls
) -> None:
    calls.failing["open"] = AWAY
    with pytest.raises(UnavailableError):
        producer.open()
    assert calls.log == ["new", "open", "discard"]
    producer.abort()
    producer.open()
    producer.open()
    assert calls.log[3:] == ["new", "open", "discard", "new", "open"]


class Table(Outbox):
    """An outbox in memory."""

    def __init__(self, calls: Calls) -> None:
        super().__init__("outbox")
        self.calls, self.rows = calls, list[SavedMessage]()

    def read(self, connection: object, sender: str) -> list[SavedMessage]:
        self.calls("read")
        return list(self.rows)

    def save(self, connection: object, messages: Any, sender: str) -> list[SavedMessage]:
        self.calls("save")
        made = [SavedMessage(MessageId("outbox", len(self.rows), 1), each) for each in messages]
        self.rows += made
        return made

    def remove_own(self, connection: object, ids: Any, sender: str) -> bool:
        self.calls("remove")
        self.rows = [each for each in self.rows if each.id not in ids]
        return bool(self.rows)


@pytest.fixture
def database(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A connection whose transactions are noted."""

    @contextmanager
    def transaction(_: object) -> Iterator[None]:
        calls("begin database")
        yield
        calls("commit database")

    @contextmanager
    def nothing(_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr("slackwater_messaging.sender.check_idle", lambda _: None)
    for place in ("saved", "committing"):
        module = f"slackwater_messaging.{place}"
        monkeypatch.setattr(f"{module}.database_transaction", transaction)
        monkeypatch.setattr(f"{module}.autocommit", nothing)
        monkeypatch.setattr(f"{module}.check_whole", lambda _: None)
    return SimpleNamespace(
        execute=lambda _: calls("prepare", SimpleNamespace(statusmessage="PREPARE TRANSACTION"))
    )


@pytest.fixture
def saved(producer: SenderProducer, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> SavedSender:
    sender = SavedSender(KAFKA, Table(calls), "shop-1", settings=SenderSettings(retry_after=timedelta(0)))
    monkeypatch.setattr(sender, "_producer", producer)
    monkeypatch.setattr(sender, "_missing", lambda found: calls("look", list(found)))
    return sender


def send(sender: SavedSender | PreparedSender, database: Any, *messages: Message) -> None:
    with sender.transaction(database) as sending:
        sending.send(*messages or [MESSAGE])


def test_a_sender_takes_over_its_name_before_it_reads_what_is_left(
    saved: SavedSender, calls: Calls, database: Any
) -> None:
    send(saved, database)
    assert calls.log == [
        *("new", "open", "read", "look", "begin database", "save", "commit database"),
        *("begin", "send", "arrive", "commit", "remove"),
    ]
    calls.log.clear()
    send(saved, database)
    assert calls.log[0] == "begin database"  # nothing is left


@pytest.mark.parametrize("call", ["begin", "send", "arrive", "commit"])
def test_after_any_failure_of_kafka_the_next_transaction_recovers_first(
    saved: SavedSender, calls: Calls, database: Any, call: str
) -> None:
    send(saved, database)
    calls.failing[call] = AWAY
    send(saved, database)
    assert not saved.is_settled
    calls.log.clear()
    send(saved, database)
    assert calls.log[:9] == ["new", "open", "read", "look", "begin", "send", "arrive", "commit", "remove"]
    assert saved.is_settled


def test_rows_that_could_not_be_removed_are_looked_for_in_the_topics(
    saved: SavedSender, calls: Calls, database: Any
) -> None:
    send(saved, database)
    calls.failing["remove"] = psycopg.OperationalError("away")
    send(saved, database)
    assert not saved.is_settled
    calls.log.clear()
    send(saved, database)
    assert calls.log[:4] == ["new", "open", "read", "look"]


def test_a_failed_recovery_is_tried_again(saved: SavedSender, calls: Calls, database: Any) -> None:
    send(saved, database)
    calls.failing["open"] = AWAY
    with pytest.raises(SlackwaterError):
        saved.recover(database)
    assert not saved.is_settled
    send(saved, database)
    assert saved.is_settled


@pytest.fixture
def prepared(producer: SenderProducer, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> PreparedSender:
    sender = PreparedSender(KAFKA, "shop-1")
    monkeypatch.setattr(sender, "_producer", producer)
    module = "slackwater_messaging.committing"
    monkeypatch.setattr(f"{module}.ensure_compacted_topic", lambda *_: None)
    monkeypatch.setattr(f"{module}.autocommit", lambda _: nullcontext())
    monkeypatch.setattr(f"{module}.find_prepared", lambda *_: calls("look", []))
    monkeypatch.setattr(f"{module}.finish", lambda *_, is_commit: calls("finish" if is_commit else "undo"))
    return sender


def test_a_database_that_prepares_nothing_says_how_to_change_that(
    prepared: PreparedSender, calls: Calls, database: Any
) -> None:
    calls.failing["prepare"] = psycopg.errors.ObjectNotInPrerequisiteState("transactions are disabled")
    with pytest.raises(ConfigError, match="set the server's max_prepared_transactions"):
        send(prepared, database)
    assert not prepared.is_settled


def test_the_name_is_taken_over_before_anything_in_doubt_is_decided(
    prepared: PreparedSender, calls: Calls, database: Any
) -> None:
    send(prepared, database)
    assert calls.log == [
        *("new", "open", "look", "begin database", "begin", "send", "send", "arrive"),
        *("prepare", "commit database", "commit", "finish"),
    ]
    calls.log.clear()
    send(prepared, database)
    assert calls.log[0] == "begin database"


@pytest.mark.parametrize("call", ["arrive", "prepare", "commit database", "finish"])
def test_after_any_failure_what_is_in_doubt_is_decided_first(
    prepared: PreparedSender, calls: Calls, database: Any, call: str
) -> None:
    send(prepared, database)
    calls.failing[call] = psycopg.OperationalError("away")
    with pytest.raises(psycopg.OperationalError):
        send(prepared, database)
    assert not prepared.is_settled
    calls.log.clear()
    send(prepared, database)
    first = calls.log[: calls.log.index("begin database")]
    assert first[-2:] == ["open", "look"]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_commit_without_an_answer_is_decided_after_the_name_was_taken_over(
    prepared: PreparedSender, calls: Calls, database: Any, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    asked: list[timedelta | None] = []

    def is_committed(kafka: object, name: str, gid: str, patience: timedelta | None = None) -> bool:
        calls("ask")
        asked.append(patience)
        return is_done

    monkeypatch.setattr("slackwater_messaging.committing.is_committed", is_committed)
    calls.failing["commit"] = AWAY
    if is_done:
        send(prepared, database)
    else:
        with pytest.raises(UnavailableError):
            send(prepared, database)
    assert calls.log[-6:] == ["commit", "discard", "new", "open", "ask", "finish" if is_done else "undo"]
    assert asked == [SenderSettings().patience]  # it waits while a Kafka transaction is open


def test_a_decision_about_what_was_left_waits_while_a_kafka_transaction_is_open(
    prepared: PreparedSender, database: Any, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    module = "slackwater_messaging.committing"
    left = [SimpleNamespace(gid="a"), SimpleNamespace(gid="b")]

    def is_committed(_: object, name: str, gid: str, patience: timedelta) -> bool:
        asked.append((name, gid, patience))
        return gid == "a"

    monkeypatch.setattr(f"{module}.find_prepared", lambda *_: left)
    monkeypatch.setattr(f"{module}.is_committed", is_committed)
    monkeypatch.setattr(f"{module}.finish", lambda _, gid, is_commit: calls(f"{gid} {is_commit}"))
    assert prepared.recover(database) == {"a": Outcome.COMMITTED, "b": Outcome.ROLLED_BACK}
    patience = SenderSettings().patience
    assert asked == [("shop-1", "a", patience), ("shop-1", "b", patience)]
    assert calls.log == ["new", "open", "a True", "b False"]


@pytest.mark.parametrize(("outcomes", "is_done"), [([b"a", b"b"], True), ([b"b", b"a"], False), ([], False)])
def test_what_the_newest_outcome_names_is_committed(
    outcomes: list[bytes], is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = FlakyConsumer({(outcome_topic("shop-1"), 0): outcomes})
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: consumer)
    assert is_committed(KAFKA, "shop-1", "b") is is_done


def test_a_relay_that_takes_over_fences_before_it_asks_for_the_position(
    producer: SenderProducer, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    place = SimpleNamespace(error=None, offset=7, metadata="commit 9")

    def ask(_: object, **options: Any) -> dict[str, Any]:
        calls("ask")
        asked.append(options)
        return {"relay": SimpleNamespace(result=lambda _: SimpleNamespace(topic_partitions=[place]))}

    relay = CaptureRelay(KAFKA, CapturedOutbox(), source="inv", name="relay")
    monkeypatch.setattr(relay, "_producer", producer)
    admin = SimpleNamespace(list_consumer_group_offsets=ask)
    monkeypatch.setattr(captured, "AdminClient", lambda _: admin)
    assert relay._take_over(0) == "commit 9"  # noqa: SLF001
    assert calls.log == ["new", "open", "ask"]
    assert asked[0]["require_stable"] is True
    place.offset, place.metadata = -1001, ""
    assert relay._take_over(0) is None  # noqa: SLF001


def test_a_relay_commits_its_position_with_the_messages_and_starts_over_after_a_failure(
    producer: SenderProducer, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [SimpleNamespace(commit=SimpleNamespace(lsn=n), number=n) for n in (1, 2, 3)]
    consumer = SimpleNamespace(
        poll=lambda _: found.pop(0) if found else None,
        offsets=list,
        group_metadata=lambda: None,
        close=lambda: calls("leave"),
    )
    relay = CaptureRelay(KAFKA, CapturedOutbox(), source="inv", name="relay", batch=2)
    monkeypatch.setattr(relay, "_producer", producer)
    monkeypatch.setattr(relay, "_open_consumer", lambda: consumer)
    monkeypatch.setattr(
        CapturedOutbox,
        "messages",
        lambda _, each: [SavedMessage(MessageId("public.outbox", each.number, 1), MESSAGE)],
    )
    assert relay.run_once() == 2
    assert calls.log[2:] == ["begin", "send", "send", "arrive", "send_offsets", "commit"]
    calls.failing["commit"] = AWAY
    with pytest.raises(UnavailableError):
        relay.run_once()
    assert calls.log[-3:] == ["commit", "discard", "leave"]


@pytest.mark.parametrize("call", ["poll", "begin", "send", "arrive", "offsets", "send_offsets", "commit"])
def test_a_capture_relay_goes_on_after_any_one_call_has_failed(
    producer: SenderProducer, calls: Calls, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It joins its group again, and reads where Kafka has committed; what was read before is not kept."""
    stored = [1, 2]

    def join() -> Any:
        unread, taken = list(stored), list[int]()

        def poll(_: object) -> Any:
            calls("poll")
            if not unread:
                return None
            taken.append(unread.pop(0))
            return SimpleNamespace(commit=SimpleNamespace(lsn=taken[-1]), number=taken[-1])

        return SimpleNamespace(
            poll=poll,
            offsets=lambda: calls("offsets", list(taken)),
            group_metadata=lambda: None,
            close=lambda: calls("leave"),
        )

    relay = CaptureRelay(KAFKA, CapturedOutbox(), source="inv", name="relay", batch=2)
    monkeypatch.setattr(relay, "_producer", producer)
    monkeypatch.setattr(relay, "_open_consumer", join)
    row = SavedMessage(MessageId("public.outbox", 1, 1), MESSAGE)
    monkeypatch.setattr(CapturedOutbox, "messages", lambda *_: [row])
    calls.failing[call] = AWAY
    with pytest.raises(UnavailableError):
        relay.run_once()
    assert calls.log[-1] == "leave"
    calls.log.clear()
    assert relay.run_once() == 2
    done = [each for each in calls.log if each not in ("poll", "offsets")]
    assert done[-6:] == ["begin", "send", "send", "arrive", "send_offsets", "commit"]


class Late:
    """A producer whose reports come when they are asked for."""

    def __init__(self, *_: object, **__: object) -> None:
        self.reports: list[Callable[[KafkaError | None, Any], None]] = []
        self.errors: list[KafkaError | None] = []

    def produce(
        self, *_: object, on_delivery: Callable[[KafkaError | None, Any], None], **__: object
    ) -> None:
        self.reports.append(on_delivery)

    def flush(self, _: float) -> int | None:
        for report, error in zip(self.reports, self.errors, strict=False):
            report(error, None)
        return None

    def purge(self) -> None:
        """Reports come later, if at all."""


@pytest.mark.parametrize(
    "errors",
    [[None], [None, KafkaError(KafkaError._MSG_TIMED_OUT)]],  # noqa: SLF001 - librdkafka's name
)
def test_a_batch_of_which_anything_is_unclear_has_not_arrived(
    errors: list[KafkaError | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that comes later does not count for the next batch."""
    made: list[Late] = []

    def make(*_: object, **__: object) -> Late:
        made.append(Late())
        made[-1].errors = errors if len(made) == 1 else [None]
        return made[-1]

    monkeypatch.setattr("slackwater_messaging.outbox.Producer", make)
    batch = [SavedMessage(MessageId("outbox", number, 1), MESSAGE) for number in range(2)]
    producer = BatchProducer(KAFKA, timedelta(seconds=1))
    with pytest.raises(UnavailableError, match="of 2 messages did not arrive"):
        producer.deliver(batch)

    def flush(_: float) -> None:
        made[0].reports[1](None, None)
        made[1].reports[0](None, None)

    def second(*_: object, **__: object) -> Late:
        made.append(Late())
        monkeypatch.setattr(made[-1], "flush", flush)
        return made[-1]

    monkeypatch.setattr("slackwater_messaging.outbox.Producer", second)
    with pytest.raises(UnavailableError, match="1 of 2 messages did not arrive"):
        producer.deliver(batch)


def test_an_error_of_a_request_is_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Late):
        def flush(self, _: float) -> None:
            raise KafkaException(KafkaError(KafkaError._FATAL))  # noqa: SLF001

    monkeypatch.setattr("slackwater_messaging.outbox.Producer", Refusing)
    with pytest.raises(UnavailableError, match="writing messages failed"):
        BatchProducer(KAFKA, timedelta(seconds=1)).deliver([SavedMessage(MessageId("outbox", 1, 1), MESSAGE)])


class Client(Late):
    """A producer of Kafka's client whose calls may be refused."""

    def __init__(self, config: dict[str, Any], **_: object) -> None:
        super().__init__()
        self.config, self.sent, self.log = config, list[dict[str, Any]](), list[str]()
        self.refusals: list[Exception] = []

    def produce(self, *arguments: Any, **named: Any) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        super().produce(*arguments, **named)
        self.sent.append(named)

    def poll(self, _: float) -> None:
        self.log.append("poll")

    def purge(self) -> None:
        self.log.append("purge")

    def begin_transaction(self) -> None:
        if self.sent:
            raise KafkaException(self.reason)

    reason = KafkaError(KafkaError._STATE)  # noqa: SLF001 - librdkafka's name

    def __len__(self) -> int:
        return len(self.reports)

    def __bool__(self) -> bool:
        return True

    def flush(self, seconds: float) -> int:
        self.log.append("flush")
        super().flush(seconds)
        reported = len(self.errors)
        self.reports, self.errors = self.reports[reported:], []
        return len(self.reports)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    clients: list[Client] = []

    def make(config: dict[str, Any], **named: object) -> Client:
        clients.append(Client(config, **named))
        return clients[-1]

    for module in ("slackwater_messaging.outbox", "slackwater.kafka.transactions"):
        monkeypatch.setattr(f"{module}.Producer", make)
    return clients


BATCH = [SavedMessage(MessageId("outbox", number, 1), MESSAGE) for number in range(2)]
LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


@pytest.mark.parametrize(
    ("code", "expected", "hint"),
    [
        (KafkaError._FENCED, OvertakenError, "another process uses the same name"),  # noqa: SLF001
        (KafkaError.PRODUCER_FENCED, OvertakenError, "another process uses the same name"),
        (KafkaError.INVALID_PRODUCER_EPOCH, OvertakenError, "longer than its time-out"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ConfigError, "create the topic"),
        (KafkaError.MSG_SIZE_TOO_LARGE, ConfigError, "max.message.bytes"),
        (KafkaError.NOT_COORDINATOR, UnavailableError, "check that the brokers are up"),
    ],
)
def test_what_kafka_refuses_says_who_has_to_do_something(code: int, expected: type, hint: str) -> None:
    found = failure("committing", KafkaError(code))
    assert type(found) is expected
    assert hint in str(found)


def test_a_batch_is_written_in_order_and_by_no_settings_of_the_user(made: list[Client]) -> None:
    kafka = KafkaSettings("127.0.0.1:1", {"enable.idempotence": "false", "partitioner": "random"})
    producer = BatchProducer(kafka, timedelta(seconds=1))
    with pytest.raises(UnavailableError):
        producer.deliver(BATCH)
    assert made[0].config["enable.idempotence"] is True
    assert made[0].config["partitioner"] == "murmur2_random"
    assert made[0].log == ["flush", "purge"]  # what was queued must not arrive behind what comes next


@pytest.mark.parametrize(
    "error",
    [KafkaError(KafkaError._TRANSPORT), KafkaError(KafkaError._FATAL, fatal=True)],  # noqa: SLF001
)
def test_a_producer_that_cannot_go_on_is_no_refusal_of_a_message(
    made: list[Client], error: KafkaError, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = BatchProducer(KAFKA, timedelta(seconds=1))
    for at_once in (True, False):
        with monkeypatch.context() as patched:
            if at_once:
                patched.setattr(Client, "produce", raising(KafkaException(error)))
            else:
                patched.setattr(Client, "flush", lambda self, _: [each(error, None) for each in self.reports])
            with pytest.raises(UnavailableError):
                producer.deliver(BATCH)
    assert [client.log for client in made] == [["purge"], ["purge"]]


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_messages_wait_for_room_and_those_that_are_refused_are_named(made: list[Client]) -> None:
    producer = BatchProducer(KAFKA, timedelta(seconds=1))
    producer.deliver([])  # makes the client
    made[0].refusals = [BufferError(), BufferError(), KafkaException(LARGE)]
    made[0].errors = [None]
    assert {place: type(error) for place, error in producer.deliver(BATCH).items()} == {0: ConfigError}
    assert made[0].log == ["flush", "poll", "poll", "flush"]
    assert len(made[0].sent) == 1


@pytest.fixture
def transactions(made: list[Client]) -> MessageTransactions:
    return MessageTransactions(KAFKA, "shop-1", SenderSettings())


def test_a_message_of_a_row_names_it(transactions: MessageTransactions, made: list[Client]) -> None:
    transactions.begin()
    transactions.send(MESSAGE, MessageId("outbox", 7, 1))
    transactions.send(MESSAGE)
    assert [each["headers"] for each in made[0].sent] == [
        [("slackwater-message", str(MessageId("outbox", 7, 1)).encode())],
        [],
    ]


def test_messages_that_are_refused_have_not_arrived_and_others_are_not_waited_for(
    transactions: MessageTransactions, made: list[Client]
) -> None:
    transactions.begin()
    for _ in range(3):
        transactions.send(MESSAGE)
    made[0].errors = [LARGE]
    with pytest.raises(ConfigError, match=r"max\.message\.bytes"):
        transactions.arrive()
    assert made[0].log == ["flush"]
    made[0].sent, made[0].reports = [], []
    transactions.begin()
    transactions.arrive()  # the refusal was that of another transaction


def test_messages_that_were_dropped_have_the_reason_of_their_transaction(
    transactions: MessageTransactions, made: list[Client]
) -> None:
    transactions.begin()
    transactions.send(MESSAGE)
    made[0].errors = [KafkaError(KafkaError._PURGE_QUEUE)]  # noqa: SLF001
    made[0].reason = KafkaError(KafkaError._FENCED)  # noqa: SLF001
    with pytest.raises(StateError, match="another process uses the same name"):
        transactions.arrive()


class Waiting(Outbox):
    """The rows of an outbox in memory; they are back if the transaction that removes them fails."""

    def __init__(self, calls: Calls) -> None:
        super().__init__("outbox")
        self.calls, self.rows, self.left = calls, list(BATCH), list(BATCH)

    def busy_lanes(self, connection: object) -> list[int]:
        self.left = list(self.rows)
        self.calls("busy")
        return [3] if self.rows else []

    def take(self, connection: object, lane: int, limit: int) -> list[SavedMessage]:
        self.calls("take")
        return list(self.rows)

    def remove_taken(self, connection: object, lane: int, sent: Any) -> None:
        self.calls("remove")
        self.left = [row for row in self.rows if row not in sent]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield
        self.calls("commit")
        self.rows = self.left
        self.calls("answer")


@pytest.mark.parametrize("error", [AWAY, psycopg.OperationalError("away"), RuntimeError("failed")])
@pytest.mark.parametrize(
    "call", ["open", "listen", "busy", "take", "deliver", "arrived", "remove", "commit", "answer"]
)
def test_a_relay_goes_on_after_any_one_call_has_failed(
    call: str, error: Exception, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is removed when it has arrived, and never before."""
    outbox, arrived = Waiting(calls), list[MessageId]()
    relay = PollingRelay("", KAFKA, outbox)

    def deliver(batch: list[SavedMessage]) -> dict[int, SlackwaterError]:
        calls("deliver")
        arrived.extend(each.id for each in batch)
        calls("arrived")
        return {}

    monkeypatch.setattr(relay._connection, "open", lambda: calls("open", outbox))  # noqa: SLF001
    monkeypatch.setattr(relay._waking, "listen", lambda connection: calls("listen"))  # noqa: SLF001
    monkeypatch.setattr(relay._producer, "deliver", deliver)  # noqa: SLF001
    calls.failing[call] = error
    with pytest.raises(type(error)):
        relay.run_once()
    assert {each.id for each in BATCH} == {*arrived, *(row.id for row in outbox.rows)}
    assert relay.run_once() == (0 if call == "answer" else 2)
    is_sent_twice = call in ("arrived", "remove", "commit")
    assert arrived == [each.id for each in BATCH] * (2 if is_sent_twice else 1)
    assert (outbox.rows, relay.run_once()) == ([], 0)
