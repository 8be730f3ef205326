"""What compiling a view finds out."""

import pickle
from dataclasses import replace

import pytest

from slackwater_sql.catalog import Catalog
from slackwater_sql.ddl import parse_catalog
from slackwater_sql.errors import ViewError
from slackwater_sql.plan import KeyColumn
from slackwater_sql.view import compile_view

SQL = """-- the main job
SELECT TRANSACTIONALLY o.id AS order_id, O.Customer, count(l.id) AS n
FROM inventory.orders o LEFT JOIN "order_lines" AS l ON (l.order_id = o.id AND l.quantity > 0)
GROUP BY o.id; -- that is all; really"""


def test_plan_says_what_a_stage_has_to_keep(catalog: Catalog) -> None:
    plan = compile_view(SQL, catalog, path="pipelines/orders/views/orders_with_lines.sql")

    orders, lines = plan.inputs
    assert plan.name == "orders_with_lines"
    assert [(key.name, key.type.postgres) for key in plan.key] == [("order_id", "bigint")]
    assert [(output.name, output.type) for output in plan.outputs] == [
        ("order_id", "BIGINT"),
        ("customer", "VARCHAR"),
        ("n", "BIGINT"),
    ]
    assert (orders.alias, orders.table.full_name, orders.key) == ("o", "inventory.orders", ("id",))
    assert orders.column_names == ("id", "customer")
    assert not orders.needs_replica_identity_full
    assert (lines.alias, lines.key, lines.column_names) == (
        "l",
        ("order_id",),
        ("id", "order_id", "quantity"),
    )
    assert lines.needs_replica_identity_full
    assert (lines.key_positions, lines.primary_key_positions) == ((1,), (0,))


def test_plan_travels_to_executors(catalog: Catalog) -> None:
    plan = compile_view(SQL, catalog, path="v.sql")

    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301 - our own bytes


def test_only_the_preserved_side_keeps_null_keys(catalog: Catalog) -> None:
    left = "SELECT TRANSACTIONALLY s.order_id FROM shipments s LEFT JOIN notes n ON n.order_id = s.order_id"
    full = replace(catalog.find("", "shipments")[0], replica_identity_full=True)
    tables = tuple(full if table.name == "shipments" else table for table in catalog.tables)

    plan = compile_view(f"{left} GROUP BY s.order_id", Catalog(tables), path="v.sql")
    inner = compile_view(f"{left.replace('LEFT ', '')} GROUP BY s.order_id", Catalog(tables), path="v.sql")

    assert [each.keeps_null_keys for each in plan.inputs] == [True, False]
    assert [each.keeps_null_keys for each in inner.inputs] == [False, False]


def test_fingerprint_ignores_layout_and_unused_columns(catalog: Catalog) -> None:
    plan = compile_view(SQL, catalog, path="v.sql")
    same = (
        SQL.replace("\n", "  \n").replace("-- the main job", "/* other; words */").replace("count", "COUNT")
    )
    without_status = replace(
        catalog.find("", "orders")[0],
        columns=tuple(c for c in catalog.find("", "orders")[0].columns if c.name != "status"),
    )
    changed = Catalog(tuple(without_status if t.name == "orders" else t for t in catalog.tables))

    assert compile_view(same, catalog, path="other.sql").fingerprint == plan.fingerprint
    assert compile_view(SQL, changed, path="v.sql").fingerprint == plan.fingerprint


@pytest.mark.parametrize(
    ("old", "new"),
    [("count(l.id)", "count(*)"), ("> 0", "> 1"), ("AS n", "AS m"), ("LEFT JOIN", "JOIN"), ("> 0", "> '0'")],
)
def test_fingerprint_changes_with_the_meaning(old: str, new: str, catalog: Catalog) -> None:
    plan = compile_view(SQL, catalog, path="v.sql")

    assert compile_view(SQL.replace(old, new), catalog, path="v.sql").fingerprint != plan.fingerprint


def test_composite_key_is_reduced_to_the_primary_key_in_group_by(catalog: Catalog) -> None:
    sql = "SELECT TRANSACTIONALLY o.id, o.status FROM orders o GROUP BY o.status, o.id"

    plan = compile_view(sql, catalog, path="v.sql")

    assert plan.key == (KeyColumn("id", plan.inputs[0].columns[0].type),)


def test_quoted_and_mixed_case_names_are_found() -> None:
    catalog = parse_catalog(
        {"t": 'CREATE TABLE "My Schema"."My Table" ("The Id" int PRIMARY KEY, "a""b" text);'}
    )
    sql = 'SELECT TRANSACTIONALLY t."the id" AS "Key" FROM "my schema"."my table" t GROUP BY "Key"'

    plan = compile_view(sql, catalog, path="v.sql")

    assert plan.inputs[0].column_names == ("The Id",)
    assert [output.name for output in plan.outputs] == ["Key"]


def test_table_in_two_schemas_needs_its_schema() -> None:
    catalog = parse_catalog(
        {"t": "CREATE TABLE a.t (id int PRIMARY KEY); CREATE TABLE b.t (id int PRIMARY KEY);"}
    )

    assert (
        compile_view("SELECT TRANSACTIONALLY id FROM b.t GROUP BY id", catalog, path="v")
        .inputs[0]
        .table.schema
        == "b"
    )
    with pytest.raises(ViewError, match=r"Write a\.t or b\.t"):
        compile_view("SELECT TRANSACTIONALLY id FROM t GROUP BY id", catalog, path="v")
