"""What is read off plans."""

import pytest

from slackwater.pipeline import pipeline_definition
from slackwater.pipeline.definition import keys_move, table_inputs, table_names
from slackwater.pipeline.source_check import tables_without_topic
from slackwater.protocol import SourceTopics
from slackwater.sql.plan import EnginePlan
from slackwater.sql.postgres import parse_catalog

SCHEMA = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, total numeric(10, 2));
CREATE TABLE s.customers (id bigint PRIMARY KEY, name text);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
"""


def plan(*views: str) -> EnginePlan:
    catalog = parse_catalog({"s.sql": SCHEMA})
    sources = {f"v{number}": f"SELECT TRANSACTIONALLY {sql}" for number, sql in enumerate(views)}
    return pipeline_definition(name="p", source="inv", catalog=catalog, views=sources).plan


@pytest.mark.parametrize(
    ("sql", "moves"),
    [
        ("o.id, o.total FROM s.orders o", False),
        ("o.id, c.name FROM s.orders o JOIN s.customers c ON c.id = o.customer_id", True),
        ("o.customer_id, sum(o.total) AS total FROM s.orders o GROUP BY o.customer_id", False),
        ("sum(o.total) AS total FROM s.orders o", False),
        ("o.customer_id, list(o.id ORDER BY o.id) AS ids FROM s.orders o GROUP BY o.customer_id", False),
    ],
)
def test_keys_move_where_documents_are_not_spread_by_what_identifies_them(sql: str, moves: bool) -> None:
    """An order of another customer goes to another bucket, but keeps its record key."""
    assert keys_move(plan(sql), 0) is moves


def test_a_table_without_a_topic_is_named_with_what_may_be_its_partitions() -> None:
    topics = SourceTopics("inv", {"s.routed": "elsewhere", "s.gone": "nowhere"})
    tables = ("s.orders", "s.order", "s.order_lines", "s.routed", "s.gone", "s.new")
    known = {
        "inv.s.order_lines",
        "inv.s.orders_2025",
        "inv.s.orders_2026",
        "elsewhere",
        "inv.s.gone",
        "other",
    }

    found = tables_without_topic(tables, topics, known)
    assert {table: text for table, (text, _) in found.items()} == {
        "s.orders": "there is no topic inv.s.orders",
        "s.order": "there is no topic inv.s.order",
        "s.gone": "there is no topic nowhere",
        "s.new": "there is no topic inv.s.new",
    }
    partitions = {table: hint.partition("its partitions: ")[2] for table, (_, hint) in found.items()}
    both = "inv.s.orders_2025, inv.s.orders_2026"
    assert partitions == {"s.orders": both, "s.order": both, "s.gone": "", "s.new": ""}


def test_each_view_has_the_tables_it_is_made_of() -> None:
    found = plan("o.id FROM s.orders o", "c.id, c.name FROM s.customers c")
    assert table_names(found) == ("s.customers", "s.orders")
    tables = [[each.table.full_name for each in table_inputs(found, view.stages)] for view in found.views]
    assert tables == [["s.orders"], ["s.customers"]]
