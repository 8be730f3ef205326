"""The consumers of a chaos run: what each group reads, and the process that is one member of it.

``python -m slackwater_lab.chaos.consumer FOLDER GROUP BOOTSTRAP URL [--without one-transaction]`` stores
every record that it is given in PostgreSQL. FOLDER is its control folder. A group that is to be exactly once
does as ``docs/examples/exactly_once_postgres.py`` does, with that file's own code.
"""

import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from runpy import run_path
from typing import Any

import psycopg

from slackwater.cdc.records.record import Record
from slackwater.client import (
    ByUnit,
    ChangeTopics,
    ConsumerSettings,
    Everything,
    OutputTopics,
    Transaction,
    TransactionalConsumer,
)
from slackwater.client.inputs import Inputs
from slackwater.client.shares import Share
from slackwater.protocol import KafkaSettings
from slackwater_lab.chaos.control import ControlFolder
from slackwater_lab.workloads.workload import REPOSITORY

SOURCE = "inv"
TABLES = ("inventory.orders", "inventory.order_lines")
OUTPUT = "orders_with_lines"
SESSION_SECONDS = 6.0
"""What the broker allows at least: a fault has to last longer."""
APPLIED = "applied"
"""The step between the work and the position."""
CONSUMED = """
CREATE TABLE IF NOT EXISTS consumed (
    number bigint GENERATED ALWAYS AS IDENTITY, consumer_group text, call text, commit_id text, unit text,
    record text
)
"""
_OPTIONS = {"session.timeout.ms": str(int(SESSION_SECONDS * 1000)), "heartbeat.interval.ms": "500"}
_INSERT = "INSERT INTO consumed (consumer_group, call, commit_id, unit, record) VALUES (%s, %s, %s, %s, %s)"
_LANES = 8


def name_document(record: Record) -> tuple[str, str]:
    """Returns the key of a document, and its place, which is its name."""
    return (record.key() or b"").decode(), f"{record.topic()}/{record.partition()}/{record.offset()}"


def name_change(record: Record) -> tuple[str, str]:
    """Returns the order that a change belongs to, and what tells it from others, wherever it is."""
    change = json.loads(record.value() or b"")
    row, source = change["after"] or change["before"], change["source"]
    order = row["order_id" if source["table"] == "order_lines" else "id"]
    return str(order), f"{source['table']} {row['id']} {change['op']} {source['txId']} {source['lsn']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """Consumers that share what they read."""

    name: str
    inputs: Inputs
    share: Share
    members: int
    describe: Callable[[Record], tuple[str, str]]
    """Returns the unit of a record, and its name."""
    is_exactly_once: bool = True
    """False: positions are committed to the group after the effect, which may be there more than once."""

    @property
    def is_by_unit(self) -> bool:
        """True if members share units."""
        return isinstance(self.share, ByUnit)


GROUPS = {
    group.name: group
    for group in (
        ConsumerGroup(
            name="documents",
            inputs=OutputTopics(OUTPUT),
            share=Everything(),
            members=2,
            describe=name_document,
        ),
        ConsumerGroup(
            name="units",
            inputs=ChangeTopics(source=SOURCE, tables=TABLES),
            share=ByUnit(lambda record: name_change(record)[0], lanes=_LANES),
            members=2,
            describe=name_change,
        ),
        ConsumerGroup(
            name="letters",
            inputs=OutputTopics(OUTPUT),
            share=ByUnit(lambda record: record.key(), lanes=_LANES),
            members=1,
            describe=name_document,
            is_exactly_once=False,
        ),
    )
}
"""Both inputs, both shares, both promises."""


def store_records(database: psycopg.Connection, group: ConsumerGroup, transaction: Transaction) -> None:
    """The work: a row per record."""
    call, rows = uuid.uuid4().hex, []
    for record in transaction:
        unit, name = group.describe(record)
        rows.append((group.name, call, transaction.commit.id, unit if group.is_by_unit else "", name))
    with database.cursor() as cursor:
        cursor.executemany(_INSERT, rows)


class Member:
    """One process of a group.

    Args:
        group: Its group.
        database: Where it stores; without a transaction of its own.
        control: Says when to die.
        in_one_transaction: False switches off what exactly once rests on.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        database: psycopg.Connection,
        control: ControlFolder,
        *,
        in_one_transaction: bool,
    ) -> None:
        example = run_path(str(REPOSITORY / "docs" / "examples" / "exactly_once_postgres.py"))
        self._positions: Any = example["Handler"](database, group.name)
        self._group, self._database, self._control = group, database, control
        self._in_one_transaction = in_one_transaction

    def run(self, kafka: KafkaSettings) -> None:
        """Continues until it fails or dies."""
        group = self._group
        with TransactionalConsumer(
            kafka,
            group.inputs,
            group=group.name,
            share=group.share,
            positions=self._positions.position if group.is_exactly_once else None,
            settings=ConsumerSettings(stores_positions=not group.is_exactly_once),
        ) as consumer:
            for transaction in consumer:
                self._process(transaction)

    def _process(self, transaction: Transaction) -> None:
        one = self._database.transaction() if self._in_one_transaction else contextlib.nullcontext()
        with one:
            with self._database.transaction():
                store_records(self._database, self._group, transaction)
            if self._control.deadly_step() == APPLIED:
                self._control.spare()
                os.kill(os.getpid(), signal.SIGKILL)
            if self._group.is_exactly_once:
                self._positions.store(transaction)


def main(folder: str, group: str, bootstrap: str, url: str, *without: str) -> None:
    """Runs a member; does not return."""
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as database:
        control = ControlFolder(Path(folder))
        member = Member(GROUPS[group], database, control, in_one_transaction=not without)
        member.run(KafkaSettings(bootstrap, _OPTIONS))


if __name__ == "__main__":
    main(*sys.argv[1:])
