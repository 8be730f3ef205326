"""The service that is killed: business transactions, each with its messages, in a process of its own.

Its judge compares the business table with the topic.
"""

import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from typing import Any, Final

import psycopg
from psycopg import sql

from slackwater.protocol import KafkaSettings, SystemClock
from slackwater_lab.probes import SignalAt
from slackwater_lab.topics import read_to_end
from slackwater_messaging import Message, SenderSettings
from slackwater_messaging.database import KeptConnection

MESSAGES: Final = 2
"""Of each business transaction."""
KEYS: Final = 3
"""Keys that business transactions take in turn."""
ROLLED_BACK: Final = 4
"""One of this many business transactions fails after it has sent its messages."""
BUSINESS: Final = "business"
"""The point before the first step of every way: the data is written, and nothing of its messages."""
SETTINGS: Final = SenderSettings(clock_margin=timedelta(minutes=1))
_JOIN_SECONDS: Final = 300.0

Database = psycopg.Connection[Any]
Send = Callable[..., None]
"""Sends messages with the business transaction that is open."""
Probe = Callable[[str], None]
"""Receives each :class:`SendStep`, and :data:`BUSINESS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a service is to do."""

    way: str
    database: str
    bootstrap: str
    name: str
    """Of the sender, the business table and the topic."""
    first: int = 1
    """The number of its first business transaction."""
    count: int = 3
    messages: int = MESSAGES
    """Of each business transaction."""
    value_bytes: int = 0
    """Of each message, at least."""
    rolled_back: int = ROLLED_BACK
    """One of this many business transactions fails; 0 for none."""
    rate: float | None = None
    """Business transactions per second, at intended times; None: one directly after the other."""
    seconds: float | None = None
    """How long it works, whatever is left of ``count``."""
    settings: SenderSettings = SETTINGS
    """Of the sender."""
    capture_batch: int = 1
    """Database transactions in one Kafka transaction of the relay of captured messages."""
    kill_at: tuple[str, int] | None = None
    """The step, and which of its occurrences counting from 1, at which the process kills itself."""

    @property
    def topic(self) -> str:
        return f"{self.name}.orders"

    @property
    def table(self) -> str:
        return f"{self.name}_orders"

    @property
    def outbox(self) -> str:
        return f"{self.name}_outbox"

    @property
    def kafka(self) -> KafkaSettings:
        return KafkaSettings(self.bootstrap)

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def probe(self) -> SignalAt:
        """Kills the process where the order says so."""
        return SignalAt(*self.kill_at) if self.kill_at else SignalAt()


def business_message(topic: str, number: int, place: int, value_bytes: int = 0) -> Message:
    """Returns a message of a business transaction; its value has this many bytes at least."""
    value = json.dumps({"transaction": number, "place": place}).encode().ljust(value_bytes)
    return Message(topic=topic, key=f"account-{number % KEYS}".encode(), value=value)


class BusinessError(Exception):
    """A business transaction that fails, as some do."""


class Business:
    """A service at work, over a connection that is made when it is needed, and again when it has broken."""

    def __init__(
        self, order: Order, transaction: Callable[[Database], AbstractContextManager[Send]], probe: Probe
    ) -> None:
        self._order, self._transaction, self._probe = order, transaction, probe
        self._connection = KeptConnection(order.database)
        insert = sql.SQL("INSERT INTO {} VALUES (%s)")
        self._insert = insert.format(sql.Identifier(order.table))

    def do(self, number: int) -> None:
        """Does one business transaction; one that fails of itself is passed over."""
        connection = self._connection.open()
        with suppress(BusinessError), self._transaction(connection) as send:
            connection.execute(self._insert, [number])
            self._probe(BUSINESS)
            send(*self._messages(number))
            if self._order.rolled_back and number % self._order.rolled_back == 0:
                raise BusinessError

    def close(self) -> None:
        """Closes the connection; the next business transaction has another one."""
        self._connection.close()

    def _messages(self, number: int) -> Iterator[Message]:
        order = self._order
        return (
            business_message(order.topic, number, place, order.value_bytes) for place in range(order.messages)
        )


def make_business_table(order: Order) -> None:
    """Makes the business table."""
    text = sql.SQL("CREATE TABLE IF NOT EXISTS {} (number bigint PRIMARY KEY)")
    with psycopg.connect(order.database, autocommit=True) as connection:
        connection.execute(text.format(sql.Identifier(order.table)))


def run(order: Order) -> None:
    """Runs a service, and what delivers for it, in turns, to its end or its death."""
    from slackwater_lab.messaging.sending.ways import WAYS  # which imports this module

    way, probe = WAYS[order.way], order.probe
    with way.open(order, probe) as business, way.deliver(order, probe) as delivery:
        for number in order.numbers:
            business.do(number)
            while not way.is_delivered(order):
                delivery.run_once()


def run_at_rate(order: Order) -> None:
    """Runs a service alone, at the order's rate and for its time."""
    from slackwater_lab.messaging.sending.ways import WAYS

    clock, pause = SystemClock(), threading.Event()
    with WAYS[order.way].open(order, order.probe) as business:
        start = clock.monotonic()
        for place, number in enumerate(order.numbers):
            now = clock.monotonic() - start
            if order.seconds is not None and now >= order.seconds:
                return
            if order.rate is not None:
                pause.wait(max(0.0, place / order.rate - now))
            business.do(number)


def run_delivery(order: Order) -> None:
    """Runs what delivers for a service until it is killed."""
    from slackwater_lab.messaging.sending.ways import WAYS

    with WAYS[order.way].deliver(order, order.probe) as delivery:
        delivery.run(threading.Event())


def start(order: Order, work: Callable[[Order], None] = run) -> BaseProcess:
    """Starts one of the functions above in a process of its own, which ends with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["slackwater_lab.messaging.sending.ways"])
    process = context.Process(target=work, args=(order,), daemon=True)
    process.start()
    return process


def run_in_process(order: Order) -> int:
    """Runs a service in a process of its own; returns its exit code, which is -9 if it was killed."""
    process = start(order)
    process.join(_JOIN_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    return -1 if process.exitcode is None else process.exitcode


@dataclass(frozen=True, slots=True, kw_only=True)
class SendVerdict:
    """What a reader of committed records sees, against what the database has committed. Counts messages."""

    rows: int
    """Business transactions that are committed."""
    lost: int
    """Messages of committed transactions that are not in the topic."""
    repeated: int
    """Messages that are in the topic once more than once."""
    ghosts: int
    """Messages in the topic whose transaction is not committed."""
    disordered: int
    """Messages that came, for the first time, behind a later one of their key."""


def judge(order: Order) -> SendVerdict:
    """Judges what is visible now.

    Raises:
        RunFailedError: The topic cannot be read.
    """
    with psycopg.connect(order.database, autocommit=True) as connection:
        query = sql.SQL("SELECT number FROM {}").format(sql.Identifier(order.table))
        committed = {number for (number,) in connection.execute(query)}
    shown: Counter[tuple[int, int]] = Counter()
    newest: dict[bytes | None, tuple[int, int]] = {}
    disordered = 0
    for record in read_to_end(order.bootstrap, order.topic):
        found = json.loads(record.value() or b"")
        each, key = (found["transaction"], found["place"]), record.key()
        if each not in shown:
            disordered += each < newest.get(key, each)
            newest[key] = max(each, newest.get(key, each))
        shown[each] += 1
    expected = {(number, place) for number in committed for place in range(order.messages)}
    return SendVerdict(
        rows=len(committed),
        lost=len(expected - shown.keys()),
        repeated=shown.total() - len(shown),
        ghosts=len(shown.keys() - expected),
        disordered=disordered,
    )
