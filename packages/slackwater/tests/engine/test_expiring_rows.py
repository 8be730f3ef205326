# ruff: noqa: S608 - the statements are made of the names of this module
"""Views with conditions on the time are right at every commit, as of its clock."""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import duckdb
import pytest

from slackwater.cdc.batch import ticks_of
from slackwater.engine.local import ChangeEvent, LocalEngine, MemoryIndex
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.fakes.buckets import CountingIndex

TABLES = """
CREATE TABLE events (id bigint PRIMARY KEY, kind int, ts timestamptz, value int);
CREATE TABLE kinds (kind int PRIMARY KEY, name text);
ALTER TABLE events REPLICA IDENTITY FULL;
ALTER TABLE kinds REPLICA IDENTITY FULL;
"""
S = "SELECT TRANSACTIONALLY"
VIEWS = {
    "recent": f"{S} id, kind, value FROM events WHERE ts > now() - INTERVAL 10 SECOND",
    "sums": f"""{S} kind, count(*) AS n, sum(value) AS total FROM events
        WHERE now() - INTERVAL '10 seconds' <= ts AND value > 1 GROUP BY kind""",
    "due": f"{S} id FROM events WHERE ts <= current_timestamp",
    "past": f"{S} id FROM events WHERE ts < now()::TIMESTAMPTZ",
    "within": f"{S} id, value FROM events WHERE now() BETWEEN ts AND ts + INTERVAL 5 SECOND",
    "joined": f"""{S} e.id, k.name FROM events e LEFT JOIN kinds k USING (kind)
        WHERE e.ts + INTERVAL 3 SECOND > now() AND e.ts >= now() - INTERVAL 1 HOUR""",
    "total": f"{S} count(*) AS n FROM events WHERE ts > now()",
    "largest": f"""{S} id FROM events JOIN (SELECT max(value) AS most FROM events
        WHERE INTERVAL 8 SECOND + ts > now()) AS newest ON value = most""",
    "of_view": f"{S} kind, max(value) AS most FROM recent WHERE value < 5 GROUP BY kind",
}
START = 1_700_000_000


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").replace(".000000Z", "Z")


Row = dict[str, Any]


@dataclass
class History:
    """Random transactions, with what the tables and the clock are after each."""

    chance: random.Random
    events: dict[int, Row] = field(default_factory=dict)
    kinds: dict[int, Row] = field(default_factory=dict)
    lsn: int = 100
    seconds: int = START
    commits: list[tuple[int, int, list[ChangeEvent]]] = field(default_factory=list)
    states: dict[int, tuple[list[Row], list[Row]]] = field(default_factory=dict)

    def run(self, transactions: int) -> None:
        for _ in range(transactions):
            self.lsn += 10
            self.seconds += self.chance.choice([0, 0, 1, 2, 5, -2, 9])
            changes = [self._change() for _ in range(self.chance.randint(0, 4))]
            self.commits.append((self.lsn, self.seconds, changes))
            self.states[self.lsn] = [*self.events.values()], [*self.kinds.values()]

    def _change(self) -> ChangeEvent:
        if self.chance.random() < 0.2:
            number = self.chance.randint(1, 3)
            new = {"kind": number, "name": self.chance.choice("abc")}
            return self._written("public.kinds", self.kinds, number, new)
        number = self.chance.randint(1, 8)
        if number in self.events and self.chance.random() < 0.3:
            return self._written("public.events", self.events, number, None)
        at = self.seconds + self.chance.choice([-20, -9, -3, 0, 1, 4, 9, 0.5])
        new = {
            "id": number,
            "kind": self.chance.randint(1, 3),
            "ts": moment(at) if self.chance.random() < 0.9 else None,
            "value": self.chance.randint(0, 5),
        }
        return self._written("public.events", self.events, number, new)

    def _written(self, table: str, rows: dict[int, Row], number: int, new: Row | None) -> ChangeEvent:
        old = rows.pop(number, None)
        if new is not None:
            rows[number] = new
        before, after = (None if row is None else json.dumps(row).encode() for row in (old, new))
        op = "d" if new is None else "c" if old is None else "u"
        return table, op, self.lsn, before, after, self.lsn - 5


def plan_of(views: dict[str, str]) -> EnginePlan:
    return compile_pipeline(
        [(f"{n}.sql", text) for n, text in views.items()], parse_catalog({"t.sql": TABLES})
    )


def expected(states: tuple[list[Row], list[Row]], clock: int) -> dict[str, list[tuple[Any, ...]]]:
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute("CREATE TABLE events (id BIGINT, kind INT, ts TIMESTAMPTZ, value INT)")
        database.execute("CREATE TABLE kinds (kind INT, name TEXT)")
        for table, rows in zip(("events", "kinds"), states, strict=True):
            for row in rows:
                marks = ", ".join("?" * len(row))
                database.execute(f"INSERT INTO {table} VALUES ({marks})", list(row.values()))
        now = f"TIMESTAMPTZ '{moment(clock)}'"
        found = {}
        for name, text in VIEWS.items():
            sql = text.replace("TRANSACTIONALLY", "").replace("now()", now).replace("current_timestamp", now)
            database.execute(f"CREATE VIEW {name} AS {sql}")
            found[name] = sorted(database.execute(f"FROM {name}").fetchall(), key=str)
        return found


def batches_of(commits: Sequence[Any], chance: random.Random) -> Iterable[Sequence[Any]]:
    start = 0
    while start < len(commits):
        end = start + chance.randint(1, 5)
        yield commits[start:end]
        start = end


@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_at_every_commit_the_documents_are_those_of_its_clock(seed: int, *, every_commit: bool) -> None:
    chance = random.Random(seed)
    history = History(chance)
    history.run(30)
    engine = LocalEngine(plan_of(VIEWS), every_commit=every_commit)
    shown: dict[str, dict[bytes, Any]] = {name: {} for name in VIEWS}
    clock = newest = 0
    for batch in batches_of(history.commits, chance):
        changes = [change for _, _, of_commit in batch for change in of_commit]
        ticks = ticks_of([(0, lsn, seconds * 1000 + 999) for lsn, seconds, _ in batch], newest * 1000)
        found = engine.run(changes, chance.randint(1, 2), first_lsn=batch[0][0], ticks=ticks)
        newest = max(newest, *(seconds for _, seconds, _ in batch))
        for lsn, seconds, _ in batch if every_commit else batch[-1:]:
            clock = max(clock, seconds) if every_commit else newest
            for number, (name, documents) in enumerate(shown.items()):
                for at, key, document in found[number]:
                    if at == lsn or not every_commit:
                        documents.pop(key, None)
                        if document is not None:
                            documents[key] = tuple(json.loads(document).values())
                assert sorted(documents.values(), key=str) == expected(history.states[lsn], clock)[name], (
                    name,
                    lsn,
                )


def test_a_tick_reads_only_the_rows_whose_time_has_come() -> None:
    reads = {}
    for size in (50, 500):
        indexes: list[CountingIndex] = []

        def counting(indexes: list[CountingIndex] = indexes) -> CountingIndex:
            indexes.append(CountingIndex(MemoryIndex()))
            return indexes[-1]

        engine = LocalEngine(plan_of({"recent": VIEWS["recent"]}), counting, buckets=1)
        rows = [
            {"id": n, "kind": 1, "ts": moment(START + (0 if n < 3 else 100)), "value": 1} for n in range(size)
        ]
        changes = [("public.events", "c", 100, None, json.dumps(row).encode(), 95) for row in rows]
        engine.run(changes, ticks=[(100, START)])
        before = sum(index.reads for index in indexes)
        found = engine.run([], first_lsn=110, ticks=[(110, START + 10)])
        assert [json.loads(key) for _, key, document in found[0] if document is None] == [
            {"id": n} for n in range(3)
        ]
        reads[size] = sum(index.reads for index in indexes) - before
    assert reads[50] == reads[500]


def test_rows_that_have_ended_leave_nothing_behind() -> None:
    engine = LocalEngine(plan_of({"recent": VIEWS["recent"]}), buckets=1)
    row = {"id": 1, "kind": 1, "ts": moment(START), "value": 1}
    engine.run([("public.events", "c", 100, None, json.dumps(row).encode(), 95)], ticks=[(100, START)])
    with engine.indexes[2, 0].snapshot() as contents:
        before = len(list(contents.entries()))
    engine.run([], first_lsn=110, ticks=[(110, START + 10)])
    with engine.indexes[2, 0].snapshot() as contents:
        assert len(list(contents.entries())) == 1 < before  # the clock
    # The database deletes the row later.
    found = engine.run(
        [("public.events", "d", 120, json.dumps(row).encode(), None, 115)], ticks=[(120, START + 11)]
    )
    assert found[0] == []


def test_the_clock_is_the_newest_commit_time_in_whole_seconds() -> None:
    commits = [(1, 10, 5_999), (2, 20, 5_000), (3, 30, 7_001), (4, 40, 6_000), (5, 50, 9_000)]

    assert ticks_of(commits, 0) == ((10, 5), (30, 7), (50, 9))
    assert ticks_of(commits, 8_500) == ((10, 8), (50, 9))
    assert ticks_of([(1, 10, 0)], 0) == ()
