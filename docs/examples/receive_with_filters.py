"""Clicks from a topic into a database: filters, with and without a table behind them.

    python receive_with_filters.py BOOTSTRAP DATABASE TOPIC [--accept-loss]

A message's key is the click, its value the page. With ``--accept-loss`` there is no row per click, and at
most one of a million clicks is not counted.
"""

import sys
from datetime import timedelta
from typing import Any

import psycopg

from slackwater.protocol import KafkaSettings
from slackwater_messaging.receiving import (
    BloomInbox,
    FilteredInbox,
    FilterPolicy,
    Inbox,
    ReceivedMessage,
    Receiver,
    TableInbox,
)

OPTIONS = "-c lock_timeout=10s -c idle_in_transaction_session_timeout=60s"


def click_of(message: ReceivedMessage) -> bytes:
    """Returns what tells clicks apart."""
    return message.key or b""


def filtered() -> Inbox:
    """One of 10,000 new clicks is looked up in the table; none is lost."""
    policy = FilterPolicy(capacity=1_000_000, error_rate=1e-4, remember=timedelta(days=1), windows=4)
    return FilteredInbox(TableInbox("click_inbox", key_of=click_of), policy=policy)


def filters_alone() -> Inbox:
    """One of 1,000,000 new clicks is taken for a repeat, at most, and is lost."""
    policy = FilterPolicy(capacity=1_000_000, error_rate=1e-6, remember=timedelta(days=1), windows=4)
    return BloomInbox("click_inbox", key_of=click_of, policy=policy)


def count(connection: psycopg.Connection[Any], message: ReceivedMessage) -> None:
    """Counts a click."""
    connection.execute(
        "INSERT INTO clicks VALUES (%s, 1) ON CONFLICT (page) DO UPDATE SET clicks = clicks.clicks + 1",
        [(message.value or b"").decode()],
    )


def create_tables(connection: psycopg.Connection[Any], inbox: Inbox) -> None:
    """Makes what the service needs, once."""
    with connection.transaction():
        inbox.create(connection)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS clicks (page text PRIMARY KEY, clicks bigint NOT NULL)"
        )


def clicks(bootstrap: str, database: str, topic: str, inbox: Inbox) -> Receiver:
    """Returns the receiver; ``run(count)`` is the service."""
    return Receiver(
        KafkaSettings(bootstrap),
        [topic],
        group="clicks",
        inbox=inbox,
        connect=lambda: psycopg.connect(database, options=OPTIONS),
    )


if __name__ == "__main__":
    chosen = filters_alone() if "--accept-loss" in sys.argv else filtered()
    bootstrap_servers, database_url, clicks_topic = sys.argv[1:4]
    with psycopg.connect(database_url) as setup:
        create_tables(setup, chosen)
    with clicks(bootstrap_servers, database_url, clicks_topic, chosen) as receiver:
        receiver.run(count)
