"""Payments from a topic into a database, each once: the inbox table.

    python receive_with_a_table.py BOOTSTRAP DATABASE TOPIC

A message is JSON with ``payment`` (unique: the same number is the same payment), ``account`` and ``amount``.
It runs until it is interrupted; kill it whenever you like.
"""

import json
import signal
import sys
from datetime import timedelta
from typing import Any

import psycopg

from slackwater.protocol import KafkaSettings
from slackwater_messaging.receiving import ReceivedMessage, Receiver, TableInbox

OPTIONS = "-c lock_timeout=10s -c idle_in_transaction_session_timeout=60s"


def payment_of(message: ReceivedMessage) -> str:
    """Returns what tells payments apart, also if their sender writes one again."""
    return str(json.loads(message.value or b"{}")["payment"])


INBOX = TableInbox("payment_inbox", key_of=payment_of, remember=timedelta(days=30))


def create_tables(connection: psycopg.Connection[Any]) -> None:
    """Makes what the service needs, once."""
    with connection.transaction():
        INBOX.create(connection)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS balance (account text PRIMARY KEY, amount bigint NOT NULL)"
        )


def pay(connection: psycopg.Connection[Any], message: ReceivedMessage) -> bytes:
    """Books a payment, in the transaction in which its key is stored. Returns the answer."""
    payment = json.loads(message.value or b"{}")
    row = connection.execute(
        "INSERT INTO balance VALUES (%(account)s, %(amount)s) ON CONFLICT (account)"
        " DO UPDATE SET amount = balance.amount + excluded.amount RETURNING amount",
        payment,
    ).fetchone()
    return json.dumps({"payment": payment["payment"], "balance": row and row[0]}).encode()


def pay_on_request(
    connection: psycopg.Connection[Any], request_id: str, message: ReceivedMessage
) -> bytes | None:
    """Books a payment that came as a request with an id: a client that asks again gets the same answer."""
    with INBOX.receive(connection, request_id) as receipt:
        if not receipt.is_repeat:
            receipt.answer = pay(connection, message)
    return receipt.answer


def payments(bootstrap: str, database: str, topic: str) -> Receiver:
    """Returns the receiver; ``run(pay)`` is the service."""
    return Receiver(
        KafkaSettings(bootstrap),
        [topic],
        group="payments",
        inbox=INBOX,
        connect=lambda: psycopg.connect(database, options=OPTIONS),
    )


if __name__ == "__main__":
    with psycopg.connect(sys.argv[2]) as setup:
        create_tables(setup)
    with payments(*sys.argv[1:]) as receiver:
        signal.signal(signal.SIGTERM, lambda number, frame: receiver.stop())
        receiver.run(pay)
