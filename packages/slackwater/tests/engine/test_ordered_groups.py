"""Random histories of one table: what is kept in the order of values, against DuckDB over all rows."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLE = """
CREATE TABLE s.t (id bigint PRIMARY KEY, g bigint, i integer, b bigint, d numeric(9,2), w numeric(30,3),
    f double precision, r real, x text, day date, seen timestamp, tz timestamptz, yes boolean);
ALTER TABLE s.t REPLICA IDENTITY FULL;
"""
SHOWN = {
    "medians": (
        "median(i) AS i, median(b) AS b, median(d) AS d, median(w) AS w, median(f) AS f, median(r) AS r, "
        "median(x) AS x, median(day) AS day, median(seen) AS seen, median(tz) AS tz, median(yes) AS yes, "
        "median(i) FILTER (yes) AS chosen, median(-i) AS negative, count(i) AS n"
    ),
    "quantiles": (
        "quantile_cont(i, [0, 0.5, 1]) AS i, percentile_cont(0.5) WITHIN GROUP (ORDER BY f DESC) AS f, "
        "quantile_cont(d, 0.5) AS d, quantile_disc(x, 0.4) AS x, quantile_disc(w, [0.25, 0.5]) AS w, "
        "quantile_disc(r, 1) AS r, percentile_disc(0.3) WITHIN GROUP (ORDER BY i DESC) AS down, "
        "quantile_disc(yes, 0.7) AS yes, quantile_disc(day, 0.95) AS day, quantile(tz, 0.6) AS tz, "
        "quantile_disc(b, 0.333) FILTER (yes) AS b, quantile_disc(seen, 0.0) AS seen, min(b) AS least"
    ),
    "rows": (
        "arg_min(x, f) AS lowest, arg_max(b, d) AS highest, max_by(f, x) FILTER (yes) AS chosen, "
        "first(x ORDER BY day DESC) AS newest, last(d ORDER BY x, f DESC NULLS FIRST) AS latest, "
        "any_value(i ORDER BY seen) AS some, first(yes) AS first_of_all, min_by(tz, b) AS early, "
        "last({'x': x, 'f': f} ORDER BY w) AS pair, first(f ORDER BY -i) AS computed"
    ),
}

LONG = "ä" * 150
few = st.integers(-3, 9)
values = st.fixed_dictionaries(
    {
        "g": st.sampled_from([1, 1, 1, 2, None]),
        "i": st.none() | few,
        "b": st.none() | few | st.sampled_from([2**53 + 1, -(2**62)]),
        "d": st.none() | st.decimals(-9_999_999, 9_999_999, places=2).map(str) | few.map(lambda n: f"{n}.25"),
        "w": st.none() | few.map(lambda n: f"{n}.500"),
        "f": st.none()
        | st.floats(width=32, allow_infinity=False, allow_nan=False).map(lambda value: value + 0.0)
        | few.map(float),
        "r": st.none() | few.map(lambda n: n / 2),
        "x": st.none() | st.sampled_from(["", "a", "b", "ab", LONG, LONG + "a", LONG + "b", "'\"\\,"]),
        "day": st.none() | st.integers(-400, 20_000),
        "seen": st.none() | st.integers(-(10**15), 10**15),
        "tz": st.none() | few.map(lambda n: f"2026-11-2{abs(n)}T10:00:00.00000{abs(n)}Z"),
        "yes": st.none() | st.booleans(),
    }
).map(lambda row: {**row, "f": "NaN" if row["i"] == 9 else row["f"]})
writes = st.tuples(st.integers(1, 12), values) | st.tuples(st.integers(1, 12), st.none())
commits = st.lists(st.lists(writes, min_size=1, max_size=6), min_size=1, max_size=8)
Row = dict[str, Any]


@lru_cache(maxsize=8)
def engine_of(shown: str, every_commit: bool) -> LocalEngine:
    return LocalEngine(compiled(shown), buckets=2, every_commit=every_commit)


def view_of(shown: str) -> str:
    return f"SELECT TRANSACTIONALLY g, {SHOWN[shown]} FROM t GROUP BY g"  # noqa: S608 - of the table above


def compiled(shown: str) -> Any:
    return compile_pipeline([("v.sql", view_of(shown))], parse_catalog({"t.sql": TABLE}))


@pytest.mark.parametrize("shown", SHOWN)
def test_no_rows_are_kept(shown: str) -> None:
    (adds, keeps) = compiled(shown).stages
    assert keeps.rows is None
    assert adds.rows.reads == ("alone",)


def event(lsn: int, number: int, old: Row | None, new: Row | None) -> ChangeEvent:
    texts = [None if row is None else json.dumps({"id": number, **row}).encode() for row in (old, new)]
    kind = "d" if new is None else "c" if old is None else "u"
    return "s.t", kind, lsn, texts[0], texts[1]


@lru_cache(maxsize=8)
def recomputing(shown: str) -> LocalEngine:
    """Computes everything from the rows of a group, with DuckDB's own functions."""
    plan = compile_pipeline([("v.sql", view_of(shown))], parse_catalog({"t.sql": TABLE}), accumulates=False)
    return LocalEngine(plan, buckets=1, every_commit=True)


def published(documents: Sequence[Any]) -> dict[int, dict[bytes, bytes | None]]:
    found: dict[int, dict[bytes, bytes | None]] = {}
    for lsn, key, document in documents:
        found.setdefault(lsn, {})[key] = document
    return found


def test_other_fractions_need_the_rows_because_the_result_is_rounded_by_the_processor() -> None:
    view = "SELECT TRANSACTIONALLY g, quantile_cont(f, 0.3) AS f FROM t GROUP BY g"
    stages = compile_pipeline([("v.sql", view)], parse_catalog({"t.sql": TABLE})).stages
    assert all(stage.accumulate is None for stage in stages)


def there(state: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: document for key, document in state.items() if document is not None}


@pytest.mark.full
@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("shown", SHOWN)
def test_results_are_those_of_all_rows(shown: str, every_commit: bool) -> None:
    @settings(max_examples=15, deadline=None)
    @given(history=commits, size=st.integers(1, 4))
    def check(history: list[list[tuple[int, Row | None]]], size: int) -> None:
        engine, reference = engine_of(shown, every_commit), recomputing(shown)
        engine.reset()
        reference.reset()
        stored: dict[int, Row] = {}
        state: dict[bytes, bytes | None] = {}
        wanted: dict[bytes, bytes | None] = {}
        for start in range(0, len(history), size):
            changes: list[ChangeEvent] = []
            batch = range(start, min(start + size, len(history)))
            for commit in batch:
                for number, row in dict(history[commit]).items():
                    if row is not None or number in stored:
                        changes.append(event(100 * (commit + 1), number, stored.pop(number, None), row))
                    if row is not None:
                        stored[number] = row
            if not changes:
                continue
            documents = published(engine.run(changes)[0])
            of_all_rows = published(reference.run(changes)[0])
            for commit in batch:
                lsn = 100 * (commit + 1)
                wanted |= of_all_rows.get(lsn, {})
                state |= documents.get(lsn, {})
                if every_commit or commit == batch[-1]:
                    assert there(state) == there(wanted)

    check()
