"""Each way to receive a message once, and twins that lack what makes it work."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from typing import Any

import psycopg

from slackwater_messaging.receiving import (
    BloomInbox,
    FilteredInbox,
    FilterPolicy,
    Inbox,
    Place,
    Receipt,
    ReceivedMessage,
    TableInbox,
    offset_key,
)

POLICY = FilterPolicy(capacity=10_000, error_rate=1e-9)
"""So rare an error that none comes in a test."""
AT_ONCE = timedelta(0)
"""Filters are written whenever they may be."""
MEASURED_POLICY = FilterPolicy(capacity=1_000_000, error_rate=1e-6)
"""As a service would have it."""


class Way(StrEnum):
    """What promises to lose and repeat nothing."""

    TABLE = "table"
    FILTERED = "filtered"
    BLOOM = "bloom"


class Twin(StrEnum):
    """What lacks one thing, and must be caught."""

    OFFSETS = "offsets"
    """No inbox: what Kafka delivers again is processed again."""
    KEY_APART = "key-apart"
    """The keys are committed before the effect, in another transaction."""
    UNFENCED = "unfenced"
    """The position is set without a comparison."""


def business_key(message: ReceivedMessage) -> bytes:
    """Returns the item that a message is about."""
    return message.key or b""


def make_inbox(
    way: Way | Twin, name: str, *, policy: FilterPolicy = POLICY, save_interval: timedelta = AT_ONCE
) -> Inbox:
    """Returns an inbox whose tables are called after a name."""
    match way:
        case Way.TABLE:
            return TableInbox(name, key_of=business_key, shards=4)
        case Way.FILTERED:
            table = TableInbox(name, key_of=business_key, shards=4)
            return FilteredInbox(table, policy=policy, save_interval=save_interval)
        case Way.BLOOM:
            return BloomInbox(name, key_of=business_key, policy=policy, save_interval=save_interval)
        case Twin.OFFSETS:
            return _NoInbox(name, key_of=business_key)
        case Twin.KEY_APART:
            return _KeyApartInbox(name, key_of=business_key)
        case Twin.UNFENCED:
            return _UnfencedInbox(name, key_of=business_key, policy=policy, save_interval=save_interval)


class _NoInbox(TableInbox):
    @contextmanager
    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        with connection.transaction():
            yield [Receipt(offset_key(message), message) for message in messages]

    def maintain(self, connection: psycopg.Connection[Any]) -> None:
        del connection  # there is nothing to forget


class _KeyApartInbox(TableInbox):
    @contextmanager
    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        with super().receive_batch(connection, messages) as receipts:
            pass
        with connection.transaction():
            yield receipts


class _UnfencedInbox(BloomInbox):
    def _advance(self, connection: psycopg.Connection[Any], place: Place, end: int) -> None:
        self._next[place] = self._lock(connection, place)
        super()._advance(connection, place, end)
