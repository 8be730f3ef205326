# ruff: noqa: E501, S608 - SQL reads best on few lines; it is only read
"""What the tree of a view says beyond its meaning."""

import pickle
from collections.abc import Iterator
from typing import TypeVar

import pytest

from slackwater.sql.catalog import Catalog
from slackwater.sql.frontend import ViewText, read_view
from slackwater.sql.logical import (
    Aggregate,
    Extend,
    Filter,
    Join,
    JoinKind,
    LogicalView,
    Relation,
    Scan,
    Union,
    Window,
    children,
)
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.rendering import render_over_tables

S = "SELECT TRANSACTIONALLY"
T = TypeVar("T", bound=Relation)


def scans(relation: Relation) -> Iterator[Scan]:
    """All table scans below, left to right."""
    if isinstance(relation, Scan):
        yield relation
    for child in children(relation):
        yield from scans(child)


def test_scans_have_the_used_columns_and_the_key(catalog: Catalog) -> None:
    view = read_view(ViewText("v.sql", f"{S} o.customer FROM orders o WHERE o.total > 1"), catalog)

    (scan,) = scans(view.relation)

    assert list(scan.ids) == ["id", "customer", "total"]
    assert (scan.alias, scan.table.full_name) == ("o", "inventory.orders")


def test_columns_of_a_common_table_that_nothing_uses_are_not_computed(catalog: Catalog) -> None:
    sql = f"""WITH s AS (SELECT *, upper(product) AS u, row_number() OVER (PARTITION BY order_id) AS n,
              (SELECT max(note) FROM notes) AS m FROM order_lines) {S} id FROM s"""

    view = read_view(ViewText("v.sql", sql), catalog)

    assert view.relation == Scan(view.relation.table, {"id": "c1"}, "order_lines", view.relation.span)  # type: ignore[union-attr]


def test_a_view_under_other_spacing_and_with_more_columns_in_its_tables_is_the_same_tree() -> None:
    table = "CREATE TABLE t (id bigint PRIMARY KEY, {}x int, y int); CREATE TABLE u (id bigint PRIMARY KEY, t_id bigint);"
    sql = f"{S} t.id, sum(t.x) AS s FROM t JOIN u ON u.t_id = t.id WHERE x > 1 GROUP BY t.id"
    spaced = sql.replace(" FROM", " -- of c1\n FROM").replace("t.id, ", "t.id,\n\n").replace("c1", "columns")

    first = read_view(ViewText("v.sql", sql), parse_catalog({"t.sql": table.format("")}))
    second = read_view(ViewText("v.sql", spaced), parse_catalog({"t.sql": table.format("added text, ")}))

    assert render_over_tables(first.relation) == render_over_tables(second.relation)
    assert first.outputs == second.outputs


def test_expressions_know_what_the_user_wrote_and_where(catalog: Catalog) -> None:
    sql = f"{S} o.id, (o.total /* € */ + 1) * 2 AS x FROM orders o"

    view = read_view(ViewText("v.sql", sql), catalog)

    (extend,) = _all(view.relation, Extend)
    ((_, expression),) = extend.computed
    assert sql[expression.span.start : expression.span.end] == expression.text == "(o.total /* € */ + 1) * 2"
    assert expression.sql.split() == ['("c2"', "+", "1)", "*", "2"]
    assert expression.columns == ("c2",)


def test_places_in_other_views_are_those_where_they_are_read(catalog: Catalog) -> None:
    views = {"w": ViewText("w.sql", f"{S} o.id, n.note FROM orders o JOIN notes n ON n.order_id = o.id")}
    sql = f"{S} w.note FROM w"

    view = read_view(ViewText("v.sql", sql), catalog, views)

    (join,) = _all(view.relation, Join)
    assert sql[join.span.start : join.span.end] == "w"
    assert {sql[scan.span.start : scan.span.end] for scan in scans(view.relation)} == {"w"}


def test_types_and_names_are_those_of_duckdb(catalog: Catalog) -> None:
    sql = f"{S} O.ID, o.total * 2 AS \"Double\", [o.customer] AS l, {{'n': o.line_count}} AS s FROM orders o"

    view = read_view(ViewText("dir/v.sql", sql), catalog)

    assert view.text.name == "v"
    assert [name for name, _ in view.outputs] == ["id", "Double", "l", "s"]
    assert view.types == ("BIGINT", "DECIMAL(18,2)", "VARCHAR[]", "STRUCT(n INTEGER)")


def test_labels_are_what_the_user_calls_columns(catalog: Catalog) -> None:
    view = read_view(
        ViewText("v.sql", f"{S} o.customer, count(*) AS n FROM orders o GROUP BY o.customer"), catalog
    )

    (aggregate,) = _all(view.relation, Aggregate)
    assert [view.labels[name] for name, _ in aggregate.groups] == ["o.customer"]


def test_identity_of_groups_leaves_out_what_depends_on_a_key(catalog: Catalog) -> None:
    view = read_view(
        ViewText(
            "v.sql",
            f"{S} o.id, o.customer, l.product, o.status, count(*) AS n FROM orders o "
            "JOIN order_lines l ON l.order_id = o.id GROUP BY o.customer, o.id, l.product",
        ),
        catalog,
    )

    (aggregate,) = _all(view.relation, Aggregate)
    assert [view.labels[name] for name in aggregate.identity] == ["o.id", "l.product"]
    assert [view.labels[name] for name, _ in aggregate.groups] == [
        "o.customer",
        "o.id",
        "l.product",
        "o.status",
    ]


def test_identity_of_a_left_join_by_key_is_the_left_sides(catalog: Catalog) -> None:
    view = read_view(
        ViewText("v.sql", f"{S} l.id, o.customer FROM order_lines l LEFT JOIN orders o ON o.id = l.order_id"),
        catalog,
    )

    assert [view.labels[name] for name in view.relation.identity] == ["l.id"]


def test_distinct_of_rows_that_differ_anyway_is_nothing(catalog: Catalog) -> None:
    view = read_view(ViewText("v.sql", f"{S} DISTINCT o.id, o.customer FROM orders o"), catalog)

    assert not list(_all(view.relation, Aggregate))


def test_equalities_of_where_join_the_parts_that_they_compare(catalog: Catalog) -> None:
    view = read_view(
        ViewText(
            "v.sql",
            f"{S} o.id, l.id AS l, n.note FROM order_lines l, notes n, orders o "
            "WHERE n.order_id = o.id AND o.id = l.order_id AND o.total > 1 AND l.quantity + o.line_count > 2",
        ),
        catalog,
    )

    joins = list(_all(view.relation, Join))
    assert [(join.kind, len(join.equal), join.residual) for join in joins] == [(JoinKind.INNER, 1, None)] * 2
    assert [each.condition.text for each in _all(view.relation, Filter)] == [
        "l.quantity + o.line_count > 2",
        "o.total > 1",
    ]


def test_on_is_split_into_equal_pairs_filters_of_the_right_side_and_the_rest(catalog: Catalog) -> None:
    view = read_view(
        ViewText(
            "v.sql",
            f"{S} o.id, l.id AS l FROM orders o LEFT JOIN order_lines l "
            "ON l.order_id = o.id AND l.quantity > 1 AND l.price < o.total AND o.status = 'x'",
        ),
        catalog,
    )

    (join,) = _all(view.relation, Join)
    assert [(left.text, right.text) for left, right in join.equal] == [("o.id", "l.order_id")]
    assert join.residual is not None
    assert join.residual.text == "l.price < o.total AND o.status = 'x'"
    assert isinstance(join.right, Filter)
    assert join.right.condition.text == "l.quantity > 1"


def test_a_right_join_is_a_left_join_of_exchanged_sides(catalog: Catalog) -> None:
    view = read_view(
        ViewText("v.sql", f"{S} o.id, l.id AS l FROM orders o RIGHT JOIN order_lines l ON l.order_id = o.id"),
        catalog,
    )

    (join,) = _all(view.relation, Join)
    assert (join.kind, [scan.alias for scan in scans(join)]) == (JoinKind.LEFT, ["l", "o"])


def test_calls_of_aggregates_are_taken_apart(catalog: Catalog) -> None:
    view = read_view(
        ViewText(
            "v.sql",
            f"""{S} count(*) AS n, sum(DISTINCT quantity) FILTER (WHERE price > 1) AS s, any_value(product) AS p,
            mean(price) AS a, list(product ORDER BY price DESC) AS l FROM order_lines""",
        ),
        catalog,
    )

    (aggregate,) = _all(view.relation, Aggregate)
    count, total, any_value, mean, listed = (call for _, call in aggregate.calls)
    assert (count.function, count.arguments, count.columns, count.text) == ("count", (), (), "count(*)")
    assert (total.function, total.is_distinct, [each.text for each in total.arguments]) == (
        "sum",
        True,
        ["quantity"],
    )
    assert total.condition is not None
    assert total.condition.text == "price > 1"
    assert (any_value.function, any_value.sql) == ("min", f'min("{any_value.columns[0]}")')
    assert mean.function == "avg"
    (scan,) = scans(aggregate)
    product, price, key = (scan.ids[name] for name in ("product", "price", "id"))
    assert listed.sql == f'list("{product}" ORDER BY "{price}" DESC, "{key}")'
    assert listed.columns == (product, price, key)


def test_equal_aggregates_and_windows_are_computed_once(catalog: Catalog) -> None:
    view = read_view(
        ViewText(
            "v.sql",
            f"""{S} o.customer, sum(o.total) AS s, sum(o.total) * 2 AS d, rank() OVER w AS r, rank() OVER w + 1 AS q,
            count(*) OVER v AS n FROM orders o GROUP BY o.customer, o.status
            WINDOW w AS (PARTITION BY o.status ORDER BY sum(o.total)), v AS (PARTITION BY o.customer)""",
        ),
        catalog,
    )

    (aggregate,) = _all(view.relation, Aggregate)
    assert [call.text for _, call in aggregate.calls] == ["sum(o.total)"]
    assert sorted(call.text for window in _all(view.relation, Window) for _, call in window.calls) == [
        "count(*) OVER v",
        "rank() OVER w",
    ]


def test_a_scalar_subquery_is_joined_once_however_often_its_place_is_read(catalog: Catalog) -> None:
    view = read_view(
        ViewText(
            "v.sql",
            f"{S} sum((SELECT o.total FROM orders o WHERE o.id = l.order_id)) AS s FROM order_lines l",
        ),
        catalog,
    )

    (join,) = _all(view.relation, Join)
    assert join.kind is JoinKind.LEFT
    assert join.identity == join.left.identity


def test_branches_of_a_union_have_one_type(catalog: Catalog) -> None:
    view = read_view(
        ViewText("v.sql", f"{S} total AS v FROM orders UNION ALL SELECT quantity FROM order_lines"), catalog
    )

    (union,) = _all(view.relation, Union)
    assert view.types == ("DECIMAL(12,2)",)
    assert [type(child) for child in union.children] == [Scan, Extend]
    assert [view.labels[each] for each in union.identity] == ["branch", "row"]


@pytest.mark.parametrize(
    "sql", [f"{S} a.id, list_transform([a.x], lambda c1: c1) AS l, '\"c3\"' AS s FROM a"]
)
def test_ids_are_none_that_the_text_could_mean(sql: str) -> None:
    view = read_view(
        ViewText("v.sql", sql), parse_catalog({"t.sql": "CREATE TABLE a (id int PRIMARY KEY, x int);"})
    )

    assert view.outputs[0] == ("id", "c4")


def _all(relation: Relation, kind: type[T]) -> Iterator[T]:
    if isinstance(relation, kind):
        yield relation
    for child in children(relation):
        yield from _all(child, kind)


def test_views_pickle(catalog: Catalog) -> None:

    view = read_view(ViewText("v.sql", f"{S} o.id FROM orders o"), catalog)

    copy: LogicalView = pickle.loads(pickle.dumps(view))  # noqa: S301 - our own bytes

    assert copy == view
