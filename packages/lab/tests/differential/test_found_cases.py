"""What random cases have found, made small: each a schema, a view and a few transactions."""

from collections.abc import Sequence

import pytest

from slackwater_lab.differential.case import Batch, Case
from slackwater_lab.differential.check import check
from slackwater_lab.differential.engines import JudgedEngine, make_plan
from slackwater_lab.differential.history import (
    Delete,
    DrawnColumn,
    DrawnTable,
    DrawnTransaction,
    PlannedChange,
    Put,
    Row,
    schema_ddl,
)
from slackwater_lab.differential.query import View
from slackwater_lab.differential.sql_types import BIGINT, DOUBLE, INTEGER, TEXT, SqlType, integer, text


def table(name: str, *columns: tuple[str, SqlType]) -> DrawnTable:
    """With its first column as primary key; the others may be NULL."""
    made = (DrawnColumn(c, of_type, position > 0, position) for position, (c, of_type) in enumerate(columns))
    return DrawnTable(name, tuple(made), (columns[0][0],), is_full=True)


def row(*values: int | str | None) -> Row:
    return tuple(
        None if value is None else integer(value) if isinstance(value, int) else text(value)
        for value in values
    )


def put(name: str, *values: int | str | None) -> PlannedChange:
    return Put(name, row(*values))


def delete(name: str, key: int) -> PlannedChange:
    return Delete(name, row(key))


def assert_right(
    tables: Sequence[DrawnTable],
    views: Sequence[str],
    *transactions: Sequence[PlannedChange],
    together: bool = False,
) -> None:
    """In both ways of emitting, with each transaction in a batch of its own, or all in one."""
    count = len(transactions)
    for every_commit in (True, False):
        for buckets in (1, 3):
            case = Case(
                seed=0,
                tables=tuple(tables),
                views=tuple(View(f"view{number}", sql) for number, sql in enumerate(views, 1)),
                transactions=tuple(
                    DrawnTransaction(1000 * number, tuple(changes))
                    for number, changes in enumerate(transactions, 1)
                ),
                batches=(Batch(count),) if together else tuple(Batch(1) for _ in transactions),
                buckets=buckets,
                every_commit=every_commit,
            )
            checked = check(case, JudgedEngine)
            assert (checked.verdict, checked.problem, checked.expected, checked.got) == ("right", "", (), ())


T = table("t", ("id", BIGINT), ("a", INTEGER), ("b", INTEGER), ("c", TEXT))
U = table("u", ("id", BIGINT), ("r", BIGINT))


def test_a_column_that_is_compared_twice_is_in_the_key_once() -> None:
    assert_right(
        [T, U],
        ["SELECT TRANSACTIONALLY t.c AS c, u.r AS r FROM t RIGHT JOIN u ON t.id = u.r AND u.r = t.a"],
        [put("t", 1, 1, 2, "x"), put("u", 1, 1), put("u", 2, 2)],
        [put("t", 1, 2, 2, "x"), put("t", 2, 2, 2, "y")],
    )


@pytest.mark.parametrize("together", [False, True])
def test_a_row_that_moves_between_partitions_of_a_window_reaches_the_next_one(together: bool) -> None:
    assert_right(
        [T],
        [
            "SELECT TRANSACTIONALLY row_number() OVER (PARTITION BY t.a, t.b ORDER BY t.c, t.id) AS n, "
            "last_value(t.id) OVER (PARTITION BY t.id ORDER BY t.c, t.id) AS i FROM t"
        ],
        [put("t", 3, 4, 5, "x")],
        [put("t", 3, 1, 5, "x")],
        [put("t", 4, 1, 5, "x"), put("t", 3, 4, 4, "x")],
        together=together,
    )


@pytest.mark.parametrize("together", [False, True])
def test_a_row_that_moves_between_partitions_stays_in_its_group(together: bool) -> None:
    assert_right(
        [T],
        [
            "SELECT TRANSACTIONALLY t.id AS i, row_number() OVER (PARTITION BY t.a ORDER BY t.id) AS n, "
            "max(t.id) OVER (PARTITION BY t.b, t.id) AS m FROM t",
            "SELECT TRANSACTIONALLY list(DISTINCT v.i ORDER BY v.i) AS l FROM view1 AS v GROUP BY v.n",
        ],
        [put("t", 3, 4, 5, "x")],
        [put("t", 3, 1, 6, "x")],
        [delete("t", 3), put("t", 3, 2, 6, "x")],
        together=together,
    )


def test_a_global_aggregate_in_a_union_is_there_from_the_first_batch_on() -> None:
    assert_right(
        [T, U],
        [
            "SELECT TRANSACTIONALLY sum(t.a) AS s, count(*) AS n FROM t "
            "UNION SELECT a.r AS s, b.id AS n FROM u AS a CROSS JOIN u AS b"
        ],
        [put("t", 4, 3, 2, "x")],
        [put("u", 1, 1)],
        [delete("t", 4)],
    )


def test_a_global_aggregate_in_a_union_is_not_there_once_more_for_each_row_of_the_other_branch() -> None:
    """Sums of floating point numbers are computed from all rows."""
    assert_right(
        [table("t", ("id", BIGINT), ("a", INTEGER), ("d", DOUBLE))],
        [
            "SELECT TRANSACTIONALLY sum(t.d) AS s, count(*) AS n FROM t "
            "UNION SELECT a.d AS s, a.a AS n FROM t AS a WHERE a.a > 5"
        ],
        [put("t", 4, 3, None)],
        [put("t", 5, 7, None)],
        [delete("t", 4)],
    )


@pytest.mark.parametrize("together", [False, True])
def test_views_over_the_same_join_share_its_stage(together: bool) -> None:
    joined = "(SELECT t.id AS i, t.a AS a, u.id AS j FROM t JOIN u ON t.id = u.r)"
    views = [
        f"SELECT TRANSACTIONALLY x.i, x.j, t.c FROM {joined} x JOIN t ON t.id = x.a",
        f"SELECT TRANSACTIONALLY y.j, y.i, u.r FROM {joined} y LEFT JOIN u ON u.id = y.a",
    ]
    plan = make_plan(schema_ddl((T, U)), tuple((f"v{n}.sql", sql) for n, sql in enumerate(views)))

    assert [view.stages for view in plan.views] == [(1, 2), (1, 3)]
    assert_right(
        [T, U],
        views,
        [put("t", 1, 2, 0, "x"), put("t", 2, 1, 0, "y"), put("u", 1, 1), put("u", 2, 2)],
        [put("u", 1, 2), put("u", 3, 1), put("t", 1, None, 0, "x")],
        [put("t", 1, 2, 0, "z"), delete("u", 2)],
        [delete("t", 2), put("u", 2, 1)],
        together=together,
    )


@pytest.mark.parametrize("together", [False, True])
def test_groups_that_a_view_reads_twice_are_kept_once(together: bool) -> None:
    groups = "WITH g AS (SELECT t.a AS a, sum(t.b)::INTEGER AS b, max(t.c) AS c FROM t GROUP BY t.a)"
    views = [
        f"{groups} SELECT TRANSACTIONALLY x.a, y.a AS other, x.c FROM g x LEFT JOIN g y ON x.b = y.a",
        f"{groups} SELECT TRANSACTIONALLY u.id, g.b, g.c FROM u LEFT JOIN g ON g.a = u.id::INTEGER",
    ]
    plan = make_plan(schema_ddl((T, U)), tuple((f"v{n}.sql", sql) for n, sql in enumerate(views)))

    assert len(set(plan.views[0].stages) & set(plan.views[1].stages)) == 2
    assert_right(
        [T, U],
        views,
        [put("t", 1, 2, 3, "x"), put("t", 2, 3, 2, "y"), put("u", 2, 1), put("u", 3, 2)],
        [put("t", 1, 2, 2, "x"), put("t", 3, 2, 1, "w")],
        [put("t", 2, 2, 0, "y"), put("t", 4, None, 2, "n")],
        [delete("t", 1), delete("t", 3)],
        together=together,
    )


EQUAL_VALUES = [
    "[t.a * t.b::DOUBLE]",
    "{'x': [{'y': t.a * t.b::FLOAT}]}",
    "CASE WHEN t.c = 'x' THEN {'x': t.a * t.b::DOUBLE} END",
    "[CASE WHEN t.c = 'x' THEN {'x': t.a * t.b::FLOAT} END]",
]


@pytest.mark.full
@pytest.mark.parametrize("value", EQUAL_VALUES)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT TRANSACTIONALLY g, count(*) AS n FROM {t} GROUP BY g",
        "SELECT TRANSACTIONALLY t.i, count(*) OVER (PARTITION BY t.g) AS n FROM {t}",
        "SELECT TRANSACTIONALLY t.i, s.i AS j FROM {t} JOIN {s} ON t.g = s.g",
    ],
)
def test_lists_and_structs_of_equal_floats_are_brought_together(sql: str, value: str) -> None:
    """0.0 and -0.0 are equal, and have different texts."""
    read = f"(SELECT t.id AS i, {value} AS g FROM t)"
    assert_right(
        [T],
        [sql.replace("{t}", f"{read} t").replace("{s}", f"{read} s")],
        [put("t", 1, 0, 1, "x"), put("t", 2, 0, -1, "x"), put("t", 3, 0, 1, "y")],
        [delete("t", 1)],
    )


def test_lists_of_equal_intervals_are_one_value() -> None:
    """A month and 30 days are equal, and have different texts."""
    read = "(SELECT [CASE WHEN t.b = 1 THEN to_days(30) ELSE to_months(1) END] AS g FROM t) t"
    assert_right(
        [T],
        [f"SELECT TRANSACTIONALLY count(DISTINCT t.g) AS n FROM {read}"],
        [put("t", 1, 0, 1, "x"), put("t", 2, 0, 2, "x")],
        [delete("t", 1)],
    )


ONE_LIST = "(SELECT list(t.id ORDER BY t.id) AS l, count(*) AS n FROM t)"
"""Of one row, also where `t` has none; computed from all rows of `t`."""


@pytest.mark.full
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT TRANSACTIONALLY count(x.l) AS n, count(*) AS rows FROM {one} x",
        "SELECT TRANSACTIONALLY max(x.n) AS m, sum(x.n) AS s, count(DISTINCT x.l) AS d FROM {one} x",
        "SELECT TRANSACTIONALLY x.n AS n, count(x.l) AS c FROM {one} x GROUP BY x.n",
        "SELECT TRANSACTIONALLY x.l AS l, count(*) AS c FROM {one} x GROUP BY x.l HAVING count(*) > 0",
        "SELECT TRANSACTIONALLY DISTINCT x.l AS l FROM {one} x",
        "SELECT TRANSACTIONALLY count(*) AS c FROM {one} x WHERE x.l IS NULL",
        "SELECT TRANSACTIONALLY count(x.l) AS c, count(u.id) AS u FROM {one} x LEFT JOIN u ON x.n < u.r",
        "SELECT TRANSACTIONALLY u.r AS r, count(x.l) AS c FROM u CROSS JOIN {one} x GROUP BY u.r",
        "SELECT TRANSACTIONALLY count(y.n) AS c FROM "
        "(SELECT row_number() OVER (PARTITION BY x.l ORDER BY x.n) AS n FROM {one} x) y",
        "SELECT TRANSACTIONALLY count(y.l) AS c FROM (SELECT list(x.l) AS l FROM {one} x) y",
    ],
)
@pytest.mark.parametrize("together", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_row_of_a_global_aggregate_is_added_to_groups_before_it_is_taken_away(
    sql: str, together: bool
) -> None:
    """It is there from the first batch on, also where that has nothing of its table."""
    changes = [
        [put("t", 1, 2, 3, "x")],
        [put("u", 1, 1), put("u", 2, 0)],
        [delete("t", 1)],
        [put("t", 2, 2, 3, "x"), put("t", 3, 2, 3, "x")],
    ]
    view = sql.replace("{one}", ONE_LIST)
    assert_right([T, U], [view], *changes, together=together)
    assert_right([T, U], [view], changes[1], changes[0], *changes[2:], together=together)


def test_a_view_counts_the_row_of_a_global_aggregate_of_another_view() -> None:
    assert_right(
        [T],
        [
            "SELECT TRANSACTIONALLY list(t.id ORDER BY t.id) AS l FROM t",
            "WITH q AS (SELECT v.l AS l FROM view1 AS v) SELECT TRANSACTIONALLY count(q.l) AS n FROM q",
        ],
        [put("t", 2, 1, 1, "x")],
        [delete("t", 2)],
    )


def test_branches_of_a_union_over_the_same_join_have_their_own_columns() -> None:
    """DuckDB 2.0.0, the reference, computes the join once, and may take one of its columns for another."""
    assert_right(
        [
            table("t1", ("id", BIGINT), ("r0", INTEGER), ("r1", INTEGER)),
            table("t2", ("id", INTEGER), ("r0", INTEGER)),
            table("t3", ("id", INTEGER), ("r0", INTEGER), ("r1", INTEGER)),
        ],
        [
            "SELECT TRANSACTIONALLY b.r1 AS c0, a.r0 AS c3, d.id AS c4 "
            "FROM t2 AS a JOIN t3 AS b ON a.id = b.r0 JOIN t1 AS c ON a.r0 = c.id "
            "LEFT JOIN t1 AS d ON c.r1 = d.r0",
            "SELECT TRANSACTIONALLY x.c3 AS c0, x.c0 AS c1, (SELECT count(z.r1) FROM t3 AS z) AS c2 "
            "FROM view1 AS x UNION SELECT z.r0 AS c0, z.r0 AS c1, y.c4 AS c2 "
            "FROM view1 AS y CROSS JOIN t1 AS z",
        ],
        [put("t1", 2, 2, None), put("t2", 4, 2), put("t3", 1, 4, 3)],
    )
