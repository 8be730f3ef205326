"""Compares the business table with the topic: what was lost, repeated, shown without data, out of order."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import psycopg
from psycopg import sql

from slackwater_lab.topics import read_to_end
from slackwater_messaging import Message

MESSAGES = 2
"""Messages of each business transaction."""
KEYS = 3
"""Keys that business transactions take in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
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


class Judged(Protocol):
    """What a service was to do, as far as a judge has to know it."""

    @property
    def database(self) -> str:
        """The connection string."""
        ...

    @property
    def bootstrap(self) -> str:
        """The brokers."""
        ...

    @property
    def table(self) -> str:
        """The business table."""
        ...

    @property
    def topic(self) -> str:
        """Where its messages go."""
        ...

    @property
    def messages(self) -> int:
        """Of each business transaction."""
        ...


def business_message(topic: str, number: int, place: int, value_bytes: int = 0) -> Message:
    """Returns a message of a business transaction; its value has this many bytes at least."""
    value = json.dumps({"transaction": number, "place": place}).encode().ljust(value_bytes)
    return Message(topic=topic, key=f"account-{number % KEYS}".encode(), value=value)


def judge(order: Judged) -> Verdict:
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
    return Verdict(
        rows=len(committed),
        lost=len(expected - shown.keys()),
        repeated=shown.total() - len(shown),
        ghosts=len(shown.keys() - expected),
        disordered=disordered,
    )
