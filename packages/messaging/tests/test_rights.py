"""A service that sends or receives messages needs every line of the list of its role, and no more.

Brokers refuse everything that is not in the list, as `slackwater acl sender` and `receiver` print it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slackwater.dev import PostgresServer
from slackwater.protocol import SystemClock
from slackwater.protocol.keys import cut_log_topic, data_topic
from slackwater.protocol.rights import (
    SendingWay,
    audit_rights,
    consumer_rights,
    processor_rights,
    sender_rights,
)
from slackwater_lab.errors import WorkRefusedError
from slackwater_lab.fakes.outputs import ChangeWriter, KafkaTopics
from slackwater_lab.messaging.sending.world import World as Shop
from slackwater_lab.probes import At, Death
from slackwater_lab.secured_servers import SecuredServers
from slackwater_lab.trials import Trial, World, superfluous
from slackwater_messaging import (
    AuditWindow,
    CapturedOutbox,
    CaptureRelay,
    ChainedSender,
    DeliveryListener,
    Message,
    PollingRelay,
    PreparedSender,
    ProvenSender,
    RelaySettings,
    SavedSender,
    SenderPool,
    SenderSettings,
    SendProbe,
    SendStep,
    audit_messages,
    id_finder,
)
from slackwater_messaging.receiving import Receiver, TableInbox, TransactionalProcessor
from slackwater_messaging.sender import no_probe

pytestmark = pytest.mark.integration

TRIED = "tried"
OUTBOX = "public.outbox"
SETTINGS = SenderSettings(request_timeout=timedelta(seconds=10), retry_after=timedelta(0))
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServers]:
    """A broker whose users may do nothing at first."""
    with SecuredServers(tmp_path_factory.mktemp("secured"), {TRIED: "word"}) as running:
        yield running


class Business(Shop):
    """A database and a topic with a record, and the user that is tried."""

    def __init__(self, world: World, dsn: str) -> None:
        super().__init__(dsn, world.plain.bootstrap)
        world.running.callback(self.connection.close)
        self.own = world.kafka
        """As the user who is tried."""
        self._patience = world.patience
        with ChainedSender(self.kafka, f"{self.name}-before") as sender:
            self.sell(sender, 0)

    def repeat_until(self, is_done: Callable[[], object]) -> None:
        clock = SystemClock()
        deadline = clock.monotonic() + self._patience
        while not is_done():
            if clock.monotonic() > deadline:
                raise WorkRefusedError("nothing happens")

    def sell(self, sender: ChainedSender | SavedSender | PreparedSender, number: int) -> None:
        with sender.transaction(self.connection) as sending:
            sending.connection.execute(*self.insert(number))
            sending.send(self.message(str(number)))


def polling(shop: Business) -> Trial:
    shop.outbox.send(shop.connection, shop.message("1"))

    def work() -> None:
        settings = RelaySettings(request_timeout=timedelta(seconds=10))
        with PollingRelay(shop.dsn, shop.own, shop.outbox, settings=settings) as relay:
            if relay.run_once() != 1:
                raise WorkRefusedError(relay.refused)

    return Trial(sender_rights(SendingWay.POLLING, [shop.topic], ""), work)


def capture(shop: Business) -> Trial:
    writer = ChangeWriter(KafkaTopics(shop.bootstrap, f"{shop.name}-connector"), shop.name, {OUTBOX: 1})
    row = {"id": 1, "topic": shop.topic, "key": None, "value": "eA==", "headers": "[]"}
    writer.transaction([(OUTBOX, 1, {**row, "created_at": "2026-11-25T04:37:43.150517Z"})])
    writer.cut()
    name = f"{shop.name}-relay"

    def work() -> None:
        captured = CapturedOutbox(OUTBOX)
        with CaptureRelay(shop.own, captured, source=shop.name, name=name, settings=SETTINGS) as relay:
            shop.repeat_until(relay.run_once)

    captured = [data_topic(shop.name, OUTBOX), cut_log_topic(shop.name)]
    return Trial(sender_rights(SendingWay.CAPTURE, [shop.topic], name, captured), work)


def chained(shop: Business) -> Trial:
    def work() -> None:
        with ChainedSender(shop.own, shop.name, settings=SETTINGS) as sender:
            shop.sell(sender, 1)

    return Trial(sender_rights(SendingWay.CHAINED, [shop.topic], shop.name), work)


def saved(shop: Business, kind: type[SavedSender] = SavedSender, way: SendingWay = SendingWay.SAVED) -> Trial:
    """Sends what a sender has left that died, and then a message of its own."""
    died = At(SendStep.DATABASE_COMMITTED)
    with pytest.raises(Death), kind(shop.kafka, shop.outbox, shop.name, probe=died) as sender:
        shop.sell(sender, 1)

    def work() -> None:
        with kind(shop.own, shop.outbox, shop.name, settings=SETTINGS) as sender:
            sender.recover(shop.connection)
            shop.sell(sender, 2)
            if not sender.is_settled:
                raise WorkRefusedError("the message was not sent")

    return Trial(sender_rights(way, [shop.topic], shop.name), work)


def prepared(shop: Business) -> Trial:
    """Decides what a sender has left that died, and then sends a message of its own."""

    def work() -> None:
        died = At(SendStep.PREPARED)
        first = PreparedSender(shop.own, shop.name, settings=SETTINGS, probe=died)
        with pytest.raises(Death), first as sender:
            shop.sell(sender, 1)
        with PreparedSender(shop.own, shop.name, settings=SETTINGS) as sender:
            shop.sell(sender, 2)

    return Trial(sender_rights(SendingWay.PREPARED, [shop.topic], shop.name), work)


def pool(shop: Business, way: SendingWay) -> Trial:
    """Recovers what a slot has left that this pool does not have, and then sends a message."""

    def make(name: str, probe: SendProbe = no_probe) -> SavedSender | PreparedSender:
        if way is SendingWay.SAVED:
            return SavedSender(shop.own, shop.outbox, name, settings=SETTINGS, probe=probe)
        return PreparedSender(shop.own, name, settings=SETTINGS, probe=probe)

    def work() -> None:
        step = SendStep.DATABASE_COMMITTED if way is SendingWay.SAVED else SendStep.PREPARED
        with pytest.raises(Death), make(f"{shop.name}.slot-7", At(step)) as sender:
            shop.sell(sender, 1)
        with SenderPool(make, shop.name, size=1) as senders:
            senders.recover(shop.connection)
            with senders.transaction(shop.connection) as sending:
                sending.send(shop.message("2"))
            if shop.waiting:
                raise WorkRefusedError("a message was not sent")

    return Trial(sender_rights(way, [shop.topic], shop.name, is_pool=True), work)


def listener(shop: Business) -> Trial:
    with ProvenSender(shop.kafka, shop.outbox, shop.name) as sender:
        shop.sell(sender, 1)

    def work() -> None:
        topics, group = [shop.topic], shop.name
        with DeliveryListener(shop.dsn, shop.own, shop.outbox, topics=topics, group=group) as listener:
            shop.repeat_until(listener.run_once)

    return Trial(consumer_rights([shop.topic], shop.name), work)


def receiver(shop: Business) -> Trial:
    inbox = TableInbox(f"{shop.name}_inbox")
    inbox.create(shop.connection)

    def work() -> None:
        connect = partial(psycopg.Connection[Any].connect, shop.dsn)
        with Receiver(shop.own, [shop.topic], group=shop.name, inbox=inbox, connect=connect) as receiver:
            shop.repeat_until(lambda: receiver.poll(lambda connection, message: None))

    return Trial(consumer_rights([shop.topic], shop.name), work)


def processor(shop: Business) -> Trial:
    output, own_id = shop.make_topic("made"), f"{shop.name}-processor"

    def work() -> None:
        with TransactionalProcessor(
            shop.own, [shop.topic], group=shop.name, transactional_id=own_id
        ) as processor:
            shop.repeat_until(lambda: processor.poll(lambda message: [Message(topic=output, value=b"x")]))

    return Trial(processor_rights([shop.topic], [output], shop.name, own_id), work)


def audit(shop: Business) -> Trial:
    now = SystemClock().now()
    window = AuditWindow(start=now - HOUR, end=now + HOUR)
    query = "SELECT 'k', now() WHERE now() >= %(start)s AND now() < %(end)s"

    def work() -> None:
        report = audit_messages(
            shop.connection,
            shop.own,
            query=query,
            topics=[shop.topic],
            find_id=id_finder("key"),
            window=window,
        )
        if not report.is_clean:
            raise WorkRefusedError(report)

    return Trial(audit_rights([shop.topic]), work)


TRIALS: Mapping[str, Callable[[Business], Trial]] = {
    "polling": polling,
    "capture": capture,
    "chained": chained,
    "saved": saved,
    "proven": lambda shop: saved(shop, ProvenSender, SendingWay.PROVEN),
    "prepared": prepared,
    "pool of saved": lambda shop: pool(shop, SendingWay.SAVED),
    "pool of prepared": lambda shop: pool(shop, SendingWay.PREPARED),
    "listener": listener,
    "receiver": receiver,
    "processor": processor,
    "audit": audit,
}


QUICK = ("polling", "chained", "listener", "receiver", "audit")


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in TRIALS]
)
def test_no_line_of_a_list_can_be_left_out(
    servers: SecuredServers, postgres_server: PostgresServer, tmp_path: Path, name: str
) -> None:
    make, dsn = TRIALS[name], postgres_server.dsn()
    with ExitStack() as running:

        def trial(patience: float) -> Trial:
            return make(Business(World(servers, tmp_path, running, TRIED, patience), dsn))

        assert superfluous(trial, servers, TRIED) == []
