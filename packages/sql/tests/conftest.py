import pytest

from slackwater_sql.catalog import Catalog
from slackwater_sql.ddl import parse_catalog

TABLES = """
CREATE SCHEMA inventory;
CREATE TABLE inventory.orders (
    id bigint PRIMARY KEY,
    customer text NOT NULL,
    status text,
    line_count integer NOT NULL,
    total numeric(12,2) NOT NULL,
    shape geometry(Point, 4326)
);
CREATE TABLE inventory.order_lines (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    product text,
    quantity integer,
    price numeric(10,2)
);
ALTER TABLE inventory.order_lines REPLICA IDENTITY FULL;
CREATE TABLE inventory.notes (order_id bigint PRIMARY KEY, note text, author text);
CREATE TABLE inventory.lonely (id bigint);
CREATE TABLE inventory.shipments (id uuid PRIMARY KEY, order_id bigint);
"""


@pytest.fixture
def catalog() -> Catalog:
    return parse_catalog({"tables.sql": TABLES})
