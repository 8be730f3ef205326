from collections.abc import Callable, Mapping, Sequence

import pytest

from slackwater.sql.catalog import Catalog
from slackwater.sql.plan import EnginePlan, InputPlan
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import RowCodec
from slackwater.sql.stage_evaluation import RowsEvaluator, RowVersions

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


Rows = Mapping[str, Sequence[bytes]]
"""Row images as Debezium's JSON, by alias of the input."""


@pytest.fixture
def live_documents() -> Callable[[EnginePlan, Rows], list[bytes]]:
    """Gives the documents of one stage key, all of whose rows are given, without stages and state."""

    def documents(plan: EnginePlan, rows: Rows) -> list[bytes]:
        (stage,) = plan.stages
        assert stage.rows is not None
        evaluator = RowsEvaluator(stage.rows, stage.key, name=plan.views[0].name)
        versions = [_live(each, rows.get(each.alias, ())) for each in stage.rows.inputs]
        try:
            return [document for _, _, document in evaluator.latest(versions, [b"\x91\x01"], [0].__getitem__)]
        finally:
            evaluator.close()

    return documents


def _live(plan: InputPlan, images: Sequence[bytes]) -> RowVersions:
    codec = RowCodec(plan.table, plan.column_names)
    columns = codec.unpack_columns([codec.encode(codec.decode(image)) for image in images])
    return RowVersions([0] * len(images), columns)
