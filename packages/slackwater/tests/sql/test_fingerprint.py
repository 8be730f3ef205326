# ruff: noqa: E501 - SQL on few lines
"""Fingerprints are in checkpoints: views that have not changed keep theirs in every version."""

import pytest

from slackwater.sql.plan import fingerprint
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.customers (id bigint PRIMARY KEY, name varchar(20), region citext, since date);
CREATE TABLE s.orders (id uuid PRIMARY KEY, customer_id bigint, total numeric(10,2), placed timestamp(3), tags text[]);
CREATE TABLE s.lines (id bigint PRIMARY KEY, order_id uuid NOT NULL, qty int, weight double precision, seen timestamptz);
ALTER TABLE s.customers REPLICA IDENTITY FULL;
ALTER TABLE s.orders REPLICA IDENTITY FULL;
ALTER TABLE s.lines REPLICA IDENTITY FULL;
"""

# View: its text, its fingerprint, and that of each of its stages.
KEPT = {
    "documents": (
        """SELECT TRANSACTIONALLY o.id, o.placed, o.tags, list({'id': l.id, 'w': l.weight, 'seen': l.seen} ORDER BY l.id) AS ls
        FROM orders o LEFT JOIN lines l ON l.order_id = o.id GROUP BY o.id""",
        "646fe114976cbbbacb2c4dbd197279a87f46c2a5440ed0a123bdc8fca060d48f",
        [
            "646fe114976cbbbacb2c4dbd197279a87f46c2a5440ed0a123bdc8fca060d48f",
        ],
    ),
    "sums": (
        """SELECT TRANSACTIONALLY c.id, c.name, c.since, count(*) AS n, sum(o.total) AS total, max(s.qty) AS most, count(DISTINCT o.placed) AS d
        FROM customers c JOIN orders o ON o.customer_id = c.id
        LEFT JOIN (SELECT order_id, sum(qty) AS qty FROM lines GROUP BY order_id) s ON s.order_id = o.id GROUP BY c.id""",
        "ae4f05f934871bb1ffb275a01ac08179b03d75a79c67fd57ed7539fc6c1634a5",
        [
            "90dda1d02469ce2c2fc633f7d540bd22e2fe65ff871de80f30aa226e0414e4f8",
            "9a7b2672782fd421eec8b1e252ac05068f1dbd63aeb4adec2aed685ca7e35f38",
            "17fc1b14f8d2b9d4af236851df6dc845acbb8233d6d33268ba008274fa568851",
            "01ec6c5fa82742329504d0f6bcbc7935b71e45488b7ddc3971fc943b94a2ba28",
            "6939798263e08f7704f3307ebc8e1a683fbf6d977f6089b65834bd2a8cd411dd",
        ],
    ),
    "newest": (
        """SELECT TRANSACTIONALLY id, region FROM customers WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = customers.id)
        UNION SELECT customer_id, tags[1] FROM orders QUALIFY row_number() OVER (PARTITION BY customer_id ORDER BY placed DESC) = 1""",
        "9a79558c9a54b5b62a652ace8e3826280e30331a07d47ad7da9e86b3adc4f2fa",
        [
            "92d6634353165d798985ce900ffafb37baace68b22017afeba187fad2852b02a",
            "60a355c885c304406f86c77e7b80ef1d5587c1dcbe115a40ab7e350ef239ed01",
        ],
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_view_keeps_its_fingerprint_and_those_of_its_stages(name: str) -> None:
    sql, of_view, of_stages = KEPT[name]

    plan = compile_pipeline([(f"{name}.sql", sql)], parse_catalog({"schema.sql": TABLES}))

    assert plan.views[0].fingerprint == of_view
    assert [fingerprint([stage]) for stage in plan.stages] == of_stages
