# ruff: noqa: E501 - SQL on one line
"""Which stages keep their rows together, and which columns they keep."""

from dataclasses import replace

import pytest

from slackwater.sql.plan import EnginePlan, fingerprint, rows_table
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.planner.sharing import MAX_SHARERS
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, status text, total numeric(10,2));
CREATE TABLE s.lines (id bigint PRIMARY KEY, order_id bigint NOT NULL, product_id bigint, quantity int, note text);
CREATE TABLE s.notes (id bigint PRIMARY KEY, order_id bigint, text text);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
ALTER TABLE s.lines REPLICA IDENTITY FULL;
ALTER TABLE s.notes REPLICA IDENTITY FULL;
"""
DETAILS = "SELECT TRANSACTIONALLY o.id, o.status, list(l.product_id ORDER BY l.id) AS products FROM orders o LEFT JOIN lines l ON l.order_id = o.id GROUP BY o.id, o.status"
TOTALS = "SELECT TRANSACTIONALLY x.id, x.total, count(y.id) AS n, max(y.quantity) AS most FROM orders x LEFT JOIN lines y ON x.id = y.order_id GROUP BY x.id, x.total"
SWAPPED = "SELECT TRANSACTIONALLY b.id, max(a.note) AS note FROM lines a RIGHT JOIN orders b ON b.id = a.order_id GROUP BY b.id"
ALONE = "SELECT TRANSACTIONALLY id, status FROM orders WHERE total > 1"
ALSO_ALONE = "SELECT TRANSACTIONALLY id, customer_id FROM orders"
INNER = "SELECT TRANSACTIONALLY l.id, n.text FROM lines l JOIN notes n ON n.order_id = l.product_id"
OUTER = "SELECT TRANSACTIONALLY l.id, n.text FROM lines l LEFT JOIN notes n ON n.order_id = l.product_id"
GLOBAL = "SELECT TRANSACTIONALLY list(status ORDER BY id) AS all_of_them FROM orders"


def plan(*views: str) -> EnginePlan:
    return compile_pipeline(
        [(f"v{number}.sql", sql) for number, sql in enumerate(views)], parse_catalog({"schema.sql": TABLES})
    )


def kept(*views: str) -> list[int]:
    return [stage.kept_by for stage in plan(*views).stages]


def test_stages_over_the_same_tables_and_keys_keep_their_rows_once_with_the_columns_of_all() -> None:
    details, totals = plan(DETAILS, TOTALS).stages

    assert (details.kept_by, totals.kept_by) == (0, 1)
    for stage in (details, totals):
        assert stage.rows is not None
        assert [each.column_names for each in stage.rows.inputs] == [
            ("id", "status", "total"),
            ("id", "order_id", "product_id", "quantity"),
        ]
        assert [[column.name for column in each.table.columns] for each in stage.rows.inputs] == [
            ["id", "status", "total"],
            ["id", "order_id", "product_id", "quantity"],
        ]
    assert totals.rows is not None
    assert [each.alias for each in totals.rows.inputs] == ["x", "y"]


def test_a_stage_alone_keeps_what_it_needs() -> None:
    (stage,) = plan(DETAILS).stages

    assert stage.rows is not None
    assert [each.column_names for each in stage.rows.inputs] == [
        ("id", "status"),
        ("id", "order_id", "product_id"),
    ]


def test_stages_that_take_their_inputs_in_another_order_read_those_of_the_keeper() -> None:
    first, second = plan(INNER, INNER.replace("lines l JOIN notes n", "notes n JOIN lines l")).stages
    (alone,) = plan(INNER.replace("lines l JOIN notes n", "notes n JOIN lines l")).stages
    assert first.rows is not None
    assert second.rows is not None
    assert alone.rows is not None

    assert second.kept_by == first.number
    assert [each.table.name for each in first.rows.inputs] == ["lines", "notes"]
    assert [each.table.name for each in second.rows.inputs] == ["lines", "notes"]
    assert [each.table.name for each in alone.rows.inputs] == ["notes", "lines"]
    one, other = rows_table(0), rows_table(1)
    swapped = alone.rows.statement.replace(one, "?").replace(other, one).replace("?", other)
    assert second.rows.statement == swapped != alone.rows.statement


def test_texts_that_look_like_inputs_stay() -> None:
    named = "SELECT TRANSACTIONALLY n.id, l.id || '__slackwater_rows_1' AS text FROM notes n JOIN lines l ON n.order_id = l.product_id"
    stage = plan(INNER, named).stages[-1]

    assert (stage.kept_by, plan(named).stages[0].kept_by) == (1, 0)
    assert stage.rows is not None
    assert "'__slackwater_rows_1'" in stage.rows.statement


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param((ALONE, ALSO_ALONE), [0, 1], id="rows of one table"),
        pytest.param((DETAILS, TOTALS, SWAPPED), [0, 1, 1], id="three"),
        pytest.param((DETAILS, ALONE), [0, 0], id="other tables"),
        pytest.param((INNER, OUTER), [0, 0], id="rows with NULL in the key are kept by one of them"),
        pytest.param((GLOBAL, GLOBAL), [0, 0], id="one group"),
        pytest.param((DETAILS, INNER), [0, 0], id="other keys"),
    ],
)
def test_which_stages_keep_rows_together(views: tuple[str, ...], expected: list[int]) -> None:
    assert kept(*views) == expected


def test_so_many_stages_keep_their_rows_together_at_most() -> None:
    views = [ALONE.replace("total > 1", f"total > {number}") for number in range(MAX_SHARERS + 1)]

    assert kept(*views) == [0, *[1] * (MAX_SHARERS - 1), 0]


def test_a_stage_runs_on_the_level_of_the_one_that_keeps_its_rows() -> None:
    customers = "SELECT TRANSACTIONALLY o.customer_id, sum(v.n) AS n FROM orders o JOIN v0 v ON v.id = o.id GROUP BY o.customer_id"
    found = plan(TOTALS, DETAILS, customers)

    assert [stage.number for stage in found.stages if stage.kept_by] != []
    for stage in found.stages:
        level = next(number for number, stages in enumerate(found.levels) if stage.number in stages)
        keeper = next(
            number for number, stages in enumerate(found.levels) if (stage.kept_by or stage.number) in stages
        )
        assert level == keeper
        assert all(
            receiver in sum(found.levels[level + 1 :], ())
            for receiver in stage.receivers
            if receiver != stage.number
        )


def test_views_mean_the_same_beside_others_but_their_state_is_another() -> None:
    together = plan(DETAILS, TOTALS)
    alone = [plan(DETAILS), plan(TOTALS)]

    assert [view.fingerprint for view in together.views] == [each.views[0].fingerprint for each in alone]
    assert fingerprint(together.stages) != fingerprint([*alone[0].stages, *alone[1].stages])


def test_statements_whose_texts_cannot_be_told_stay_with_their_own_order_of_inputs() -> None:
    # The order of inputs is that of FROM, and `$` may begin a text that looks like an input.
    straight = DETAILS.replace("LEFT JOIN", "JOIN")
    swapped = straight.replace("orders o JOIN lines l", "lines l JOIN orders o")
    opaque = swapped.replace("l.product_id O", "l.product_id || $$ __slackwater_rows_0 $$ O")

    assert kept(straight, swapped) == [0, 1]
    assert kept(straight, opaque) == [0, 0]


def test_whether_rows_are_kept_by_another_stage_counts_in_the_state() -> None:
    together = plan(ALONE, ALONE.replace("> 1", "> 2"))
    apart = [replace(stage, kept_by=0) for stage in together.stages]

    assert [stage.kept_by for stage in together.stages] == [0, 1]
    assert fingerprint(together.stages) != fingerprint(apart)


def test_groups_of_the_stages_key_are_known_as_such() -> None:
    totals = plan(TOTALS).stages[0].accumulate
    finer = (
        plan(
            "SELECT TRANSACTIONALLY o.id, l.quantity, count(*) AS n FROM orders o JOIN lines l ON l.order_id = o.id GROUP BY o.id, l.quantity"
        )
        .stages[0]
        .accumulate
    )

    assert totals is not None
    assert finer is not None
    assert (totals.has_stage_key, finer.has_stage_key) == (True, False)
