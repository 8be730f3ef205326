"""Random histories of one table, grouped: accumulators against DuckDB's aggregates at every commit.

Partials come from SQL over changed rows, as a rows part makes them; the index is lost at random.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackwater.engine.evaluate.groups import AccumulateEvaluation
from slackwater.engine.evaluate.points import BEFORE, route_of
from slackwater.engine.index import BucketIndex
from slackwater.engine.local import MemoryIndex
from slackwater.engine.payloads import Outcome, Partial
from slackwater.engine.state.log import changes_bytes
from slackwater.sql.catalog import carried
from slackwater.sql.plan import (
    STEPS_TABLE,
    WEIGHT,
    AccumulatePart,
    Accumulator,
    AccumulatorKind,
    DocumentsOutput,
    KeyColumn,
    PartialsOutput,
)
from slackwater.sql.stage_evaluation import STEPS_SCHEMA, ResultPoints, StatementEvaluator
from slackwater_lab.fakes.buckets import AccumulateBucket

MakeIndex = Callable[[], BucketIndex]
Row = tuple[Any, ...]
"""``g, q, a, s, d``; decimals and dates as text."""
Change = tuple[int, Row | None]
"""Of the row with an id."""
View = dict[str, Any]
"""Documents by key."""

NAMES = ("g", "q", "a", "s", "d")
TYPES = ("BIGINT", "BIGINT", "DECIMAL(12,2)", "VARCHAR", "DATE")
LOOSE = pa.schema(
    [("point", pa.int32()), ("g", pa.int64()), ("q", pa.int64()), *((name, pa.string()) for name in "asd")]
)

VIEW = """
    count(*) AS n, count(q) AS cq, count(q) FILTER (q > 0) AS cpos, sum(q) AS sq, avg(q) AS aq,
    sum(a) AS sa, avg(a) AS aa, sum(a) FILTER (q > 0) AS sapos, min(q) AS minq, max(q) AS maxq,
    min(a) AS mina, min(s) AS mins, max(s) AS maxs, max(d) AS maxd, count(DISTINCT s) AS ds,
    count(DISTINCT q) FILTER (q > 0) AS dpos
"""

ACCUMULATORS = (
    Accumulator(AccumulatorKind.COUNT, "count(q)"),
    Accumulator(AccumulatorKind.COUNT, "count(q) FILTER (q > 0)"),
    Accumulator(AccumulatorKind.SUM, "sum(q)"),
    Accumulator(AccumulatorKind.SUM, "sum(a)", scale=2),
    Accumulator(AccumulatorKind.SUM, "sum(a) FILTER (q > 0)", scale=2),
    Accumulator(AccumulatorKind.MIN, "min(q)", multiset=5),
    Accumulator(AccumulatorKind.MAX, "max(q)", multiset=5),
    Accumulator(AccumulatorKind.MIN, "min(a)", multiset=7),
    Accumulator(AccumulatorKind.MIN, "min(s)", multiset=8),
    Accumulator(AccumulatorKind.MAX, "max(s)", multiset=8),
    Accumulator(AccumulatorKind.MAX, "max(d)", multiset=10),
    Accumulator(AccumulatorKind.DISTINCT, "count(DISTINCT s)", multiset=8),
    Accumulator(AccumulatorKind.DISTINCT, "count(DISTINCT q) FILTER (q > 0)", multiset=12),
)

FINISHED = """
    n, a0 AS cq, a1 AS cpos, CASE WHEN a2_n > 0 THEN CAST(a2 AS HUGEINT) END AS sq,
    CASE WHEN a2_n > 0 THEN CAST(CAST(a2 AS HUGEINT) AS DOUBLE) / a2_n END AS aq,
    CASE WHEN a3_n > 0 THEN CAST(a3 AS DECIMAL(38,2)) END AS sa,
    CASE WHEN a3_n > 0 THEN CAST(CAST(a3 AS DECIMAL(38,2)) AS DOUBLE) / a3_n END AS aa,
    CASE WHEN a4_n > 0 THEN CAST(a4 AS DECIMAL(38,2)) END AS sapos,
    CAST(a5 AS BIGINT) AS minq, CAST(a6 AS BIGINT) AS maxq, CAST(a7 AS DECIMAL(12,2)) AS mina,
    a8 AS mins, a9 AS maxs, CAST(a10 AS DATE) AS maxd, a11 AS ds, a12 AS dpos
"""


def document(key: str) -> str:
    """SQL of the key and the document of a row ``r``."""
    return f"{key}, encode(CAST(to_json(r) AS VARCHAR))"


def key_sql(group: str | None) -> str:
    return "'{}'" if group is None else f"CAST(json_object('g', {group}) AS VARCHAR)"


def partials_sql(*, is_global: bool) -> str:
    group, by = ("", "") if is_global else ("g, ", ", g")

    def added(value: str, condition: str = "TRUE") -> str:
        given = f"{value} IS NOT NULL AND ({condition}) AND w"
        return (
            f"coalesce(sum(w) FILTER ({value} IS NOT NULL AND ({condition})), 0), CAST(coalesce(sum({value}) "
            f"FILTER ({given} > 0), 0) - coalesce(sum({value}) FILTER ({given} < 0), 0) AS VARCHAR)"
        )

    def counted(condition: str) -> str:
        return f"coalesce(sum(w) FILTER ({condition}), 0)"

    def values(number: int, value: str, condition: str = "TRUE") -> str:
        return (
            f" UNION ALL SELECT lsn, {number}, CAST(json_array({group}hex(create_sort_key({value}, "  # noqa: S608
            f"'ASC NULLS LAST')), CAST({value} AS VARCHAR), sum(w)) AS VARCHAR) FROM r "
            f"WHERE {value} IS NOT NULL AND ({condition}) GROUP BY lsn, {value}{by} HAVING sum(w) <> 0"
        )

    return (
        f"WITH r AS (SELECT k.__slackwater_lsn AS lsn, k.{WEIGHT} AS w, g, q, "  # noqa: S608
        f"CAST(a AS DECIMAL(12,2)) AS a, s, CAST(d AS DATE) AS d FROM loose "
        f"JOIN {STEPS_TABLE} k ON k.__slackwater_point = point) "
        f"SELECT lsn, -1, CAST(json_array({group}sum(w), {counted('q IS NOT NULL')}, {counted('q > 0')}, "
        f"{added('q')}, {added('a')}, {added('a', 'q > 0')}) AS VARCHAR) FROM r GROUP BY lsn{by}"
        + values(5, "q")
        + values(7, "a")
        + values(8, "s")
        + values(10, "d")
        + values(12, "q", "q > 0")
    )


def accumulate_part(*, is_global: bool) -> AccumulatePart:
    key = key_sql(None if is_global else "k0")
    return AccumulatePart(
        key=() if is_global else (KeyColumn("g", carried("BIGINT")),),
        accumulators=ACCUMULATORS,
        is_global=is_global,
        statement=(
            f"SELECT point, {document('key')} FROM (SELECT __slackwater_point AS point, {key} AS key, "  # noqa: S608
            f"(SELECT x FROM (SELECT {FINISHED}) AS x) AS r FROM __slackwater_accumulators)"
        ),
        output=DocumentsOutput(0),
    )


@lru_cache(maxsize=2)
def logic(is_global: bool, every_commit: bool) -> AccumulateEvaluation:
    return AccumulateEvaluation(
        accumulate_part(is_global=is_global), name="totals", every_commit=every_commit, max_points=5
    )


@lru_cache(maxsize=2)
def partials_evaluator(is_global: bool) -> StatementEvaluator:
    tables = {"loose": LOOSE, STEPS_TABLE: STEPS_SCHEMA}
    return StatementEvaluator(partials_sql(is_global=is_global), tables, name="partials", inputs={})


@lru_cache(maxsize=1)
def oracle() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def view(rows: Sequence[Row], *, is_global: bool) -> View:
    """The aggregates as plain DuckDB has them."""
    loose = pa.Table.from_arrays(  # noqa: F841 - DuckDB finds it by name
        [
            pa.array([row[position] for row in rows], LOOSE.field(name).type)
            for position, name in enumerate(NAMES)
        ],
        names=list(NAMES),
    )
    typed = ", ".join(f"CAST({name} AS {type_}) AS {name}" for name, type_ in zip(NAMES, TYPES, strict=True))
    key, by = ("'{}'", "") if is_global else (key_sql("g"), "GROUP BY g")
    sql = (
        f"SELECT {document('key')} FROM (SELECT {key} AS key, {VIEW} "  # noqa: S608
        f"FROM (SELECT {typed} FROM loose) {by}) r"
    )
    return {
        key: {k: v for k, v in json.loads(text).items() if k != "key"}
        for key, text in oracle().execute(sql).fetchall()
    }


@dataclass
class Table:
    """A table, and what a rows part keyed by its id hands on when it changes."""

    rows: dict[int, Row] = field(default_factory=dict)

    def partials(
        self, commits: Sequence[tuple[int, Sequence[Change]]], *, is_global: bool, every_commit: bool
    ) -> list[Partial]:
        """Of a batch of commits ``(LSN, changes)``."""
        versions: dict[int, list[tuple[int, Row | None]]] = {}
        for lsn, changes in commits:
            for number, row in changes:
                of_row = versions.setdefault(number, [(BEFORE, self.rows.get(number))])
                if of_row[-1][0] == lsn:
                    of_row.pop()
                of_row.append((lsn, row))
        for number, of_row in versions.items():
            if not every_commit:
                versions[number] = [of_row[0], of_row[-1]]
            if of_row[-1][1] is None:
                self.rows.pop(number, None)
            else:
                self.rows[number] = of_row[-1][1]
        return self._evaluated(versions, is_global=is_global)

    def _evaluated(
        self, versions: dict[int, list[tuple[int, Row | None]]], *, is_global: bool
    ) -> list[Partial]:
        flat = [(number, lsn, row) for number, of_row in versions.items() for lsn, row in of_row]
        points = ResultPoints([number for number, _, _ in flat], [lsn for _, lsn, _ in flat])
        there = [(point, *row) for point, (_, _, row) in enumerate(flat) if row is not None]
        columns = list(zip(*there, strict=True)) or [()] * len(LOOSE)
        loose = [pa.array(values, column.type) for column, values in zip(LOOSE, columns, strict=True)]
        tables = {
            "loose": pa.Table.from_arrays(loose, schema=LOOSE),
            STEPS_TABLE: points.tables(has_steps=True)[STEPS_TABLE],
        }
        outcome = Outcome(buckets=1)
        rows = partials_evaluator(is_global).rows(tables, str)
        route_of(PartialsOutput(key=0 if is_global else 1, stage=1), 1)(points, rows, outcome)
        return outcome.partials


class Published:
    """What a reader of the documents knows."""

    def __init__(self) -> None:
        self.documents: View = {}

    def take(self, documents: Sequence[tuple[int, bytes, bytes | None]]) -> None:
        """Documents of one commit, or of one batch."""
        for _, key, value in documents:
            new = None if value is None else json.loads(value)
            assert self.documents.get(key.decode()) != new, "repeated"
            if new is None:
                del self.documents[key.decode()]
            else:
                self.documents[key.decode()] = new


LONG = "ä" * 300
groups = st.none() | st.integers(1, 3)
integers = st.none() | st.integers(-2, 5) | st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1])
amounts = (
    st.none() | st.decimals(-(10**10) + 1, 10**10 - 1, places=2).map(str) | st.sampled_from(["0.10", "-0.10"])
)
texts = st.none() | st.sampled_from(["", "a", "b", "é", LONG, LONG + "a", LONG + "b", LONG + "ba", "'\"\\"])
dates = st.none() | st.sampled_from(["2020-01-01", "1969-12-31", "infinity"])
rows = st.tuples(groups, integers, amounts, texts, dates)
changes = st.lists(st.tuples(st.integers(1, 6), st.none() | rows), min_size=1, max_size=4)
histories = st.lists(
    st.tuples(st.lists(changes, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=5
)
"""Batches of commits; and whether the index is lost before each."""


def batches(
    history: Sequence[tuple[Sequence[Sequence[Change]], bool]],
) -> Iterator[tuple[list[tuple[int, Sequence[Change]]], bool]]:
    lsn = 0
    for commits, loses in history:
        numbered = [((lsn + number) * 100, commit) for number, commit in enumerate(commits, start=1)]
        lsn += len(commits)
        yield numbered, loses


def check(
    history: Sequence[tuple[Sequence[Sequence[Change]], bool]],
    bucket: AccumulateBucket,
    *,
    is_global: bool,
    every_commit: bool,
) -> None:
    table, published = Table(), Published()
    present: dict[int, Row] = {}
    for commits, loses in batches(history):
        if loses:
            bucket.lose_index()
        processed = bucket.process(table.partials(commits, is_global=is_global, every_commit=every_commit))
        outcome = Outcome(buckets=1)
        for points, result in processed.results:
            route_of(DocumentsOutput(0), 1)(points, result, outcome)
        documents = outcome.view(0)
        for lsn, commit in commits:
            for number, row in commit:
                present.pop(number, None)
                if row is not None:
                    present[number] = row
            if every_commit:
                published.take([d for d in documents if d[0] == lsn])
                check_view(published, present, is_global=is_global)
        if not every_commit:
            published.take(documents)
            check_view(published, present, is_global=is_global)
        assert bucket.live_bytes == changes_bytes(bucket.entries())
    if not present and not is_global:
        assert bucket.entries() == []


def check_view(published: Published, present: dict[int, Row], *, is_global: bool) -> None:
    if is_global and not published.documents:
        assert not present
        return
    assert published.documents == view(list(present.values()), is_global=is_global)


@pytest.mark.full
@pytest.mark.parametrize("every_commit", [True, False], ids=["transactions", "latest"])
@pytest.mark.parametrize("is_global", [False, True], ids=["groups", "global"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(history=histories)
def test_aggregates_are_those_of_duckdb_at_every_commit(
    history: Any, is_global: bool, every_commit: bool
) -> None:
    bucket = AccumulateBucket(logic(is_global, every_commit), MemoryIndex)
    check(history, bucket, is_global=is_global, every_commit=every_commit)
