# ruff: noqa: E501 - SQL on one line
"""On which levels the stages of a pipeline are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.sql.plan import (
    DocumentsOutput,
    Edge,
    EnginePlan,
    Output,
    PartialsOutput,
    RowsOutput,
    RowsPart,
    StagePlan,
)
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.customers (id bigint PRIMARY KEY, name text, region text);
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, status text, total numeric(10,2));
CREATE TABLE s.lines (id bigint PRIMARY KEY, order_id bigint, product_id bigint, qty int);
CREATE TABLE s.products (id bigint PRIMARY KEY, name text);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
ALTER TABLE s.lines REPLICA IDENTITY FULL;
"""
CHAIN = "SELECT TRANSACTIONALLY l.id, c.name, p.name AS product FROM lines l JOIN orders o ON o.id = l.order_id JOIN customers c ON c.id = o.customer_id LEFT JOIN products p ON p.id = l.product_id"
DIAMOND = "SELECT TRANSACTIONALLY a.status, a.n, b.total FROM (SELECT status, count(*) AS n FROM orders GROUP BY status) a JOIN (SELECT status, sum(total) AS total FROM orders GROUP BY status) b ON b.status = a.status"
ONE_STAGE = "SELECT TRANSACTIONALLY o.id, list(l.id) AS ls FROM orders o JOIN lines l ON l.order_id = o.id GROUP BY o.id"
COUNTED = "SELECT TRANSACTIONALLY status, count(*) AS n FROM orders GROUP BY status"
SHORT_AND_LONG = "SELECT TRANSACTIONALLY x.n, p.name FROM (SELECT customer_id, count(*) AS n FROM orders GROUP BY customer_id) x JOIN products p ON p.id = x.n"


@pytest.mark.parametrize(
    ("views", "levels"),
    [
        pytest.param([], (), id="nothing"),
        pytest.param([ONE_STAGE], ((1,),), id="one stage"),
        pytest.param([CHAIN], ((1,), (2,), (3,)), id="a chain: later stages read tables, too"),
        pytest.param([DIAMOND], ((1, 3), (2, 4), (5,)), id="a diamond"),
        pytest.param([COUNTED, ONE_STAGE, CHAIN], ((1, 3, 4), (2, 5), (6,)), id="independent views"),
        pytest.param([SHORT_AND_LONG], ((1,), (2,), (3,)), id="partials are sent to a later level"),
    ],
)
def test_stages_stand_behind_all_that_send_to_them(
    views: list[str], levels: tuple[tuple[int, ...], ...]
) -> None:
    texts = [(f"v{number}.sql", sql) for number, sql in enumerate(views)]

    plan = compile_pipeline(texts, parse_catalog({"schema.sql": TABLES}))

    assert plan.levels == levels
    level_of = {number: level for level, numbers in enumerate(levels) for number in numbers}
    for stage in plan.stages:
        origins = () if stage.rows is None else stage.rows.origins
        assert all(level_of[origin] < level_of[stage.number] for origin in origins if origin)


@st.composite
def plans(draw: st.DrawFn) -> EnginePlan:
    """Plans of stages that send rows, partials or documents to any later ones."""
    size = draw(st.integers(0, 12))
    stages = []
    for number in range(1, size + 1):
        outputs: st.SearchStrategy[Output] = st.just(DocumentsOutput(0))
        if number < size:
            later = st.integers(number + 1, size)
            partials = st.builds(PartialsOutput, st.just(1), later)
            rows_of = st.builds(RowsOutput, st.just(1), st.lists(later, min_size=1).map(_edges))
            outputs = st.one_of(outputs, partials, rows_of)
        rows = RowsPart((), "", None, draw(outputs))
        stages.append(StagePlan(number, (), rows, None, ""))
    return EnginePlan(tuple(stages), ())


def _edges(receivers: list[int]) -> tuple[Edge, ...]:
    return tuple(Edge(stage, 0, (), (), keeps_null_keys=True) for stage in receivers)


@given(plans())
def test_levels_are_the_longest_ways_from_tables(plan: EnginePlan) -> None:
    level_of = {number: level for level, numbers in enumerate(plan.levels) for number in numbers}
    senders: dict[int, list[int]] = {stage.number: [] for stage in plan.stages}
    for stage in plan.stages:
        for receiver in stage.receivers:
            senders[receiver].append(stage.number)

    assert sorted(number for numbers in plan.levels for number in numbers) == list(senders)
    assert all(list(numbers) == sorted(numbers) for numbers in plan.levels)
    for number, found in senders.items():
        assert level_of[number] == max((level_of[sender] + 1 for sender in found), default=0)
