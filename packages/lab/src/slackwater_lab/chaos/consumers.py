"""The consumers beside a system: their processes, their database, and what has to have come of it."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from slackwater.protocol import commit_id
from slackwater.protocol.keys import commit_topic, data_topic, transaction_topic
from slackwater_lab.chaos.consumer import (
    CONSUMED,
    GROUPS,
    OUTPUT,
    SOURCE,
    TABLES,
    ConsumerGroup,
    name_change,
    name_document,
)
from slackwater_lab.chaos.control import ControlFolder
from slackwater_lab.chaos.deliveries import Committed, Delivery, GroupFindings, judge_deliveries
from slackwater_lab.programs import Program
from slackwater_lab.topics import read_to_end

_DATABASE = "consumed"
_STORED = "SELECT call, commit_id, unit, record FROM consumed WHERE consumer_group = %s ORDER BY number"
_TIMELINE = 1


class Consumers:
    """Members of :data:`GROUPS`, each a program; their rows are in a database of their own.

    Args:
        folder: For the control folders.
        logs: For the logs.
        dsn: The database of the source; a second one is made on that server.
        bootstrap: The broker, for the judge.
        route: The broker, for the members.
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
        """Makes the database and the table."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {_DATABASE}")
        with psycopg.connect(self._url) as connection:
            connection.execute(CONSUMED)

    def numbered(self, number: int) -> list[str]:
        """Names the members with this number, one of each group that has this many."""
        return [name for name in self.programs if name.endswith(f"-{number}")]

    def control(self, name: str) -> ControlFolder:
        """The control folder of a member."""
        return ControlFolder(self._folder / name)

    @property
    def exactly_once(self) -> list[str]:
        """Names the members of groups that are to be exactly once."""
        return [name for name, group in self._members() if group.is_exactly_once]

    def judge(self, wait: Callable[[Callable[[], bool]], bool]) -> tuple[GroupFindings, ...]:
        """Compares everything that was given with everything that was committed; nothing is written any more.

        Args:
            wait: Waits for a condition; returns whether it came true in time.
        """
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
        module = [sys.executable, "-m", "slackwater_lab.chaos.consumer"]
        return [*module, str(self.control(name).path), group.name, self._route, self._url, *self.without]

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
