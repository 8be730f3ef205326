"""The consumers of a chaos run: what each group reads, its processes, and what has to have come of them.

``python -m slackwater_lab.chaos.consumers FOLDER GROUP BOOTSTRAP URL [--without one-transaction]`` stores
every record that it is given in PostgreSQL. FOLDER is its control folder. A group that is to be exactly once
does as ``docs/examples/exactly_once_postgres.py`` does, with that file's own code.
"""

import contextlib
import json
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo

from slackwater.cdc.batch import Record
from slackwater.client import (
    ByUnit,
    ChangeTopics,
    ConsumerSettings,
    Everything,
    OutputTopics,
    Transaction,
    TransactionalConsumer,
)
from slackwater.client.inputs import Inputs, Share
from slackwater.protocol import KafkaSettings, commit_id
from slackwater.protocol.keys import commit_topic, data_topic, transaction_topic
from slackwater_lab.chaos.process import ControlFolder
from slackwater_lab.programs import Program
from slackwater_lab.topics import read_to_end
from slackwater_lab.workloads.workload import REPOSITORY

Committed = Mapping[str, Mapping[str, str]]
"""By commit id the name of each record, with the unit that it belongs to."""
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
_DATABASE = "consumed"
_STORED = "SELECT call, commit_id, unit, record FROM consumed WHERE consumer_group = %s ORDER BY number"
_TIMELINE = 1


class Delivery(NamedTuple):
    """A record as a handler has stored it."""

    call: str
    """Names the call of the handler that stored it."""
    commit_id: str
    unit: str
    """Empty where nothing is divided by units."""
    record: str
    """Its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFindings:
    """What was wrong with the records that a consumer group was given."""

    group: str
    calls: int
    """Transactions, or parts of one, that were handed out and whose effect is there."""
    records: int
    lost: int
    """Records that nobody was given."""
    repeated: int
    """Records whose effect is there more than once."""
    torn: int
    """Calls with a part of what belongs together, and records that no commit has."""
    disordered: int
    """Calls behind one with a later commit: of all, or of the same unit."""

    def is_clean(self, *, allows_repeats: bool) -> bool:
        """Says that nothing is wrong.

        Args:
            allows_repeats: At least once: what comes again comes out of order, too.
        """
        again = 0 if allows_repeats else self.repeated + self.disordered
        return not (self.lost or self.torn or again)

    @property
    def text(self) -> str:
        return (
            f"consumers {self.group!r}: {self.records:,} records in {self.calls:,} calls; {self.lost} lost, "
            f"{self.repeated} repeated, {self.torn} torn, {self.disordered} out of order"
        )


def judge_deliveries(group: str, committed: Committed, deliveries: Iterable[Delivery]) -> GroupFindings:
    """Compares the deliveries of a group, in the order in which they were stored, with all commits.

    The records of a commit belong together; if deliveries name units, those of a unit in a commit do.
    """
    wanted: dict[tuple[str, str], set[str]] = defaultdict(set)
    calls: dict[tuple[str, str, str], list[str]] = {}
    is_by_unit = False
    for call, commit, unit, record in deliveries:
        is_by_unit = is_by_unit or bool(unit)
        calls.setdefault((call, commit, unit), []).append(record)
    for commit, records in committed.items():
        for record, unit in records.items():
            wanted[commit, unit if is_by_unit else ""].add(record)
    given = Counter((commit, record) for (_, commit, _), found in calls.items() for record in found)
    torn = sum(set(found) != wanted.get((commit, unit)) for (_, commit, unit), found in calls.items())
    return GroupFindings(
        group=group,
        calls=len({call for call, _, _ in calls}),
        records=given.total(),
        lost=sum((i, record) not in given for i, records in committed.items() for record in records),
        repeated=given.total() - len(given),
        torn=torn,
        disordered=_disordered(calls),
    )


def _disordered(calls: Iterable[tuple[str, str, str]]) -> int:
    newest: dict[str, str] = {}
    found = 0
    for _, commit, unit in calls:
        found += commit < newest.get(unit, "")
        newest[unit] = max(commit, newest.get(unit, ""))
    return found


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


def run_member(
    group: ConsumerGroup,
    database: psycopg.Connection,
    control: ControlFolder,
    kafka: KafkaSettings,
    *,
    in_one_transaction: bool,
) -> None:
    """Is one process of a group, until it fails or dies.

    Outside of one transaction it lacks what exactly once rests on.
    """
    example = run_path(str(REPOSITORY / "docs" / "examples" / "exactly_once_postgres.py"))
    positions: Any = example["Handler"](database, group.name)
    with TransactionalConsumer(
        kafka,
        group.inputs,
        group=group.name,
        share=group.share,
        positions=positions.position if group.is_exactly_once else None,
        settings=ConsumerSettings(stores_positions=not group.is_exactly_once),
    ) as consumer:
        for transaction in consumer:
            with database.transaction() if in_one_transaction else contextlib.nullcontext():
                with database.transaction():
                    store_records(database, group, transaction)
                control.obey(APPLIED)
                if group.is_exactly_once:
                    positions.store(transaction)


class Consumers:
    """Members of :data:`GROUPS`, each a program; their rows are in a database of their own.

    A second database is made on the server of ``dsn``. Members use the broker over ``route``.
    """

    def __init__(self, folder: Path, logs: Path, *, dsn: str, bootstrap: str, route: str) -> None:
        self.without: tuple[str, ...] = ()
        """Mechanisms that are switched off from the next starts on."""
        self._folder, self._dsn, self._bootstrap, self._route = folder, dsn, bootstrap, route
        self._url = make_conninfo(dsn, dbname=_DATABASE)
        self.programs = {
            name: Program(name, partial(self._command, name, group), logs) for name, group in self._members()
        }

    def create_database(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {_DATABASE}")
        with psycopg.connect(self._url) as connection:
            connection.execute(CONSUMED)

    def numbered(self, number: int) -> list[str]:
        """Names the members with this number, one of each group that has this many."""
        return [name for name in self.programs if name.endswith(f"-{number}")]

    @property
    def exactly_once(self) -> list[str]:
        """Names the members of groups that are to be exactly once."""
        return [name for name, group in self._members() if group.is_exactly_once]

    def judge(self, wait: Callable[[Callable[[], bool]], bool]) -> tuple[GroupFindings, ...]:
        """Compares all that was given with all that was committed; nothing is written any more."""
        committed: dict[str, Committed] = {}
        for name, group in GROUPS.items():
            is_output = group.describe is name_document
            committed[name] = self._documents() if is_output else self._changes()
        found: list[GroupFindings] = []

        def is_complete() -> bool:
            found[:] = [
                judge_deliveries(name, committed[name], self._deliveries(group))
                for name, group in GROUPS.items()
            ]
            return not any(each.lost for each in found)

        wait(is_complete)
        return tuple(found)

    def _members(self) -> Iterator[tuple[str, ConsumerGroup]]:
        for name, group in GROUPS.items():
            for number in range(1, group.members + 1):
                yield f"{name}-{number}", group

    def _command(self, name: str, group: ConsumerGroup) -> list[str]:
        module = [sys.executable, "-m", "slackwater_lab.chaos.consumers"]
        return [*module, str(self._folder / name), group.name, self._route, self._url, *self.without]

    def _deliveries(self, group: ConsumerGroup) -> list[Delivery]:
        with psycopg.connect(self._url) as connection:
            return [Delivery(*row) for row in connection.execute(_STORED, [group.name])]

    def _documents(self) -> Committed:
        """Reads by commit record which documents belong to it."""
        names: dict[tuple[int, int], tuple[str, str]] = {}
        for message in read_to_end(self._bootstrap, OUTPUT):
            names[message.partition() or 0, message.offset() or 0] = name_document(message)
        found: dict[str, Mapping[str, str]] = {}
        for message in read_to_end(self._bootstrap, commit_topic(OUTPUT)):
            record = json.loads(message.value() or b"")
            places = [
                (int(partition), offset)
                for partition, (_, first, last) in record["offsets"].get(OUTPUT, {}).items()
                for offset in range(first, last + 1)
            ]
            described = [names[place] for place in places if place in names]
            found[record["id"]] = {name: unit for unit, name in described}
        return found

    def _changes(self) -> Committed:
        """Reads by END record which changes belong to it; those of the snapshot belong to its LSN."""
        ids: dict[int, str] = {}
        for message in read_to_end(self._bootstrap, transaction_topic(SOURCE)):
            event = json.loads(message.value() or b"")
            if event["status"] == "END":
                xid, _, lsn = event["id"].partition(":")
                ids.setdefault(int(xid), commit_id(_TIMELINE, int(lsn)))
        found: dict[str, dict[str, str]] = {}
        for table in TABLES:
            for message in read_to_end(self._bootstrap, data_topic(SOURCE, table)):
                if (value := message.value()) is not None:
                    change = json.loads(value)
                    is_snapshot, source = change["transaction"] is None, change["source"]
                    of = commit_id(_TIMELINE, source["lsn"]) if is_snapshot else ids[source["txId"]]
                    unit, name = name_change(message)
                    found.setdefault(of, {})[name] = unit
        return found


def main(folder: str, group: str, bootstrap: str, url: str, *without: str) -> None:
    """Runs a member; does not return."""
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as database:
        control = ControlFolder(Path(folder))
        kafka = KafkaSettings(bootstrap, _OPTIONS)
        run_member(GROUPS[group], database, control, kafka, in_one_transaction=not without)


if __name__ == "__main__":
    main(*sys.argv[1:])
