"""What is not safe to share says so, for threads and for the tasks of one thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest

from slackwater.protocol import ConfigError, KafkaSettings, StateError
from slackwater_messaging import (
    CapturedOutbox,
    CaptureRelay,
    ChainedSender,
    DeliveryListener,
    Outbox,
    PollingRelay,
    PreparedSender,
    ProvenSender,
    SavedSender,
    SenderSettings,
)
from slackwater_messaging.kafka import SenderProducer
from slackwater_messaging.receiving import (
    BloomInbox,
    FilteredInbox,
    FilterPolicy,
    Receiver,
    TableInbox,
    TransactionalProcessor,
)
from slackwater_messaging.running import Exclusive

KAFKA = KafkaSettings("127.0.0.1:1", {"log_level": "0"})
OUTBOX = Outbox("outbox")
POLICY = FilterPolicy(capacity=10, error_rate=0.1)
IN_USE = "in use by another thread or task"


def enter(block: AbstractContextManager[Any]) -> None:
    with block:
        pass


def receiver() -> Receiver:
    return Receiver(KAFKA, ["said"], group="g", inbox=TableInbox("inbox"), connect=lambda: None)  # type: ignore[arg-type,return-value]


Use = tuple[Callable[[], Any], Callable[[Any], object]]
SENDERS: dict[str, Callable[[], Any]] = {
    "chained": lambda: ChainedSender(KAFKA, "a"),
    "saved": lambda: SavedSender(KAFKA, OUTBOX, "a"),
    "proven": lambda: ProvenSender(KAFKA, OUTBOX, "a"),
    "prepared": lambda: PreparedSender(KAFKA, "a"),
}
USES: dict[str, Use] = {
    **{name: (make, lambda each: enter(each.transaction(None))) for name, make in SENDERS.items()},
    **{f"closing {name}": (make, lambda each: each.close()) for name, make in SENDERS.items()},
    "recovering saved": (SENDERS["saved"], lambda each: each.recover(None)),
    "recovering prepared": (SENDERS["prepared"], lambda each: each.recover(None)),
    "relay": (lambda: PollingRelay("", KAFKA, OUTBOX), lambda each: each.run_once()),
    "capture relay": (
        lambda: CaptureRelay(KAFKA, CapturedOutbox(), source="inv", name="a"),
        lambda each: each.run_once(),
    ),
    "listener": (
        lambda: DeliveryListener("", KAFKA, OUTBOX, topics=["paid"], group="g"),
        lambda each: each.run_once(timedelta(0)),
    ),
    "receiver": (receiver, lambda each: each.poll(lambda *_: None, timeout=timedelta(0))),
    "processor": (
        lambda: TransactionalProcessor(KAFKA, ["said"], group="g", transactional_id="a"),
        lambda each: each.poll(lambda _: [], timeout=timedelta(0)),
    ),
    "bloom inbox": (
        lambda: BloomInbox("inbox", key_of=lambda m: b"", policy=POLICY),
        lambda each: enter(each.receive_batch(None, [])),
    ),
    "filtered inbox": (
        lambda: FilteredInbox(TableInbox("inbox"), policy=POLICY),
        lambda each: enter(each.receive_batch(None, [])),
    ),
}


@contextmanager
def closed(each: Any) -> Iterator[Any]:
    if hasattr(each, "close"):
        with closing(each):
            yield each
    else:
        yield each


@pytest.mark.parametrize("use", USES)
def test_a_second_use_is_refused_while_the_first_one_lasts(use: str) -> None:
    make, again = USES[use]
    with closed(make()) as each:
        with each._use.held(), pytest.raises(ConfigError, match=IN_USE):  # noqa: SLF001
            again(each)
        with each._use.held():  # noqa: SLF001 - it was given back
            pass


def test_a_thread_is_refused_as_well_and_what_has_failed_is_free_again() -> None:
    exclusive = Exclusive("the sender", "use a pool")
    refused: list[str] = []

    def use() -> None:
        try:
            enter(exclusive.held())
        except ConfigError as error:
            refused.append(str(error))

    def fail() -> None:
        with exclusive.held():
            thread = threading.Thread(target=use)
            thread.start()
            thread.join(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    use()
    assert refused == ["the sender is in use by another thread or task; use a pool"]


@pytest.mark.parametrize(
    "call", [lambda producer: producer.commit(), lambda producer: producer.send_offsets([], None)]
)
def test_a_transaction_that_is_not_open_cannot_be_committed(call: Callable[[SenderProducer], None]) -> None:
    """Fails if a commit returns although another user of the sender has ended its transaction."""
    with pytest.raises(StateError, match="Kafka transaction of sender a ended before"):
        call(SenderProducer(KAFKA, "a", SenderSettings()))
