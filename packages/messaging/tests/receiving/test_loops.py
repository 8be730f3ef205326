"""The loops of receivers and processors, with a group, an inbox and a producer that fail on request."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, ClassVar

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from slackwater.protocol import ConfigError, KafkaSettings, OvertakenError, StateError, UnavailableError
from slackwater_messaging import Message, SenderSettings
from slackwater_messaging.kafka import MessageTransactions
from slackwater_messaging.message import Place
from slackwater_messaging.receiving import (
    ProcessorStep,
    Receipt,
    ReceivedMessage,
    Receiver,
    TableInbox,
    TakenOverError,
    TransactionalProcessor,
)
from slackwater_messaging.receiving.loops import _may_pass

KAFKA = KafkaSettings("127.0.0.1:1", {"log_level": "0"})
ZERO, ONE = Place("said", 0), Place("said", 1)
NOW = timedelta(0)


def message(offset: int, partition: int = 0) -> ReceivedMessage:
    return ReceivedMessage(topic="said", partition=partition, offset=offset, value=b"x")


class Group:
    """A member of a group: what it reads is put into ``waiting``."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.is_begun = log, False
        self.places: tuple[Place, ...] = (ZERO,)
        self.batch: list[ReceivedMessage] = []
        self.waiting: list[ReceivedMessage] = []
        self.stored: dict[Place, int] = {}
        self.begun_at: Mapping[Place, int] = {}
        self.outcomes: list[bool] = []
        """Which attempts have succeeded."""

    def begin(self, positions: Mapping[Place, int]) -> None:
        self.log.append("begin")
        self.begun_at, self.is_begun = positions, True

    def read(self, *_: object) -> None:
        self.log.append("read")
        if not self.batch:
            self.batch, self.waiting = self.waiting, []

    def wait_after(self, error: Exception) -> None:
        self.log.append("wait")
        self.outcomes.append(False)

    def succeeded(self) -> None:
        self.outcomes.append(True)

    def committed(self) -> dict[Place, int]:
        self.log.append("ask")
        return self.stored

    def drop_below(self, ends: Mapping[Place, int]) -> None:
        self.batch = [each for each in self.batch if each.offset >= ends.get(each.place, 0)]

    def metadata(self) -> str:
        return "member"

    def done(self) -> None:
        self.log.append("done")
        self.batch = []

    def commit(self) -> None:
        self.log.append("commit")

    def close(self) -> None:
        self.log.append("close")


class Transactions:
    """A transactional producer; ``failing`` says what the next call of a method raises."""

    log: list[str]
    failing: dict[str, BaseException]

    def __init__(self, *_: object, **__: object) -> None:
        self.log.append("new")

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            text = name
            if name == "send":
                text = f"send {arguments[0].value.decode()}"
            if name == "send_offsets":
                text = f"offsets {[(each.partition, each.offset) for each in arguments[0]]} {arguments[1]}"
            self.log.append(text)
            if (error := self.failing.pop(name, None)) is not None:
                raise error

        return call


class Log(list[str]):
    """The calls in their order, of which one may fail."""

    fails_at = 0
    error: Exception = RuntimeError("failed")

    def append(self, text: str) -> None:
        super().append(text)
        if len(self) == self.fails_at:
            raise self.error


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def group(log: list[str]) -> Group:
    return Group(log)


@pytest.fixture
def failing() -> dict[str, BaseException]:
    return {}


@pytest.fixture
def processor(
    log: list[str], group: Group, failing: dict[str, BaseException], monkeypatch: pytest.MonkeyPatch
) -> TransactionalProcessor:
    monkeypatch.setattr("slackwater_messaging.receiving.loops.GroupMember", lambda *_, **__: group)
    made = TransactionalProcessor(KAFKA, ["said"], group="g", transactional_id="a")
    kind = type("Told", (Transactions,), {"log": log, "failing": failing})
    monkeypatch.setattr("slackwater_messaging.kafka.MessageTransactions", kind)
    return made


def shout(received: ReceivedMessage) -> list[Message]:
    return [Message(topic="out", value=str(received.offset).encode())]


def test_the_previous_transaction_is_ended_before_the_group_s_offsets_are_asked_for(
    processor: TransactionalProcessor, group: Group, log: list[str]
) -> None:
    group.waiting = [message(4), message(5)]
    assert processor.poll(shout, timeout=NOW) == 2
    assert log == [
        *("new", "open", "ask", "begin", "read"),
        *("begin", "send 4", "send 5", "arrive", "offsets [(0, 6)] member", "commit"),
    ]
    assert group.batch == []
    log.clear()
    assert processor.poll(shout, timeout=NOW) == 0
    assert log == ["read"]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_commit_whose_answer_was_lost_is_looked_up_in_the_group_s_offsets(
    processor: TransactionalProcessor,
    group: Group,
    log: list[str],
    failing: dict[str, BaseException],
    is_done: bool,
) -> None:
    group.waiting = [message(4), message(5)]
    failing["commit"] = KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
    assert processor.poll(shout, timeout=NOW) == 0
    assert log[-2:] == ["discard", "wait"]
    if is_done:
        group.stored = {ZERO: 6}
    log.clear()
    assert processor.poll(shout, timeout=NOW) == (0 if is_done else 2)
    assert log[:3] == ["new", "open", "ask"]
    assert ("send 4" in log) is not is_done


FENCED = StateError("fenced")
FENCED.__cause__ = KafkaException(KafkaError(KafkaError._FENCED, txn_requires_abort=True))  # noqa: SLF001


@pytest.mark.parametrize("step", ["begin", "send", "send_offsets"])
def test_a_call_that_fails_gives_the_producer_up_and_keeps_the_batch(
    processor: TransactionalProcessor,
    group: Group,
    log: list[str],
    failing: dict[str, BaseException],
    step: str,
) -> None:
    group.waiting = [message(4)]
    failing[step] = FENCED
    with pytest.raises(StateError):
        processor.poll(shout, timeout=NOW)
    assert log[-1] == "discard"
    log.clear()
    assert processor.poll(shout, timeout=NOW) == 1
    assert log[:2] == ["new", "open"]
    assert log[-1] == "commit"


@pytest.mark.parametrize("who", ["processor", "receiver"])
def test_failures_and_successes_are_reported_to_the_group_which_limits_the_failures(
    who: str, request: pytest.FixtureRequest, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject: Any = request.getfixturevalue(who)

    def fail(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - librdkafka's name

    with monkeypatch.context() as failing:
        failing.setattr(group, "read", fail)
        assert subject.poll(shout, timeout=NOW) == 0
    assert subject.poll(shout, timeout=NOW) == 0
    assert group.outcomes == [False, True]


class Broken:
    """A producer of Kafka's client that reports what became of outputs, and then fails to commit."""

    undelivered: ClassVar[list[KafkaError]] = []
    refusals: ClassVar[list[KafkaError]] = []

    def __init__(self, *_: object, **__: object) -> None:
        self.reports: list[Callable[..., None]] = []

    def begin_transaction(self) -> None:
        """Begins without a word."""

    def produce(self, *_: object, on_delivery: Callable[..., None], **__: object) -> None:
        self.reports.append(on_delivery)

    def __len__(self) -> int:
        return len(self.reports)

    def flush(self, _: float) -> int:
        for report, error in zip(self.reports, self.undelivered, strict=False):
            report(error, None)
        self.reports, self.undelivered[:] = [], []
        return 0

    def commit_transaction(self, _: float) -> None:
        if self.refusals:
            raise KafkaException(self.refusals.pop(0))


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> MessageTransactions:
    monkeypatch.setattr("slackwater.kafka.transactions.Producer", Broken)
    Broken.undelivered.clear()
    Broken.refusals.clear()
    minute = timedelta(minutes=1)
    return MessageTransactions(KAFKA, "a", SenderSettings(request_timeout=minute))


def write(writer: MessageTransactions, *undelivered: KafkaError, refusal: KafkaError | None = None) -> None:
    writer.begin()
    for _ in range(2):
        writer.send(Message(topic="out", value=b"x"))
    Broken.undelivered[:] = undelivered
    Broken.refusals[:] = [] if refusal is None else [refusal]
    writer.arrive()
    writer.commit()


ABORT = KafkaError(KafkaError._INCONSISTENT, "an output failed", txn_requires_abort=True)  # noqa: SLF001


@pytest.mark.parametrize(
    "code",
    [KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH],  # noqa: SLF001
)
def test_who_was_fenced_is_told_so_and_not_that_another_attempt_may_succeed(
    writer: MessageTransactions, code: int
) -> None:
    for refusal in (KafkaError(code, fatal=True), KafkaError(code, txn_requires_abort=True)):
        with pytest.raises(OvertakenError, match="another process uses the same name"):
            write(writer, refusal=refusal)


def test_an_output_that_kafka_refuses_is_the_reason_of_its_transaction_alone(
    writer: MessageTransactions,
) -> None:
    large, lost = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), KafkaError(KafkaError._PURGE_QUEUE)  # noqa: SLF001
    with pytest.raises(ConfigError, match=r"max\.message\.bytes"):
        write(writer, large, lost)
    with pytest.raises(UnavailableError):
        write(writer, refusal=ABORT)
    write(writer)


@pytest.mark.parametrize("error", [ABORT, KafkaError(KafkaError._TIMED_OUT)])  # noqa: SLF001
def test_a_transaction_that_failed_by_itself_may_succeed_when_it_is_tried_again(
    writer: MessageTransactions, error: KafkaError
) -> None:
    with pytest.raises(UnavailableError) as raised:
        write(writer, refusal=error)
    assert _may_pass(raised.value)


def test_outputs_that_did_not_arrive_may_arrive_in_another_transaction(writer: MessageTransactions) -> None:
    with pytest.raises(UnavailableError) as raised:
        write(writer, KafkaError(KafkaError._MSG_TIMED_OUT))  # noqa: SLF001 - librdkafka's name
    assert _may_pass(raised.value)


def test_what_nobody_knows_is_not_tried_again(writer: MessageTransactions) -> None:
    with pytest.raises(UnavailableError, match="check that the brokers") as raised:
        write(writer, refusal=KafkaError(KafkaError._SSL))  # noqa: SLF001
    assert not _may_pass(raised.value)


def test_an_error_of_the_service_aborts_its_outputs(
    processor: TransactionalProcessor, group: Group, log: list[str]
) -> None:
    group.waiting = [message(4), message(5)]

    def fail(received: ReceivedMessage) -> Iterator[Message]:
        yield from shout(received)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        processor.poll(fail, timeout=NOW)
    assert log[-3:] == ["send 4", "abort", "discard"]
    assert "commit" not in log
    assert len(group.batch) == 2


def test_the_steps_are_in_order(group: Group, processor: TransactionalProcessor) -> None:
    steps: list[ProcessorStep] = []
    processor._probe = steps.append  # noqa: SLF001
    group.waiting = [message(1)]
    processor.poll(shout, timeout=NOW)
    assert steps == list(ProcessorStep)


class Memory(TableInbox):
    """An inbox in memory with positions of its own."""

    def __init__(self, log: list[str]) -> None:
        super().__init__("inbox")
        self.log, self.known = log, set[int]()
        self.failing: dict[str, BaseException] = {}

    def _fail(self, what: str) -> None:
        self.log.append(what)
        if (error := self.failing.pop(what, None)) is not None:
            raise error

    def load(self, connection: Any, places: Sequence[Place]) -> Mapping[Place, int]:
        self._fail(f"load {[place.partition for place in places]}")
        return dict.fromkeys(places, 3)

    @contextmanager
    def receive_batch(self, connection: Any, messages: Sequence[ReceivedMessage]) -> Iterator[list[Receipt]]:
        self._fail("receive")
        receipts = [Receipt(b"k", each, is_repeat=each.offset in self.known) for each in messages]
        yield receipts
        self._fail("database")
        self.known |= {each.offset for each in messages}

    def maintain(self, connection: Any) -> None:
        self._fail("maintain")

    def save(self, connection: Any, places: Sequence[Place]) -> None:
        self._fail(f"save {[place.partition for place in places]}")

    def forget(self, places: Sequence[Place]) -> None:
        self.log.append(f"forget {[place.partition for place in places]}")


class Connection:
    """A connection that notes when it is closed."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.closed = log, False
        log.append("connect")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield
        self.log.append("durable")

    def execute(self, statement: bytes) -> None:
        assert b"synchronous_commit" in statement

    def close(self) -> None:
        self.closed = True
        self.log.append("disconnect")


@pytest.fixture
def inbox(log: list[str]) -> Memory:
    return Memory(log)


@pytest.fixture
def receiver(log: list[str], group: Group, inbox: Memory, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    monkeypatch.setattr("slackwater_messaging.receiving.loops.GroupMember", lambda *_, **__: group)
    connect: Any = lambda: Connection(log)  # noqa: E731
    return Receiver(KAFKA, ["said"], group="g", inbox=inbox, connect=connect)


def handle(connection: Any, received: ReceivedMessage) -> bytes:
    connection.log.append(f"handle {received.offset}")
    return b""


def test_a_receiver_loads_before_it_reads_and_commits_offsets_last(
    receiver: Receiver, group: Group, log: list[str]
) -> None:
    group.waiting = [message(4)]
    assert receiver.poll(handle, reply=lambda _: log.append("reply"), timeout=NOW) == 1
    assert log == [
        *("forget []", "connect", "durable", "load [0]", "begin", "maintain", "read", "receive"),
        *("handle 4", "database", "reply", "done", "commit"),
    ]
    assert group.begun_at == {ZERO: 3}
    log.clear()
    assert receiver.poll(handle, timeout=NOW) == 0
    assert log == ["read", "commit"]


@pytest.mark.parametrize(
    ("error", "is_broken"),
    [(psycopg.OperationalError("away"), True), (TakenOverError("somebody else"), False)],
)
def test_after_a_failure_everything_is_loaded_again_and_the_batch_is_tried_again(
    receiver: Receiver, group: Group, inbox: Memory, log: list[str], error: Exception, is_broken: bool
) -> None:
    group.waiting = [message(4)]
    inbox.failing["database"] = error
    assert receiver.poll(handle, timeout=NOW) == 0
    assert log[-1] == "wait"
    assert ("disconnect" in log) is is_broken
    assert "forget [0]" in log
    assert "done" not in log
    log.clear()
    assert receiver.poll(handle, timeout=NOW) == 1
    assert [each for each in log if each in ("connect", "durable", "load [0]", "handle 4", "done")] == [
        *(["connect", "durable"] if is_broken else []),
        *("load [0]", "handle 4", "done"),
    ]


def test_an_error_of_the_service_keeps_the_batch_and_forgets_what_was_loaded(
    receiver: Receiver, group: Group, log: list[str]
) -> None:
    group.waiting = [message(4)]

    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        receiver.poll(fail, timeout=NOW)
    assert caught.value.__notes__ == ["message at said/0, offset 4"]
    assert log[-1] == "forget [0]"
    assert receiver.poll(handle, timeout=NOW) == 1
    assert log.count("load [0]") == 2


def test_answers_that_could_not_be_sent_are_sent_again_before_offsets(
    receiver: Receiver, group: Group, log: list[str]
) -> None:
    group.waiting = [message(4)]

    def fail(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        receiver.poll(handle, reply=fail, timeout=NOW)
    assert "done" not in log
    log.clear()
    assert receiver.poll(handle, reply=lambda found: log.append(f"reply {len(found)}"), timeout=NOW) == 1
    assert "handle 4" not in log  # its effect is there
    assert log[-3:] == ["reply 1", "done", "commit"]


def test_a_partition_that_is_given_away_is_saved_and_forgotten(
    receiver: Receiver, group: Group, inbox: Memory, log: list[str]
) -> None:
    group.places = (ZERO, ONE)
    receiver.poll(handle, timeout=NOW)
    log.clear()
    receiver._give_away([ZERO])  # noqa: SLF001
    assert log == ["save [0]", "forget [0]"]
    group.places = (ONE,)
    receiver.poll(handle, timeout=NOW)
    assert "load" not in " ".join(log)
    group.places, group.is_begun = (ZERO, ONE), False
    log.clear()
    receiver.poll(handle, timeout=NOW)
    assert log[:3] == ["forget [1]", "load [0, 1]", "begin"]


def test_a_partition_is_given_away_although_the_inbox_cannot_be_saved(
    receiver: Receiver, inbox: Memory, log: list[str]
) -> None:
    receiver.poll(handle, timeout=NOW)
    inbox.failing["save [0]"] = psycopg.OperationalError("away")
    log.clear()
    receiver._give_away([ZERO])  # noqa: SLF001
    assert log == ["save [0]", "disconnect", "forget [0]"]


class Database(Memory):
    """An inbox whose effects are there if its transaction has committed."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(log)
        self.effects: list[int] = []
        self.handled: list[int] = []
        self.loaded: set[Place] = set()

    def load(self, connection: Any, places: Sequence[Place]) -> Mapping[Place, int]:
        assert not connection.closed
        found = super().load(connection, places)
        self.loaded.update(places)
        return found

    @contextmanager
    def receive_batch(self, connection: Any, messages: Sequence[ReceivedMessage]) -> Iterator[list[Receipt]]:
        assert self.loaded.issuperset(each.place for each in messages)
        assert not connection.closed
        self.handled = []
        with super().receive_batch(connection, messages) as receipts:
            yield receipts
        self.effects += self.handled
        self.log.append("answer")

    def handle(self, connection: Any, received: ReceivedMessage) -> bytes:
        self.handled.append(received.offset)
        return handle(connection, received)

    def forget(self, places: Sequence[Place]) -> None:
        self.loaded.difference_update(places)
        super().forget(places)


AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - librdkafka's name
FAILURES = [RuntimeError("failed"), AWAY]


@pytest.mark.parametrize("error", [*FAILURES, psycopg.OperationalError("away"), TakenOverError("another")])
@pytest.mark.parametrize("at", range(1, 16))
def test_a_receiver_goes_on_after_any_one_call_has_failed(
    at: int, error: Exception, group: Group, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each effect is there once, and answers and offsets follow it."""
    inbox, replies = Database(log), list[int]()
    monkeypatch.setattr("slackwater_messaging.receiving.loops.GroupMember", lambda *_, **__: group)
    connect: Any = lambda: Connection(log)  # noqa: E731
    receiver = Receiver(KAFKA, ["said"], group="g", inbox=inbox, connect=connect)

    def reply(receipts: Sequence[Receipt]) -> None:
        log.append("reply")
        assert set(inbox.effects) == {4, 5}
        replies.append(len(receipts))

    def done() -> None:
        log.append("done")
        assert replies
        group.batch = []

    monkeypatch.setattr(group, "done", done)
    group.waiting = [message(4), message(5)]
    log.fails_at, log.error = at, error
    for _ in range(3):
        with suppress(type(error)):
            receiver.poll(inbox.handle, reply=reply, timeout=NOW)
    assert (inbox.effects, group.batch) == ([4, 5], [])
    assert log[-1] == "commit"


class Kafka:
    """Outputs and offsets, which change together; and the transactional producers that change them."""

    def __init__(self, log: list[str], group: Group) -> None:
        self.log, self.group = log, group
        self.outputs: list[str] = []

    def __call__(self, *_: object, **__: object) -> Any:
        self.log.append("new")
        return Producer(self)


class Producer:
    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.is_open = self.is_discarded = False
        self.outputs: list[str] = []
        self.ends: dict[Place, int] = {}

    def open(self) -> None:
        self.kafka.log.append("open")
        self.is_open = True

    def begin(self) -> None:
        self.kafka.log.append("begin transaction")
        assert self.is_open
        assert not self.is_discarded

    def send(self, output: Message, _: object) -> None:
        self.kafka.log.append("send")
        self.outputs.append((output.value or b"").decode())

    def arrive(self) -> None:
        self.kafka.log.append("arrive")

    def abort(self) -> None:
        self.outputs, self.ends = [], {}

    def send_offsets(self, ends: Any, _: object) -> None:
        self.kafka.log.append("offsets")
        self.ends = {Place(each.topic, each.partition): each.offset for each in ends}

    def commit(self) -> None:
        self.kafka.log.append("commit")
        self.kafka.outputs += self.outputs
        self.kafka.group.stored.update(self.ends)
        self.outputs, self.ends = [], {}
        self.kafka.log.append("answer")

    def discard(self) -> None:
        self.is_discarded = True


LATE = UnavailableError("late")
LATE.__cause__ = KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - librdkafka's name


@pytest.mark.parametrize("error", [*FAILURES, StateError("fenced"), LATE])
@pytest.mark.parametrize("at", range(1, 13))
def test_a_processor_goes_on_after_any_one_call_has_failed(
    at: int, error: Exception, processor: TransactionalProcessor, group: Group, log: Log, monkeypatch: Any
) -> None:
    """Outputs are there once, together with the offsets of their inputs."""
    kafka = Kafka(log, group)
    monkeypatch.setattr("slackwater_messaging.kafka.MessageTransactions", kafka)
    group.waiting = [message(4), message(5)]
    log.fails_at, log.error = at, error
    for _ in range(3):
        with suppress(type(error)):
            processor.poll(shout, timeout=NOW)
    assert (kafka.outputs, group.stored, group.batch) == (["4", "5"], {ZERO: 6}, [])
