# ruff: noqa: E501, S608 - SQL on one line
"""Which stages several views, or several places of a view, have in common."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slackwater.sql.frontend import ViewText, read_view
from slackwater.sql.limits import open_connection
from slackwater.sql.plan import (
    AccumulatePart,
    AccumulatorKind,
    Edge,
    EnginePlan,
    InputPlan,
    PartialsOutput,
    Reads,
    RowsOutput,
    RowsPart,
    StagePlan,
)
from slackwater.sql.planner.cutting import Cutter, compile_pipeline
from slackwater.sql.planner.sharing import shared, stage_uses
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.customers (id bigint PRIMARY KEY, name text, region text);
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, status text, total numeric(10,2));
CREATE TABLE s.lines (id bigint PRIMARY KEY, order_id bigint, product_id bigint, qty int);
CREATE TABLE s.people (id bigint PRIMARY KEY, name text, region text);
CREATE TABLE s.products (id bigint PRIMARY KEY, name text, c1 bigint, c2 bigint);
ALTER TABLE s.customers REPLICA IDENTITY FULL;
ALTER TABLE s.orders REPLICA IDENTITY FULL;
ALTER TABLE s.lines REPLICA IDENTITY FULL;
ALTER TABLE s.people REPLICA IDENTITY FULL;
ALTER TABLE s.products REPLICA IDENTITY FULL;
"""
CATALOG = parse_catalog({"schema.sql": TABLES})

NAMED_ORDERS = "(SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id)"
WITH_LINES = f"SELECT TRANSACTIONALLY o.id, o.name FROM {NAMED_ORDERS} o JOIN lines l ON l.order_id = o.id"
WITH_PRODUCTS = (
    f"SELECT TRANSACTIONALLY o.name, p.name AS its FROM {NAMED_ORDERS} o LEFT JOIN products p ON p.id = o.id"
)
WITH_ALL = f"SELECT TRANSACTIONALLY o.name, p.name AS its FROM {NAMED_ORDERS} o JOIN lines l ON l.order_id = o.id JOIN products p ON p.id = l.qty"
SPENT = "(SELECT customer_id, status, sum(total) AS total FROM orders GROUP BY customer_id, status)"
RICH = f"SELECT TRANSACTIONALLY c.name, s.status, s.total FROM customers c JOIN {SPENT} s ON s.customer_id = c.id"
RICHER = f"SELECT TRANSACTIONALLY a.customer_id, a.status, b.customer_id AS other, b.status AS its FROM {SPENT} a JOIN {SPENT} b ON a.total = b.total"


def filtered(condition: str) -> str:
    """The same over rows that are filtered before."""
    return WITH_LINES.replace("o.customer_id)", f"o.customer_id WHERE {condition})")


@pytest.mark.parametrize(
    ("views", "stages"),
    [
        pytest.param(
            [WITH_LINES, WITH_PRODUCTS],
            ["1 customers,orders -> 2 3", "2 lines,stage 1 -> 0", "3 products,stage 1 -> 1"],
            id="two views join the same tables, and one table more each",
        ),
        pytest.param(
            [
                WITH_LINES,
                WITH_LINES.replace("o.name", "o.name AS label")
                .replace("customers c ON c.", "customers AS one ON one.")
                .replace("c.name", "one.name"),
            ],
            ["1 customers,orders -> 2 3", "2 lines,stage 1 -> 0", "3 lines,stage 1 -> 1"],
            id="names do not count, and documents are not shared",
        ),
        pytest.param(
            [
                WITH_ALL,
                WITH_ALL.replace("JOIN products", "LEFT JOIN products"),
            ],
            [
                "1 customers,orders -> 2",
                "2 lines,stage 1 -> 3 4",
                "3 products,stage 2 -> 0",
                "4 products,stage 2 -> 1",
            ],
            id="equal stages over equal stages",
        ),
        pytest.param(
            [RICHER],
            ["1 orders -> 2", "2 -> 3 3", "3 stage 2,stage 2 again -> 0"],
            id="a view uses groups twice",
        ),
        pytest.param(
            [RICH, RICHER],
            ["1 orders -> 2", "2 -> 3 4 4", "3 customers,stage 2 -> 0", "4 stage 2,stage 2 again -> 1"],
            id="groups are shared with what adds to them",
        ),
        pytest.param(
            [filtered("o.total > 1"), filtered("o.total\n  >/* much */1 -- and more\n")],
            ["1 customers,orders -> 2 3", "2 lines,stage 1 -> 0", "3 lines,stage 1 -> 1"],
            id="spacing and comments do not count",
        ),
    ],
)
def test_equal_stages_are_one(views: list[str], stages: list[str]) -> None:
    assert stages_text(compile_pipeline(texts(views), CATALOG)) == stages


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(filtered("o.total > 1"), filtered("o.total > 2"), id="WHERE"),
        pytest.param(WITH_LINES, WITH_LINES.replace("c.name", "c.region AS name"), id="columns"),
        pytest.param(WITH_LINES, WITH_LINES.replace("customers", "people"), id="tables"),
        pytest.param(WITH_ALL, WITH_ALL.replace("customers", "people"), id="stages that rows come from"),
        pytest.param(
            WITH_LINES, WITH_LINES.replace("JOIN customers", "LEFT JOIN customers"), id="kind of join"
        ),
        pytest.param(WITH_LINES, WITH_LINES.replace("= o.customer_id", "= o.id"), id="condition of the join"),
        pytest.param(RICH, RICH.replace("sum(", "max("), id="aggregates"),
        pytest.param(RICH, RICH.replace("GROUP BY", "WHERE total > 1 GROUP BY"), id="rows of groups"),
        pytest.param(
            filtered("({'c1': o.id, 'c2': c.id}).\"c1\" > 1"),
            filtered("({'c1': o.id, 'c2': c.id}).\"c2\" > 1"),
            id="fields of structs called like made-up names",
        ),
        pytest.param(
            filtered('struct_pack("c1" := o.id)::VARCHAR > c.name'),
            filtered('struct_pack("c2" := o.id)::VARCHAR > c.name'),
            id="names of arguments called like made-up names",
        ),
        pytest.param(
            filtered("c.name <> 'c1'"),
            filtered("c.name <> 'c2'"),
            id="texts like made-up names",
        ),
        pytest.param(
            filtered("c.name <> $$a b$$"),
            filtered("c.name <> $$a  b$$"),
            id="spacing in texts",
        ),
        pytest.param(
            "SELECT TRANSACTIONALLY l.id, p.c1 < p.c2 AS less FROM products p JOIN customers c ON c.id = p.id JOIN lines l ON l.qty = p.c1 - p.c2",
            "SELECT TRANSACTIONALLY l.id, p.c1 < p.c2 AS less FROM products p JOIN customers c ON c.id = p.id JOIN lines l ON l.qty = p.c2 - p.c1",
            id="columns of tables called like made-up names",
        ),
    ],
)
def test_stages_that_differ_are_not_shared(one: str, other: str) -> None:
    plan = compile_pipeline(texts([one, other]), CATALOG)
    alone = [compile_pipeline(texts([sql]), CATALOG) for sql in (one, other)]

    assert len(plan.stages) == sum(len(each.stages) for each in alone)


Distort = Callable[[Any], Any]


def _of_rows(change: Callable[[RowsPart], RowsPart]) -> Distort:
    return lambda stage: replace(stage, rows=change(stage.rows))


def _of_input(change: Callable[[InputPlan], InputPlan]) -> Distort:
    return _of_rows(lambda part: replace(part, inputs=(change(part.inputs[0]), *part.inputs[1:])))


def _of_groups(change: Callable[[AccumulatePart], AccumulatePart]) -> Distort:
    return lambda stage: replace(stage, accumulate=change(stage.accumulate))


def _of_statement(old: str, new: str) -> Distort:
    return _of_groups(lambda part: replace(part, statement=part.statement.replace(old, new)))


def _swapped(part: AccumulatePart) -> AccumulatePart:
    statement = part.statement.replace('"k0"', "?").replace('"k1"', '"k0"').replace("?", '"k1"')
    return replace(part, statement=statement)


def _other_type(stage: StagePlan) -> StagePlan:
    customer, status = stage.key
    return replace(stage, key=(replace(customer, type=status.type), status))


def _with_other_columns(plan: InputPlan) -> InputPlan:
    first, *others = plan.columns
    return replace(plan, columns=(replace(first, nullable=not first.nullable), *others))


@pytest.mark.parametrize(
    ("views", "stage", "distort"),
    [
        pytest.param(
            [WITH_LINES] * 2, 1, _of_input(lambda plan: replace(plan, key=("id",))), id="key of an input"
        ),
        pytest.param([RICH] * 2, 2, _other_type, id="type of the stage's key"),
        pytest.param(
            [WITH_LINES] * 2,
            1,
            _of_input(lambda plan: replace(plan, reads=Reads.GROUP)),
            id="rows that are read",
        ),
        pytest.param(
            [WITH_LINES] * 2,
            1,
            _of_input(lambda plan: replace(plan, keeps_null_keys=True)),
            id="keys that are NULL",
        ),
        pytest.param(
            [WITH_LINES] * 2,
            1,
            _of_input(lambda plan: replace(plan, needs_replica_identity_full=False)),
            id="rows that move",
        ),
        pytest.param([WITH_LINES] * 2, 1, _of_input(_with_other_columns), id="columns of an input"),
        pytest.param(
            [WITH_LINES] * 2,
            1,
            _of_rows(lambda part: replace(part, inputs=part.inputs[::-1])),
            id="order of inputs",
        ),
        pytest.param(
            [WITH_LINES] * 2,
            1,
            _of_rows(lambda part: replace(part, output=RowsOutput(2, ()))),
            id="identity of rows",
        ),
        pytest.param([RICH] * 2, 2, _of_groups(_swapped), id="groups that the statement reads"),
        pytest.param(
            [RICH] * 2, 2, _of_groups(lambda part: replace(part, is_global=True)), id="the one group"
        ),
        pytest.param(
            [RICH] * 2,
            2,
            _of_groups(lambda part: replace(part, accumulators=(replace(part.accumulators[0], scale=3),))),
            id="scale of a sum",
        ),
        pytest.param(
            [RICH] * 2,
            2,
            _of_groups(lambda part: replace(part, accumulators=(replace(part.accumulators[0], multiset=0),))),
            id="values of an accumulator",
        ),
        pytest.param(
            [RICH] * 2,
            2,
            _of_groups(
                lambda part: replace(
                    part, accumulators=(replace(part.accumulators[0], kind=AccumulatorKind.MIN),)
                )
            ),
            id="kind of an accumulator",
        ),
        pytest.param(
            [RICH] * 2, 2, _of_groups(lambda part: replace(part, key=part.key[::-1])), id="types of groups"
        ),
        pytest.param([RICH] * 2, 2, _of_statement("n > 0", "n > 1"), id="statement over accumulators"),
        pytest.param(
            [RICH] * 2,
            1,
            _of_rows(lambda part: replace(part, output=PartialsOutput(1, 2))),
            id="key of partials",
        ),
    ],
)
def test_what_counts_in_a_stage(views: list[str], stage: int, distort: Distort) -> None:
    plan = unshared(views)
    stages = tuple(distort(each) if each.number == stage else each for each in plan.stages)

    assert len(shared(plan, views).stages) < len(plan.stages), "the test can fail"
    assert len(shared(replace(plan, stages=stages), views).stages) == len(plan.stages)


def test_stages_that_take_other_columns_of_the_same_rows_are_not_shared() -> None:
    views = [WITH_ALL] * 2
    plan = unshared(views)
    first, *others = plan.stages
    assert first.rows is not None
    assert isinstance(first.rows.output, RowsOutput)
    (edge,) = first.rows.output.edges
    output = replace(first.rows.output, edges=(replace(edge, columns=edge.columns[::-1]),))
    distorted = replace(plan, stages=(replace(first, rows=replace(first.rows, output=output)), *others))

    assert len(shared(plan, views).stages) == len(plan.stages) - 2
    assert len(shared(distorted, views).stages) == len(plan.stages) - 1, "the first stages stay equal"


@pytest.mark.parametrize("written", [[], ["c1 c2 c3 c4 c5 c6 c7 c8 c9"]], ids=["made up", "as if written"])
def test_stages_that_read_other_columns_of_their_input_are_not_shared(written: list[str]) -> None:
    views = [
        WITH_ALL.replace("c.name", "c.name, c.region").replace(
            "o.name", "concat(o.name, ' of ', o.region) AS t"
        )
    ] * 2
    plan = unshared(views)
    second = plan.stages[1]
    assert second.rows is not None
    inputs = second.rows.inputs
    number, rows = next((number, each) for number, each in enumerate(inputs) if each.origin)
    swapped = replace(rows, columns=(rows.columns[0], *rows.columns[:0:-1]))
    assert len(swapped.columns) == 3
    changed = (*inputs[:number], swapped, *inputs[number + 1 :])
    distorted = replace(second, rows=replace(second.rows, inputs=changed))
    stages = (plan.stages[0], distorted, *plan.stages[2:])

    assert len(shared(plan, written).stages) == len(plan.stages) - 2
    assert len(shared(replace(plan, stages=stages), written).stages) == len(plan.stages) - 1


def test_edges_say_which_columns_each_receiver_takes() -> None:
    plan = compile_pipeline(texts([WITH_LINES, WITH_PRODUCTS]), CATALOG)
    output = plan.stage(1).output

    assert output == RowsOutput(
        identity=1,
        edges=(
            Edge(stage=2, input=0, key=(0,), columns=(0, 1), keeps_null_keys=False),
            Edge(stage=3, input=0, key=(0,), columns=(0, 1), keeps_null_keys=True),
        ),
    )


def test_views_keep_their_meaning_beside_others() -> None:
    views = texts([WITH_LINES, RICH, WITH_PRODUCTS, RICHER])
    together = compile_pipeline(views, CATALOG).views

    for view, text in zip(together, views, strict=True):
        (alone,) = compile_pipeline([text], CATALOG).views
        assert view.fingerprint == alone.fingerprint
        assert (view.key, view.outputs) == (alone.key, alone.outputs)


def test_views_name_the_stages_they_share() -> None:
    plan = compile_pipeline(texts([WITH_LINES, WITH_PRODUCTS, RICH, RICHER]), CATALOG)

    assert [view.stages for view in plan.views] == [(1, 2), (1, 3), (4, 5, 6), (4, 5, 7)]
    assert plan.levels == ((1, 4), (2, 3, 5), (6, 7))


def test_plans_without_equal_stages_stay_as_they_are() -> None:
    views = [WITH_LINES, WITH_PRODUCTS, RICH, RICHER]
    plan = compile_pipeline(texts(views), CATALOG)

    assert shared(plan, views) == plan


def texts(views: list[str]) -> list[tuple[str, str]]:
    return [(f"v{number}.sql", sql) for number, sql in enumerate(views)]


def unshared(views: list[str]) -> EnginePlan:
    """The plan in which each view has its own stages."""
    with open_connection() as connection:
        cutter = Cutter(connection)
        for path, sql in texts(views):
            cutter.cut(read_view(ViewText(path, sql), CATALOG))
        return cutter.plan()


def stages_text(plan: EnginePlan) -> list[str]:
    """A line per stage: what it reads, in alphabetical order, and the stages or the view that it sends to."""
    return [_stage(stage) for stage in plan.stages]


def _stage(stage: StagePlan) -> str:
    inputs = () if stage.rows is None else stage.rows.inputs
    reads = ",".join(sorted(each.alias if each.origin else each.table.name for each in inputs))
    match stage.output:
        case RowsOutput(edges=edges):
            receivers = [edge.stage for edge in edges]
        case PartialsOutput(stage=receiver):
            receivers = [receiver]
        case output:
            receivers = [output.view]
    return " ".join(part for part in (str(stage.number), reads, "->", *map(str, receivers)) if part)


def identities(*views: str) -> list[str]:
    """Of the stages of a pipeline, ascending."""
    named = [(f"v{number}.sql", view) for number, view in enumerate(views)]
    return [stage.identity for stage in compile_pipeline(named, CATALOG).stages]


def test_a_stage_has_the_same_identity_in_every_pipeline_whatever_is_beside_it() -> None:
    alone, beside = identities(WITH_LINES), identities(RICH, WITH_LINES)
    assert set(alone) < set(beside)
    assert len(set(beside)) == len(beside)
    assert identities(f"{WITH_LINES} -- as before") == alone
    assert identities(WITH_PRODUCTS, WITH_LINES)[0] == alone[0], "what both read is one stage"


def test_stages_that_compute_something_else_have_other_identities() -> None:
    plain = set(identities(WITH_LINES))
    for other in (filtered("o.status = 'x'"), WITH_LINES.replace("customers", "people")):
        assert len(plain.intersection(identities(other))) < len(plain)
    first, *_ = identities(WITH_LINES.replace("customers", "people"))
    assert first not in plain, "of another table"


def test_a_stage_has_the_same_identity_although_others_need_more_columns_of_its_rows() -> None:
    more = WITH_LINES.replace("c.name", "c.name, c.region").replace("o.name", "o.name || o.region AS name")

    assert identities(WITH_LINES, more)[0] == identities(WITH_LINES)[0]
    assert identities(WITH_LINES, more)[2] == identities(more)[0] != identities(WITH_LINES)[0]


def test_what_follows_another_stage_is_another_one() -> None:
    assert identities(WITH_LINES)[-1] != identities(filtered("o.status = 'x'"))[-1]


def test_a_shared_stage_says_how_many_it_stands_for() -> None:
    views = (WITH_LINES, WITH_PRODUCTS, RICHER)
    texts = {f"v{number}": ViewText(f"v{number}.sql", view) for number, view in enumerate(views)}
    with open_connection() as connection:
        cutter = Cutter(connection)
        for text in texts.values():
            cutter.cut(read_view(text, CATALOG, texts))
    alone = cutter.plan()
    plan, uses = shared(alone, views), stage_uses(alone, views)
    assert sum(uses.values()) == len(alone.stages)
    assert sorted(uses) == [stage.number for stage in plan.stages]
    assert sorted(uses.values())[-2:] == [2, 2], "what both read, and both sides of the join with itself"
