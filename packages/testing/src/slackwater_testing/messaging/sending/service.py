"""The service that is killed: business transactions, each with its messages, in a process of its own."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess

from psycopg import Connection, sql

from slackwater_messaging import Message
from slackwater_messaging.sending import SendStep
from slackwater_protocol import KafkaSettings
from slackwater_testing.messaging.sending.judge import MESSAGES, business_message
from slackwater_testing.probes import SignalAt

ROLLED_BACK = 4
"""Every so many business transactions fail after they have sent their messages."""
_JOIN_SECONDS = 300.0


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
    kill_at: tuple[SendStep, int] | None = None
    """The step, and which of its occurrences counting from 1, at which the process kills itself."""

    @property
    def topic(self) -> str:
        """Where its messages go."""
        return f"{self.name}.orders"

    @property
    def table(self) -> str:
        """The business table."""
        return f"{self.name}_orders"

    @property
    def outbox(self) -> str:
        """The table of messages."""
        return f"{self.name}_outbox"

    @property
    def kafka(self) -> KafkaSettings:
        """The brokers."""
        return KafkaSettings(self.bootstrap)

    @property
    def numbers(self) -> range:
        """Its business transactions."""
        return range(self.first, self.first + self.count)


class BusinessError(Exception):
    """A business transaction that fails, as some do."""


def make_business_table(connection: Connection[tuple[object, ...]], order: Order) -> None:
    """Makes the business table."""
    text = sql.SQL("CREATE TABLE IF NOT EXISTS {} (number bigint PRIMARY KEY)")
    connection.execute(text.format(sql.Identifier(order.table)))


def do_business(
    connection: Connection[tuple[object, ...]], order: Order, number: int, send: Callable[..., None]
) -> None:
    """Does what belongs to one business transaction, which is open.

    Raises:
        BusinessError: It is one of those that fail.
    """
    text = sql.SQL("INSERT INTO {} VALUES (%s)").format(sql.Identifier(order.table))
    connection.execute(text, [number])
    send(*messages_of(order, number))
    if number % ROLLED_BACK == 0:
        raise BusinessError


def messages_of(order: Order, number: int) -> Iterator[Message]:
    """Yields the messages of a business transaction."""
    return (business_message(order.topic, number, place) for place in range(MESSAGES))


def failing_business() -> suppress:
    """Passes over business transactions that fail."""
    return suppress(BusinessError)


def run(order: Order) -> None:
    """Runs a service to its end, or to its death."""
    from slackwater_testing.messaging.sending.ways import WAYS  # which imports this module

    WAYS[order.way].run(order, SignalAt(*order.kill_at) if order.kill_at else SignalAt())


def start(order: Order) -> ForkServerProcess:
    """Starts a service in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["slackwater_testing.messaging.sending.ways"])
    process: ForkServerProcess = context.Process(target=run, args=(order,), daemon=True)
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
