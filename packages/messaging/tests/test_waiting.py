"""Trouble that passes is waited for and reported, and a topic that stays away is refused."""

import logging
import threading
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from confluent_kafka.admin import AdminClient

from slackwater.dev import KafkaBroker
from slackwater.protocol import ConfigError, KafkaSettings, StateError
from slackwater_lab.fakes.outputs import ChangeWriter, KafkaTopics
from slackwater_lab.messaging.receiving.world import SOON
from slackwater_lab.probes import At
from slackwater_lab.topics import make_topics, read_to_end
from slackwater_messaging import CapturedOutbox, CaptureRelay, Message, MessageId, SenderSettings, SendStep
from slackwater_messaging.outbox import BatchProducer, SavedMessage
from slackwater_messaging.receiving import ReceivedMessage, TransactionalProcessor

pytestmark = pytest.mark.integration
LOOK = timedelta(milliseconds=300)
SECONDS = 300.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One that may be stopped, and that soon gives members up."""
    server = KafkaBroker(tmp_path_factory.mktemp("broker"), overrides=SOON)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        server.delete_data()


class World:
    """Topics of one's own, and a connector that reads a captured outbox."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.bootstrap, self.name = broker.bootstrap, f"w{uuid.uuid4().hex[:10]}"
        self.kafka = KafkaSettings(broker.bootstrap)
        self.table = "public.outbox"
        self._changes: ChangeWriter | None = None
        self._next = 0

    def topic(self, name: str, *, exists: bool = True) -> str:
        topic = f"{self.name}.{name}"
        if exists:
            make_topics(self.bootstrap, [topic], 1)
        return topic

    def commit(self, topic: str, value: str) -> None:
        """A transaction of the database with one message."""
        if self._changes is None:
            topics = KafkaTopics(self.bootstrap, f"{self.name}-connector")
            self._changes = ChangeWriter(topics, self.name, {self.table: 1})
        self._next += 1
        row = {"id": self._next, "topic": topic, "key": None, "headers": "[]"}
        row |= {
            "value": b64encode(bytes.fromhex(value)).decode(),
            "created_at": "2026-11-25T04:37:43.150517Z",
        }
        self._changes.transaction([(self.table, self._next, row), (self.table, self._next, None)])
        self._changes.cut()

    def relay(self, probe: Callable[[SendStep], None] = lambda _: None, **options: str) -> CaptureRelay:
        kafka = KafkaSettings(self.bootstrap, options)
        outbox = CapturedOutbox(self.table)
        name, soon = f"{self.name}-relay", SenderSettings(request_timeout=timedelta(seconds=5))
        return CaptureRelay(kafka, outbox, source=self.name, name=name, settings=soon, probe=probe)

    def processor(self, topic: str) -> TransactionalProcessor:
        name = f"{self.name}-processor"
        return TransactionalProcessor(self.kafka, [topic], group=name, transactional_id=name)

    def send(self, topic: str, value: str) -> None:
        message = Message(topic=topic, value=value.encode())
        saved = SavedMessage(MessageId("outbox", 1, 1), message)
        assert BatchProducer(self.kafka, timedelta(seconds=60)).deliver([saved]) == {}

    def values(self, topic: str) -> list[str]:
        return [(record.value() or b"").hex() for record in read_to_end(self.bootstrap, topic)]


@pytest.fixture
def world(broker: KafkaBroker) -> World:
    return World(broker)


def until(condition: Callable[[], object]) -> None:
    pause, left = threading.Event(), int(SECONDS / 0.1)
    while not condition():
        left -= 1
        assert left
        pause.wait(0.1)


@contextmanager
def running(run: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Runs something in a thread beside the block; what it raises is in the list."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield raised
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Callable[[str], bool]:
    caplog.set_level(logging.WARNING)
    return lambda text: any(text in each.getMessage() for each in list(caplog.records))


@pytest.mark.full
def test_a_relay_waits_for_a_broker_that_hangs_and_sends_everything_once(
    broker: KafkaBroker, world: World, reports: Callable[[str], bool]
) -> None:
    out, stop = world.topic("out"), threading.Event()
    world.commit(out, "00")
    with world.relay(At(SendStep.TAKEN, broker.pause)) as relay, running(lambda: relay.run(stop)) as raised:
        try:
            until(lambda: raised or reports(f"relay {world.name}-relay: "))
        finally:
            broker.resume()
        until(lambda: raised or world.values(out))
        world.commit(out, "01")
        until(lambda: raised or world.values(out) == ["00", "01"])
        stop.set()
    assert (raised, world.values(out)) == ([], ["00", "01"])


@pytest.mark.full
@pytest.mark.parametrize("step", [SendStep.TAKEN, SendStep.PRODUCED])
def test_a_relay_goes_on_after_its_broker_was_killed_and_sends_everything_once(
    broker: KafkaBroker, world: World, step: SendStep
) -> None:
    out, stop = world.topic("out"), threading.Event()
    world.commit(out, "00")

    def start_again() -> None:
        broker.kill()
        broker.start()

    with world.relay(At(step, start_again)) as relay, running(lambda: relay.run(stop)) as raised:
        until(lambda: raised or world.values(out))
        world.commit(out, "01")
        until(lambda: raised or world.values(out) == ["00", "01"])
        stop.set()
    assert (raised, world.values(out)) == ([], ["00", "01"])


@pytest.mark.full
def test_a_relay_whose_group_has_given_it_up_goes_back_and_sends_everything_once(
    world: World, reports: Callable[[str], bool]
) -> None:
    """As after a pause of its process within a transaction."""
    out, stop = world.topic("out"), threading.Event()
    world.commit(out, "00")
    admin = AdminClient({"bootstrap.servers": world.bootstrap})

    def wait_until_given_up() -> None:
        group = f"{world.name}-relay"
        until(lambda: not admin.describe_consumer_groups([group])[group].result(60).members)

    options = {"max.poll.interval.ms": "10000", "session.timeout.ms": "10000"}
    probe = At(SendStep.TAKEN, wait_until_given_up)
    with world.relay(probe, **options) as relay, running(lambda: relay.run(stop)) as raised:
        until(lambda: raised or world.values(out))
        world.commit(out, "01")
        until(lambda: raised or world.values(out) == ["00", "01"])
        stop.set()
    assert (raised, world.values(out)) == ([], ["00", "01"])
    assert reports(f"relay {world.name}-relay: ")


@pytest.mark.full
def test_a_topic_that_is_created_while_a_member_waits_is_read(
    world: World, reports: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.kafka.retry.NEW_TOPIC_SECONDS", SECONDS)
    said, seen = world.topic("said", exists=False), list[bytes | None]()
    processor = world.processor(said)

    def process(received: ReceivedMessage) -> list[Message]:
        seen.append(received.value)
        processor.stop()
        return []

    with processor, running(lambda: processor.run(process)) as raised:
        until(lambda: raised or reports(f"looking up topic {said}"))
        world.topic("said")
        world.send(said, "x")
    assert (raised, seen) == ([], [b"x"])


@pytest.mark.full
def test_a_topic_that_stays_away_is_refused_with_what_to_do(
    world: World, reports: Callable[[str], bool]
) -> None:
    said, out = world.topic("said"), world.topic("out", exists=False)
    nowhere = world.topic("nowhere", exists=False)
    with (
        world.processor(nowhere) as processor,
        pytest.raises(StateError, match=rf"topic {nowhere} does not exist; create it"),
    ):
        processor.run(lambda _: [])
    world.send(said, "x")
    with world.processor(said) as processor:
        with pytest.raises(ConfigError, match="create the topic, or correct its name"):
            processor.run(lambda _: [Message(topic=out, value=b"\1")])
        world.topic("out")
        until(lambda: processor.poll(lambda _: [Message(topic=out, value=b"\1")], timeout=LOOK))
    assert world.values(out) == ["01"]
