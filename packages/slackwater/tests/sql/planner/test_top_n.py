# ruff: noqa: E501, S608 - SQL on few lines
"""The first rows of an order are kept in order, whatever the way to ask for them."""

import pytest

from slackwater.sql.plan import EnginePlan, Ranks, Reads, StagePlan, fingerprint
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

CATALOG = parse_catalog(
    {
        "tables.sql": """
CREATE TABLE s.t (id bigint PRIMARY KEY, g bigint, x bigint, seen timestamp);
CREATE TABLE s.u (id bigint PRIMARY KEY, g bigint);
ALTER TABLE s.t REPLICA IDENTITY FULL;
ALTER TABLE s.u REPLICA IDENTITY FULL;
"""
    }
)
RANKED = "SELECT *, row_number() OVER (PARTITION BY g ORDER BY x DESC) AS rn FROM t"
TOP = Ranks("row_number", 1, 2)


def plan_of(view: str, *, accumulates: bool = True) -> EnginePlan:
    return compile_pipeline([("v.sql", view)], CATALOG, accumulates=accumulates)


def ranks_of(stage: StagePlan) -> Ranks | None:
    return None if stage.accumulate is None else stage.accumulate.accumulators[0].ranks


@pytest.mark.parametrize(
    ("view", "ranks"),
    [
        (f"SELECT TRANSACTIONALLY id, g FROM ({RANKED}) q WHERE rn <= 2", TOP),
        (f"SELECT TRANSACTIONALLY id, g FROM ({RANKED}) q WHERE 3 > rn AND x > 0", TOP),
        (
            f"WITH q AS ({RANKED}) SELECT TRANSACTIONALLY id, rn FROM q WHERE rn = 2",
            Ranks("row_number", 2, 2),
        ),
        (
            "SELECT TRANSACTIONALLY id FROM t QUALIFY rank() OVER (PARTITION BY g ORDER BY x) < 2",
            Ranks("rank", 1, 1),
        ),
        ("SELECT TRANSACTIONALLY DISTINCT ON (g) g, x FROM t ORDER BY g, x", Ranks("row_number", 1, 1)),
    ],
)
def test_the_first_rows_of_partitions_are_kept_where_the_rows_are(view: str, ranks: Ranks) -> None:
    (stage,) = plan_of(view).stages

    assert ranks_of(stage) == ranks
    assert [column.name for column in stage.key] == ["g"]
    assert stage.rows is not None
    assert stage.rows.reads == (Reads.ALONE,)


def test_both_spellings_have_one_plan() -> None:
    wrapped = plan_of(f"SELECT TRANSACTIONALLY id, g FROM ({RANKED}) q WHERE rn <= 2")
    qualified = plan_of(
        "SELECT TRANSACTIONALLY id, g FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY x DESC) <= 2"
    )

    assert fingerprint(wrapped.stages) == fingerprint(qualified.stages)


@pytest.mark.parametrize(
    "view",
    [
        "SELECT TRANSACTIONALLY id FROM t ORDER BY x DESC LIMIT 2 OFFSET 1",
        "SELECT TRANSACTIONALLY id FROM t QUALIFY row_number() OVER (ORDER BY x DESC) BETWEEN 2 AND 3",
    ],
)
def test_the_first_of_all_rows_are_the_first_of_shards_that_are_parallel(view: str) -> None:
    rows, shards, whole = plan_of(view).stages

    assert ranks_of(rows) is None
    assert ranks_of(shards) == Ranks("row_number", 1, 3)
    assert ranks_of(whole) == Ranks("row_number", 2, 3)
    assert (len(shards.key), len(whole.key)) == (1, 0)


@pytest.mark.parametrize(
    "view",
    [
        "SELECT TRANSACTIONALLY id FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY seen - TIMESTAMP '2020-01-01') = 1",
        f"SELECT TRANSACTIONALLY id FROM ({RANKED}) q WHERE rn > 2",
        f"SELECT TRANSACTIONALLY id FROM ({RANKED}) q WHERE rn <= x",
        f"SELECT TRANSACTIONALLY u.id, rn FROM u LEFT JOIN ({RANKED}) q ON q.g = u.g WHERE q.rn <= 2",
        "SELECT TRANSACTIONALLY id, lag(x) OVER (PARTITION BY g ORDER BY x DESC) AS l, "
        "row_number() OVER (PARTITION BY g ORDER BY x DESC) AS rn FROM t QUALIFY rn <= 2",
    ],
)
def test_what_needs_all_rows_is_computed_from_them(view: str) -> None:
    (stage,) = plan_of(view).stages

    assert stage.accumulate is None
    assert stage.rows is not None
    assert stage.rows.reads[0] is Reads.GROUP or stage.rows.reads[-1] is Reads.GROUP


def test_without_accumulators_a_view_over_one_key_is_one_stage() -> None:
    view = "SELECT TRANSACTIONALLY DISTINCT ON (g) g, x FROM t ORDER BY g, x"

    (stage,) = plan_of(view, accumulates=False).stages

    assert stage.accumulate is None


def test_order_by_alone_is_noted_and_changes_nothing() -> None:
    ordered = plan_of("SELECT TRANSACTIONALLY id FROM t ORDER BY x")
    plain = plan_of("SELECT TRANSACTIONALLY id FROM t")

    assert ordered.notes == (
        "view v: ORDER BY has no effect without LIMIT: the rows of a view have no order",
    )
    assert plain.notes == plan_of("SELECT TRANSACTIONALLY id FROM t ORDER BY x LIMIT 1").notes == ()
    assert ordered.views[0].fingerprint == plain.views[0].fingerprint


def test_limits_that_differ_have_different_fingerprints() -> None:
    views = [f"SELECT TRANSACTIONALLY id FROM t ORDER BY x LIMIT {limit}" for limit in (2, 3, "2 OFFSET 1")]

    assert len({plan_of(view).views[0].fingerprint for view in views}) == 3


@pytest.mark.parametrize(
    ("view", "key"),
    [
        ("SELECT TRANSACTIONALLY id, x FROM t ORDER BY x LIMIT 2", ("id",)),
        ("SELECT TRANSACTIONALLY id, x FROM t ORDER BY x LIMIT 1 OFFSET 3", ()),
        ("SELECT TRANSACTIONALLY DISTINCT ON (g) g AS of, x FROM t ORDER BY x", ("of",)),
        ("SELECT TRANSACTIONALLY DISTINCT ON (g % 2) g % 2 AS of, x FROM t ORDER BY x", ("of",)),
        (
            "SELECT TRANSACTIONALLY id FROM t QUALIFY row_number() OVER (PARTITION BY g ORDER BY x) = 1",
            ("id",),
        ),
    ],
)
def test_record_keys_identify_the_rows(view: str, key: tuple[str, ...]) -> None:
    assert plan_of(view).views[0].key == key
