"""Applies every transaction of a pipeline's output to PostgreSQL exactly once.

    python exactly_once_postgres.py BOOTSTRAP OUTPUT_TOPIC GROUP POSTGRES_URL

The effect of a transaction and the consumer's position behind it are stored in one database transaction, so
neither is there without the other, whenever the process dies.
"""

import sys

import psycopg

from slackwater.client import ConsumerSettings, OutputTopics, Transaction, TransactionalConsumer
from slackwater.protocol import KafkaSettings

TABLES = """
CREATE TABLE IF NOT EXISTS consumer_positions (
    consumer_group text, lane integer, commit_id text COLLATE "C", position text,
    PRIMARY KEY (consumer_group, lane)
);
CREATE TABLE IF NOT EXISTS ledger (commit_id text, document text);
"""
STORED = "SELECT position FROM consumer_positions WHERE consumer_group = %s AND lane = %s"
STORE = """
INSERT INTO consumer_positions
SELECT %s, unnest(%s::integer[]), %s, unnest(%s::text[])
ON CONFLICT (consumer_group, lane) DO UPDATE SET commit_id = excluded.commit_id, position = excluded.position
WHERE consumer_positions.commit_id < excluded.commit_id
"""


class OvertakenError(RuntimeError):
    """Another member of the group has applied the transaction: this one was away for too long."""


class Handler:
    """Applies transactions to a database, each exactly once."""

    def __init__(self, database: psycopg.Connection, group: str) -> None:
        self._database, self._group = database, group
        database.execute(TABLES)

    def position(self, lane: int) -> str | None:
        """Returns how far a lane is; None: nothing of it was applied yet."""
        row = self._database.execute(STORED, [self._group, lane]).fetchone()
        return row[0] if row else None

    def process(self, transaction: Transaction) -> None:
        """Applies a transaction together with its position, or nothing of it."""
        with self._database.transaction():
            self.apply(transaction)
            self.store(transaction)

    def apply(self, transaction: Transaction) -> None:
        """The work itself."""
        for record in transaction:
            values = [transaction.commit.id, (record.value() or b"").decode()]
            self._database.execute("INSERT INTO ledger VALUES (%s, %s)", values)

    def store(self, transaction: Transaction) -> None:
        """Moves the positions on; refuses to if another member has done so."""
        positions = transaction.positions
        values = [self._group, list(positions), transaction.commit.id, list(positions.values())]
        if self._database.execute(STORE, values).rowcount < len(positions):
            raise OvertakenError(f"overtaken at {transaction.commit.id}")


def main(bootstrap: str, topic: str, group: str, url: str) -> None:
    """Continues until it is stopped, or fails; start it again then."""
    with psycopg.connect(url, autocommit=True) as database:
        handler = Handler(database, group)
        with TransactionalConsumer(
            KafkaSettings(bootstrap),
            OutputTopics(topic),
            group=group,
            positions=handler.position,
            settings=ConsumerSettings(stores_positions=False),
        ) as consumer:
            for transaction in consumer:
                handler.process(transaction)


if __name__ == "__main__":
    main(*sys.argv[1:])
