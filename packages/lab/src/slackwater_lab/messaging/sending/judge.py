"""Compares the business table with the topic: what was lost, repeated, shown without data, out of order."""

import json
from collections import Counter
from dataclasses import dataclass

import psycopg
from psycopg import sql

from slackwater_lab.messaging.sending.service import Order
from slackwater_lab.topics import read_to_end


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
