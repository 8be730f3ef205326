"""The harness itself, proven with the plainest engine there is."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import pytest

from slackwater_lab.differential.case import Batch, Case, Feature
from slackwater_lab.differential.check import Checked, Reference, Rows, check
from slackwater_lab.differential.engines import ChangedDocument, Event, MakeEngine
from slackwater_lab.differential.history import DrawnColumn, DrawnCommit, DrawnTable, Row, rows_of
from slackwater_lab.differential.sql_types import Value
from slackwater_lab.differential.subject import Differential
from slackwater_lab.seeds import shrink

SEEDS = 40
SOON = 40
"""Within this many seeds a distorted engine must be found out."""

Distort = Callable[[Event], Event | None]
"""Changes an event before it is taken in, or hides it."""


class NaiveEngine:
    """Asks the reference after every commit: the plainest engine there is."""

    def __init__(self, case: Case, distort: Distort = lambda event: event) -> None:
        self._case = case
        self._distort = distort
        self._tables = {f"public.{table.name}": table for table in case.tables}
        self._rows: dict[str, dict[Row, list[Row]]] = {table.name: {} for table in case.tables}
        self._removed: Row | None = None
        self._reference = Reference(case.tables, case.views)
        self._values = {
            (table.name, column.position): _known_values(case, table, column)
            for table in case.tables
            for column in table.columns
        }
        self._published: tuple[Rows, ...] = tuple(Counter[str]() for _ in case.views)

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        documents: list[ChangedDocument] = []
        commits = [(lsn, list(part)) for lsn, part in groupby(events, key=lambda event: event[2])]
        if not commits or commits[0][0] != first_lsn:
            commits.insert(0, (first_lsn, []))
        for number, (lsn, part) in enumerate(commits):
            touched = {name for event in part for name in self._take(event)}
            state = tuple(
                (name, tuple(rows[-1] for rows in self._rows[name].values() if rows))
                for name in sorted(touched)
            )
            self._reference.apply(DrawnCommit(lsn, (), state))
            if self._case.every_commit or number == len(commits) - 1:
                documents += self._changes(lsn)
        return documents

    def close(self) -> None:
        self._reference.__exit__()

    def _take(self, event: Event) -> Iterator[str]:
        distorted = self._distort(event)
        if distorted is None:
            return
        full_name, op, _, before, after, _ = distorted
        table = self._tables[full_name]
        rows = self._rows[table.name]
        if op == "t":
            rows.clear()
            yield table.name
            return
        image, old_image = json.loads(after or b"null"), json.loads(before or b"null")
        of_key = rows.setdefault(self._key(table, image or old_image or {}), [])
        if op in {"d", "u"}:
            self._removed = self._take_old(table, of_key, old_image)
        if op != "d":
            of_key.append(self._row(table, image, self._removed if op in {"c", "u"} else None))
        yield table.name

    def _take_old(self, table: DrawnTable, rows: list[Row], image: dict[str, Any] | None) -> Row | None:
        """Removes the row that a change is about from those of its key."""
        old = self._row(table, image, None) if table.is_full and image is not None else None
        return rows.pop(rows.index(old) if old in rows else -1) if rows else None

    def _key(self, table: DrawnTable, image: dict[str, Any]) -> Row:
        by_name = {column.name: column for column in table.columns}
        return tuple(self._value(table, by_name[name], image[name], None) for name in table.primary_key)

    def _row(self, table: DrawnTable, image: dict[str, Any], old: Row | None) -> Row:
        row: list[Value | None] = [None] * (1 + max(column.position for column in table.columns))
        for column in table.columns:
            row[column.position] = self._value(table, column, image[column.name], old)
        return tuple(row)

    def _value(self, table: DrawnTable, column: DrawnColumn, wire: Any, old: Row | None) -> Value | None:
        if wire is None:
            return None
        if old is not None and wire == json.loads(column.type.unavailable):
            return old[column.position]
        return self._values[table.name, column.position][json.dumps(wire)]

    def _changes(self, lsn: int) -> Iterator[ChangedDocument]:
        """Documents keyed by themselves and a number."""
        now = self._reference.rows()
        for view, (before, after) in enumerate(zip(self._published, now, strict=True)):
            for text, count in sorted((before - after).items()):
                for number in range(after[text], after[text] + count):
                    yield ChangedDocument(view, lsn, f"{number} {text}".encode(), None)
            for text, count in sorted((after - before).items()):
                for number in range(before[text], before[text] + count):
                    yield ChangedDocument(view, lsn, f"{number} {text}".encode(), text.encode())
        self._published = now


def _known_values(case: Case, table: DrawnTable, column: DrawnColumn) -> dict[str, Value]:
    rows = (
        row
        for transaction in case.transactions
        for change in transaction.changes
        if change.table == table.name
        for row in rows_of(change)
    )
    values = (row[column.position] for row in rows)
    return {json.dumps(json.loads(value.wire)): value for value in values if value is not None}


@lru_cache
def naive_results() -> tuple[Checked, ...]:
    return tuple(check(Differential().generate(seed), NaiveEngine) for seed in range(SEEDS))


@pytest.mark.full
def test_an_engine_that_asks_the_reference_is_always_right() -> None:
    wrong = [result for result in naive_results() if result.verdict != "right"]

    assert [(result.case.seed, result.verdict, result.problem) for result in wrong] == []


def test_the_same_seed_gives_the_same_case() -> None:
    assert Differential().generate(7) == Differential().generate(7)
    assert Differential().generate(7) != Differential().generate(8)


def test_views_are_seldom_always_empty() -> None:
    assert sum(result.counts["rows"] > 0 for result in naive_results()) > 0.8 * SEEDS


def test_every_feature_occurs() -> None:
    used = [Differential().generate(seed).features for seed in range(600)]

    assert {f: n for f in Feature if (n := sum(f in features for features in used)) < 15} == {}


@pytest.mark.parametrize("feature", [Feature.FULL_JOIN, Feature.WINDOW, Feature.UNION, Feature.SCALAR])
def test_only_the_wanted_features_occur(feature: Feature) -> None:
    cases = [Differential().generate(seed, [feature, "latest"]) for seed in range(20)]

    assert {f for case in cases for f in case.features} == {feature, Feature.LATEST}


def hides_deletes(event: Event) -> Event | None:
    return None if event[1] == "d" else event


def hides_truncates(event: Event) -> Event | None:
    return None if event[1] == "t" else event


def hides_nulls(event: Event) -> Event | None:
    """As an engine that drops rows with a NULL anywhere."""
    row = json.loads(event[4] or b"{}")
    return None if None in row.values() else event


def hides_every_fifth_row(event: Event) -> Event | None:
    return None if sum(event[4] or b"") % 5 == 0 and event[4] else event


@pytest.mark.parametrize(
    ("distort", "only"),
    [
        (hides_deletes, ()),
        (hides_nulls, ()),
        (hides_every_fifth_row, ()),
        (hides_truncates, ("truncate", "group", "left-join", "list")),
    ],
)
def test_an_engine_that_does_not_see_everything_is_found_out(distort: Distort, only: Sequence[str]) -> None:
    results = (
        check(Differential().generate(seed, only), lambda case: NaiveEngine(case, distort))
        for seed in range(SOON)
    )

    assert any(result.verdict == "wrong" for result in results)


class Repeating(NaiveEngine):
    """Publishes everything twice."""

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        return [document for document in super().run(events, batch, first_lsn) for _ in range(2)]


class Late(NaiveEngine):
    """Publishes under the LSN of the commit before."""

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        return [replace(document, lsn=document.lsn - 1) for document in super().run(events, batch, first_lsn)]


class Broken(NaiveEngine):
    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        raise ZeroDivisionError("a reason")


@pytest.mark.parametrize(
    ("engine", "verdict"), [(Repeating, "needless"), (Late, "wrong"), (Broken, "crashed")]
)
def test_other_misbehaviour_is_found_out(engine: type[NaiveEngine], verdict: str) -> None:
    results = [
        check(Differential().generate(seed, ("every-commit", "group")), engine) for seed in range(SOON)
    ]

    assert verdict in {result.verdict for result in results}


class Interrupted(NaiveEngine):
    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        raise RuntimeError("Query interrupted")


def interrupted_at_once(case: Case) -> NaiveEngine:
    raise RuntimeError("Query interrupted")


@pytest.mark.parametrize("engine", [Interrupted, interrupted_at_once])
def test_a_time_limit_that_ends_a_query_is_no_finding(engine: MakeEngine) -> None:
    """What DuckDB raises when a signal comes, whatever the signal's handler raises."""
    with pytest.raises(RuntimeError, match="Query interrupted"):
        check(Differential().generate(0), engine)


def first_wrong(distort: Distort) -> tuple[Case, Case, str]:
    def engine(case: Case) -> NaiveEngine:
        return NaiveEngine(case, distort)

    for seed in range(SOON):
        failed = check(Differential().generate(seed), engine)
        if failed.verdict == "wrong" and failed.case.views[0].sql().count("JOIN") > 1:
            small = shrink(failed, Differential(engine), most_checks=1_000)
            return failed.case, small.case, Differential().report(small)
    raise AssertionError("nothing was found")


@pytest.mark.full
def test_a_failure_becomes_small_and_says_everything() -> None:
    case, small, text = first_wrong(hides_deletes)

    assert len(small.transactions) <= 3
    assert sum(len(t.changes) for t in small.transactions) <= 5
    assert len(small.tables) <= len(case.tables)
    assert len(small.views[0].sql()) < len(case.views[0].sql()) / 2
    assert "CREATE TABLE" in text
    assert "SELECT TRANSACTIONALLY" in text
    assert "  d public." in text
    assert "too many (got, not expected)" in text
    assert f"python -m slackwater_lab differential --seeds 1 --from {case.seed}" in text
