"""A table behind filters over a database in memory: an outdated filter costs time, and nothing else."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from slackwater_messaging.receiving import (
    FilteredInbox,
    FilterPolicy,
    Place,
    Receipt,
    ReceivedMessage,
    TableInbox,
    TakenOverError,
)

PLACE = Place("orders", 0)


class Database:
    """Keys and effects, both unique; a transaction that fails leaves nothing behind."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(transaction_status=TransactionStatus.IDLE)
        self.keys: dict[bytes, bytes | None] = {}
        self.effects: list[bytes] = []
        self.is_away = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        before = dict(self.keys), list(self.effects)
        try:
            if self.is_away:
                raise psycopg.OperationalError("away")
            yield
        except BaseException:
            self.keys, self.effects = before
            raise

    def execute(self, *_: object) -> Any:
        return SimpleNamespace(fetchall=list)

    def apply(self, effect: bytes) -> None:
        if effect in self.effects:
            raise psycopg.errors.UniqueViolation("effect")
        self.effects.append(effect)


class Keys(TableInbox):
    """The table of keys in memory, with the number of its questions."""

    asked = 0

    def mark(self, connection: Any, receipts: Sequence[Receipt]) -> None:
        self.asked += len(receipts)
        for receipt in receipts:
            if receipt.key in connection.keys:
                receipt.become_repeat(connection.keys[receipt.key])
            connection.keys.setdefault(receipt.key, None)

    def store(self, connection: Any, receipts: Sequence[Receipt]) -> None:
        connection.keys.update({each.key: each.answer for each in receipts if not each.is_repeat})

    def insert(self, connection: Any, receipts: Sequence[Receipt]) -> None:
        if any(each.key in connection.keys for each in receipts):
            raise psycopg.errors.UniqueViolation("key")
        connection.keys.update({each.key: each.answer for each in receipts})

    def knows_any(self, connection: Any, receipts: Sequence[Receipt]) -> bool:
        return any(each.key in connection.keys for each in receipts)


@pytest.fixture
def database() -> Any:
    return Database()


@pytest.fixture
def keys() -> Keys:
    return Keys("inbox", key_of=lambda found: found.value or b"")


@pytest.fixture
def inbox(keys: Keys, database: Any) -> FilteredInbox:
    made = FilteredInbox(keys, policy=FilterPolicy(capacity=100, error_rate=1e-6))
    made.load(database, [PLACE])
    return made


def receive(inbox: FilteredInbox, database: Any, *values: bytes) -> list[bool]:
    """Applies the effects of a batch; returns which messages are repeats."""
    messages = [
        ReceivedMessage(topic="orders", partition=0, offset=offset, value=value)
        for offset, value in enumerate(values)
    ]
    with inbox.receive_batch(database, messages) as receipts:
        for receipt in receipts:
            if not receipt.is_repeat:
                database.apply(receipt.key)
                receipt.answer = b"done"
    return [receipt.is_repeat for receipt in receipts]


def test_keys_that_the_filter_does_not_know_are_not_asked_for(
    inbox: FilteredInbox, keys: Keys, database: Any
) -> None:
    assert receive(inbox, database, b"a", b"b", b"a") == [False, False, True]
    assert keys.asked == 0
    assert receive(inbox, database, b"b", b"c") == [True, False]
    assert keys.asked == 1
    assert database.effects == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_unique", [True, False])
def test_what_another_process_has_received_is_a_repeat_at_the_second_attempt(
    inbox: FilteredInbox, database: Any, is_unique: bool
) -> None:
    """Whether the effect fails, because it is there already, or only the key."""
    database.keys[b"a"] = b"done elsewhere"
    database.effects += [b"a"] if is_unique else []
    with pytest.raises(TakenOverError, match="has processed one of 2"):
        receive(inbox, database, b"b", b"a")
    assert database.effects == ([b"a"] if is_unique else [])
    assert receive(inbox, database, b"b", b"a") == [False, True]
    assert receive(inbox, database, b"a", b"b") == [True, True]
    assert sorted(database.effects) == ([b"a", b"b"] if is_unique else [b"b"])


def test_an_error_of_the_service_is_its_own_if_no_message_was_received_elsewhere(
    inbox: FilteredInbox, database: Any
) -> None:
    database.effects.append(b"a")
    with pytest.raises(psycopg.errors.UniqueViolation, match="effect"):
        receive(inbox, database, b"a")


def test_an_error_is_passed_on_if_the_database_cannot_be_asked_about_it(
    inbox: FilteredInbox, database: Any
) -> None:
    database.keys[b"a"] = None
    messages = [ReceivedMessage(topic="orders", partition=0, offset=0, value=b"a")]
    passed_on = pytest.raises(ZeroDivisionError)
    with passed_on, inbox.receive_batch(database, messages):
        database.is_away = True
        raise ZeroDivisionError


def test_a_partition_without_a_filter_is_looked_up_in_the_table(
    inbox: FilteredInbox, keys: Keys, database: Any
) -> None:
    receive(inbox, database, b"a")
    inbox.forget([PLACE])
    assert receive(inbox, database, b"a", b"b") == [True, False]
    assert keys.asked == 2
