# ruff: noqa: E501 - SQL on one line
"""Which stages views become."""

import pickle

import pytest

from slackwater.sql.catalog import Catalog
from slackwater.sql.errors import SqlTextError
from slackwater.sql.plan import DocumentsOutput, EnginePlan, Output, PartialsOutput, RowsPart, StagePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.customers (id bigint PRIMARY KEY, name text, region text);
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, status text, total numeric(10,2), day date);
CREATE TABLE s.lines (id bigint PRIMARY KEY, order_id bigint, product_id bigint, qty int, weight double precision);
CREATE TABLE s.products (id bigint PRIMARY KEY, name text);
CREATE TABLE s.notes (id bigint PRIMARY KEY, order_id bigint, written date);
ALTER TABLE s.customers REPLICA IDENTITY FULL;
ALTER TABLE s.orders REPLICA IDENTITY FULL;
ALTER TABLE s.lines REPLICA IDENTITY FULL;
"""
CATALOG = parse_catalog({"schema.sql": TABLES})

PLANS = {
    "documents with nested lists stay one stage": (
        "SELECT TRANSACTIONALLY o.id, list(l.id ORDER BY l.id) AS ls FROM orders o LEFT JOIN lines l ON l.order_id = o.id GROUP BY o.id",
        [
            "1: o by id [group] + l by order_id [group] -> view 0",
        ],
    ),
    "sums by the key of the join need no further stage": (
        "SELECT TRANSACTIONALLY o.id, sum(l.qty) AS q FROM orders o LEFT JOIN lines l ON l.order_id = o.id GROUP BY o.id",
        [
            "1: o by id [changed] + l by order_id [changed and witness]; keeps sum by 1 column -> view 0",
        ],
    ),
    "rows of one table stay with their primary key": (
        "SELECT TRANSACTIONALLY status, count(*) AS n, avg(total) AS a FROM orders GROUP BY status",
        [
            "1: orders by id [alone] -> partials 2",
            "2: keeps count, sum by 1 column -> view 0",
        ],
    ),
    "a global aggregate adds up what all buckets found": (
        "SELECT TRANSACTIONALLY sum(qty) AS q, max(qty) AS m, count(DISTINCT qty) AS d FROM lines",
        [
            "1: lines by id [alone] -> partials 2",
            "2: keeps sum, max, distinct by 0 columns -> view 0",
        ],
    ),
    "a chain over two keys": (
        "SELECT TRANSACTIONALLY c.id, c.name, count(*) AS n FROM customers c JOIN orders o ON o.customer_id = c.id LEFT JOIN lines l ON l.order_id = o.id GROUP BY c.id",
        [
            "1: c by id [changed] + o by customer_id [changed] -> rows 2",
            "2: stage 1 with nulls [changed] + l by order_id [changed and witness] -> partials 3",
            "3: keeps count, max by 1 column -> view 0",
        ],
    ),
    "a star over three keys": (
        "SELECT TRANSACTIONALLY l.id, c.name, p.name AS product FROM lines l JOIN orders o ON o.id = l.order_id JOIN customers c ON c.id = o.customer_id LEFT JOIN products p ON p.id = l.product_id",
        [
            "1: l by order_id [changed] + o by id [changed] -> rows 2",
            "2: stage 1 [changed] + c by id [changed] -> rows 3",
            "3: stage 2 with nulls [changed] + p by id [changed and witness] -> view 0",
        ],
    ),
    "of several compared columns one that both tables may be split by is enough": (
        "SELECT TRANSACTIONALLY l.id, p.name FROM lines l JOIN products p ON p.id = l.product_id AND p.name = l.order_id::text",
        [
            "1: l by product_id [changed] + p by id [changed] -> view 0",
        ],
    ),
    "groups over groups": (
        "SELECT TRANSACTIONALLY n, count(*) AS customers FROM (SELECT customer_id, count(*) AS n FROM orders GROUP BY customer_id) x GROUP BY n",
        [
            "1: orders by id [alone] -> partials 2",
            "2: keeps count by 1 column -> partials 3",
            "3: keeps count by 1 column -> view 0",
        ],
    ),
    "existence asks for a witness": (
        "SELECT TRANSACTIONALLY o.id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM lines l WHERE l.order_id = o.id)",
        [
            "1: o by id [changed] + l by order_id [changed and witness] -> view 0",
        ],
    ),
    "existence of certain rows needs all of them": (
        "SELECT TRANSACTIONALLY o.id FROM orders o WHERE EXISTS (SELECT 1 FROM lines l WHERE l.order_id = o.id AND l.qty > o.total)",
        [
            "1: o by id [changed] + l by order_id [group] -> view 0",
        ],
    ),
    "a residual condition of an outer join needs the right side's rows": (
        "SELECT TRANSACTIONALLY o.id, l.id AS line FROM orders o LEFT JOIN lines l ON l.order_id = o.id AND l.qty > o.total",
        [
            "1: o by id [changed] + l by order_id [group] -> view 0",
        ],
    ),
    "unions keep their branches apart": (
        "SELECT TRANSACTIONALLY id, name FROM customers UNION ALL SELECT id, name FROM products",
        [
            "1: customers by id [alone] + products by id [alone] -> view 0",
        ],
    ),
    "a union without repeats is grouped": (
        "SELECT TRANSACTIONALLY id FROM customers UNION SELECT customer_id FROM orders",
        [
            "1: customers by id [alone] + orders by customer_id with nulls [alone]; keeps groups by 1 column -> view 0",
        ],
    ),
    "a global group of a union's branch is a stage of its own": (
        "SELECT TRANSACTIONALLY sum(weight) AS s FROM lines UNION ALL SELECT weight AS s FROM lines",
        [
            "1: lines by nothing [group] -> rows 2",
            "2: stage 1 with nulls [alone] + lines by id [alone] -> view 0",
        ],
    ),
    "a global group from all its rows is a stage of its own below groups that are added up": (
        "SELECT TRANSACTIONALLY count(x.ws) AS n FROM (SELECT list(weight ORDER BY id) AS ws FROM lines) x",
        [
            "1: lines by nothing [group] -> rows 2",
            "2: stage 1 with nulls [alone] -> partials 3",
            "3: keeps count by 0 columns -> view 0",
        ],
    ),
    "a join with such a group is one, too": (
        "SELECT TRANSACTIONALLY p.name, count(x.ws) AS n FROM products p CROSS JOIN (SELECT list(weight ORDER BY id) AS ws FROM lines) x GROUP BY p.name",
        [
            "1: p by nothing [changed] + lines by nothing [group] -> rows 2",
            "2: stage 1 with nulls [alone] -> partials 3",
            "3: keeps count by 1 column -> view 0",
        ],
    ),
    "groups by columns that are computed from all their rows add to groups themselves": (
        "SELECT TRANSACTIONALLY count(x.ws) AS n FROM (SELECT order_id, list(weight ORDER BY id) AS ws FROM lines GROUP BY order_id) x",
        [
            "1: lines by order_id with nulls [group] -> partials 2",
            "2: keeps count by 0 columns -> view 0",
        ],
    ),
    "a join by nothing without one adds to groups itself": (
        "SELECT TRANSACTIONALLY count(*) AS n FROM products p CROSS JOIN lines l",
        [
            "1: p by nothing [changed] + l by nothing [changed] -> partials 2",
            "2: keeps count by 0 columns -> view 0",
        ],
    ),
    "windows are computed by partition": (
        "SELECT TRANSACTIONALLY id, row_number() OVER (PARTITION BY customer_id ORDER BY day) AS r FROM orders",
        [
            "1: orders by customer_id with nulls [group] -> view 0",
        ],
    ),
    "full joins look for witnesses on both sides": (
        "SELECT TRANSACTIONALLY c.id, o.id AS o FROM customers c FULL JOIN orders o ON o.customer_id = c.id",
        [
            "1: c by id [changed and witness] + o by customer_id with nulls [changed and witness] -> view 0",
        ],
    ),
    "without old rows a table is kept by its primary key first": (
        "SELECT TRANSACTIONALLY o.id, count(n.id) AS n FROM orders o LEFT JOIN notes n ON n.order_id = o.id GROUP BY o.id",
        [
            "1: n by id [alone] -> rows 2",
            "2: o by id [changed] + stage 1 [changed and witness]; keeps count by 1 column -> view 0",
        ],
    ),
    "dates are compared as texts that a stage makes": (
        "SELECT TRANSACTIONALLY o.id, n.id AS n FROM orders o JOIN notes n ON n.written = o.day",
        [
            "1: o by id [alone] -> rows 3",
            "2: n by id [alone] -> rows 3",
            "3: stage 1 [changed] + stage 2 [changed] -> view 0",
        ],
    ),
    "sums of floats need their rows": (
        "SELECT TRANSACTIONALLY order_id, sum(weight) AS s FROM lines GROUP BY order_id",
        [
            "1: lines by order_id with nulls [group] -> view 0",
        ],
    ),
    "the largest list of intervals needs all rows": (
        "SELECT TRANSACTIONALLY order_id, max([to_days(qty)]) AS m FROM lines GROUP BY order_id",
        [
            "1: lines by order_id with nulls [group] -> view 0",
        ],
    ),
    "a list of equal intervals is counted among its rows": (
        "SELECT TRANSACTIONALLY order_id, count(DISTINCT [to_days(qty)]) AS d FROM lines GROUP BY order_id",
        [
            "1: lines by order_id with nulls [group] -> view 0",
        ],
    ),
    "a subquery in the select list is a left join": (
        "SELECT TRANSACTIONALLY o.id, (SELECT max(l.qty) FROM lines l WHERE l.order_id = o.id) AS m FROM orders o",
        [
            "1: l by id [alone] -> partials 2",
            "2: keeps max by 1 column -> rows 3",
            "3: o by id [changed] + stage 2 [changed and witness] -> view 0",
        ],
    ),
    "a self join is two inputs": (
        "SELECT TRANSACTIONALLY a.id, b.id AS other FROM orders a JOIN orders b ON a.customer_id = b.customer_id AND a.id < b.id",
        [
            "1: a by customer_id [changed] + b by customer_id [changed] -> view 0",
        ],
    ),
    "columns that depend on the group are kept beside it": (
        "SELECT TRANSACTIONALLY o.id, o.status, sum(l.qty) AS q FROM orders o JOIN lines l ON l.order_id = o.id GROUP BY o.id",
        [
            "1: o by id [changed] + l by order_id [changed]; keeps sum, max by 1 column -> view 0",
        ],
    ),
    "a cross join has one key": (
        "SELECT TRANSACTIONALLY c.id, p.id AS p FROM customers c CROSS JOIN products p",
        [
            "1: c by nothing [changed] + p by nothing [changed] -> view 0",
        ],
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_views_become_stages(name: str) -> None:
    sql, expected = PLANS[name]

    assert stages_text(compile_pipeline([("v.sql", sql)], CATALOG)) == expected


def test_documents_of_a_key_are_evaluated_once() -> None:
    sql = "SELECT TRANSACTIONALLY o.id, list(l.id) AS ls FROM orders o JOIN lines l ON l.order_id = o.id GROUP BY o.id"
    (stage,) = compile_pipeline([("v.sql", sql)], CATALOG).stages

    assert stage.rows is not None
    assert stage.rows.latest_statement is not None


@pytest.mark.parametrize(
    "name",
    [
        "windows are computed by partition",
        "unions keep their branches apart",
        "a self join is two inputs",
        "full joins look for witnesses on both sides",
        "a cross join has one key",
    ],
)
def test_where_a_stage_key_may_have_documents_of_several_record_keys_points_are_evaluated(name: str) -> None:
    sql, _ = PLANS[name]
    (stage,) = compile_pipeline([("v.sql", sql)], CATALOG).stages

    assert stage.rows is not None
    assert stage.rows.latest_statement is None


def test_rows_are_brought_together_by_a_list_in_which_zeros_have_one_sign() -> None:
    sql = "SELECT TRANSACTIONALLY id, count(*) OVER (PARTITION BY [weight]) AS n FROM lines"
    first, *_ = compile_pipeline([("v.sql", sql)], CATALOG).stages

    assert first.rows is not None
    assert "list_transform(" in first.rows.statement


def test_the_record_key_is_what_tells_rows_apart() -> None:
    sql = "SELECT TRANSACTIONALLY o.status, l.qty AS q FROM orders o JOIN lines l ON l.order_id = o.id"
    (view,) = compile_pipeline([("v.sql", sql)], CATALOG).views

    assert view.key == ("l.id",)
    assert [output.name for output in view.outputs] == ["status", "q"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT TRANSACTIONALLY o.id, o.status FROM orders o",
        "SELECT TRANSACTIONALLY o.id, o.status, count(*) AS n FROM orders o JOIN lines l ON l.order_id = o.id "
        "GROUP BY o.id, o.status",
    ],
)
def test_a_column_that_determines_partitions_is_part_of_the_record_key(sql: str) -> None:
    """A key of the stage may then have documents of several record keys: none of them is taken for the other."""
    plan = compile_pipeline([("v.sql", sql)], CATALOG, partition_by={"v": "status"})
    last = plan.stages[-1]

    assert plan.views[0].key == ("id", "status")
    assert last.accumulate is None
    assert last.rows is not None
    assert last.rows.latest_statement is None
    assert compile_pipeline([("v.sql", sql)], CATALOG, partition_by={"v": "id"}).views[0].key == ("id",)


def test_columns_of_a_record_key_that_are_called_the_same_are_told_apart() -> None:
    sql = (
        'SELECT TRANSACTIONALLY o.id AS "l.id", l.weight FROM orders o JOIN lines l ON l.qty = o.customer_id'
    )
    (view,) = compile_pipeline([("v.sql", sql)], CATALOG).views

    assert view.key == ("l.id", "l.id_")


def test_a_record_key_that_cannot_be_written_as_json_exactly_is_refused_though_it_is_not_selected() -> None:
    sql = "SELECT TRANSACTIONALLY count(*) AS n FROM orders GROUP BY map {'a': 1.5 * total}"
    with pytest.raises(SqlTextError, match=r"of type MAP\(VARCHAR, .*cannot be written exactly as JSON"):
        compile_pipeline([("v.sql", sql)], CATALOG)


def test_a_view_may_read_another_that_is_not_published() -> None:
    views = [
        (
            "views/per_order.sql",
            "SELECT TRANSACTIONALLY order_id, sum(qty) AS q FROM lines GROUP BY order_id",
        ),
        ("views/total.sql", "SELECT TRANSACTIONALLY sum(q) AS q FROM per_order"),
    ]

    both = compile_pipeline(views, CATALOG)
    one = compile_pipeline(views, CATALOG, published=["total"])

    assert [view.name for view in both.views] == ["per_order", "total"]
    assert [view.name for view in one.views] == ["total"]
    assert one.views[0].stages == tuple(stage.number for stage in one.stages)


def test_what_a_view_does_not_use_does_not_change_its_fingerprint() -> None:
    sql = "SELECT TRANSACTIONALLY status, count(*) AS n FROM orders GROUP BY status"
    more = parse_catalog(
        {"schema.sql": TABLES.replace("customer_id bigint,", "customer_id bigint, more text,", 1)}
    )
    other_type = parse_catalog({"schema.sql": TABLES.replace("status text", "status varchar(9)")})

    plain = _fingerprint(sql)

    assert _fingerprint(sql, more) == plain
    assert _fingerprint(sql.replace("count(*)", "count( * ) /* all */")) == plain
    assert _fingerprint(sql.replace("count(*)", "count(id)")) != plain
    assert _fingerprint(sql, other_type) != plain


def test_a_plan_travels_to_executors() -> None:
    sql, _ = PLANS["a chain over two keys"]
    plan = compile_pipeline([("v.sql", sql)], CATALOG)

    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301 - our own bytes


def test_an_input_keeps_only_the_columns_that_are_used() -> None:
    sql, _ = PLANS["a chain over two keys"]
    first = compile_pipeline([("v.sql", sql)], CATALOG).stages[0].rows

    assert first is not None
    assert [(plan.alias, plan.column_names) for plan in first.inputs] == [
        ("c", ("id", "name")),
        ("o", ("id", "customer_id")),
    ]
    assert [plan.needs_replica_identity_full for plan in first.inputs] == [False, True]


def test_quoted_and_mixed_case_names_are_found() -> None:
    ddl = 'CREATE TABLE "My Schema"."My Table" ("The Id" int PRIMARY KEY, "a""b" text);'
    sql = 'SELECT TRANSACTIONALLY t."the id" AS "Key" FROM "my schema"."my table" t'

    plan = compile_pipeline([("v.sql", sql)], parse_catalog({"t": ddl}))

    assert plan.views[0].key == ("Key",)
    assert plan.stages[0].rows is not None
    assert plan.stages[0].rows.inputs[0].column_names == ("The Id",)


def test_a_table_in_two_schemas_needs_its_schema() -> None:
    ddl = "CREATE TABLE a.t (id int PRIMARY KEY); CREATE TABLE b.t (id int PRIMARY KEY);"

    with pytest.raises(SqlTextError, match=r"Write a\.t or b\.t"):
        compile_pipeline([("v.sql", "SELECT TRANSACTIONALLY id FROM t")], parse_catalog({"t": ddl}))


REFUSED = {
    "SELECT TRANSACTIONALLY to_days(qty) AS d, count(*) AS n FROM lines GROUP BY 1": "INTERVAL",
    "SELECT TRANSACTIONALLY o.id, c.id AS c FROM orders o JOIN customers c ON c.region = o.customer_id": "compares",
    "SELECT TRANSACTIONALLY [{'d': to_days(qty)}] AS d, count(*) AS n FROM lines GROUP BY 1": "INTERVAL",
    "SELECT TRANSACTIONALLY count(*) AS n FROM lines GROUP BY {'t': make_time(1, 2, qty)::TIMETZ}": "TIME WITH TIME ZONE",
    "SELECT TRANSACTIONALLY id, count(*) OVER (PARTITION BY map {1: weight}) AS n FROM lines": "MAP",
}


@pytest.mark.parametrize(("sql", "message"), REFUSED.items())
def test_values_that_cannot_be_compared_as_texts_are_refused_with_their_place(sql: str, message: str) -> None:
    with pytest.raises(SqlTextError, match=message) as raised:
        compile_pipeline([("v.sql", sql)], CATALOG)

    assert str(raised.value).startswith("v.sql:1:")


def _fingerprint(sql: str, catalog: Catalog = CATALOG) -> str:
    return compile_pipeline([("v.sql", sql)], catalog).views[0].fingerprint


def stages_text(plan: EnginePlan) -> list[str]:
    """A line per stage: its inputs with keys and reads, its accumulators, where its results go."""
    return [_stage(stage) for stage in plan.stages]


def _stage(stage: StagePlan) -> str:
    parts = []
    if stage.rows is not None:
        parts.append(_rows(stage.rows))
    if stage.accumulate is not None:
        kinds = ", ".join(each.kind.value for each in stage.accumulate.accumulators)
        count = len(stage.accumulate.key)
        parts.append(f"keeps {kinds or 'groups'} by {count} column{'' if count == 1 else 's'}")
    return f"{stage.number}: {'; '.join(parts)} -> {_output(stage.output)}"


def _rows(rows: RowsPart) -> str:
    inputs = []
    for plan in rows.inputs:
        name = f"stage {plan.origin}" if plan.origin else plan.alias
        key = "" if plan.origin else f" by {', '.join(plan.key) or 'nothing'}"
        nulls = " with nulls" if plan.keeps_null_keys else ""
        inputs.append(f"{name}{key}{nulls} [{plan.reads.value}]")
    return " + ".join(inputs)


def _output(output: Output) -> str:
    match output:
        case DocumentsOutput(view=view):
            return f"view {view}"
        case PartialsOutput(stage=stage):
            return f"partials {stage}"
        case _:
            return "rows " + ", ".join(str(edge.stage) for edge in output.edges)
