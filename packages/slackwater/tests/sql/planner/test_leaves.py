"""By which columns rows of tables and of stages may be split."""

import pytest

from slackwater.sql.logical import Leaf, Scan, Span
from slackwater.sql.plan import Reads
from slackwater.sql.planner.fragments import table_input
from slackwater.sql.planner.partitioning import LeafKey, Leaves, StageRows
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.plain (id bigint PRIMARY KEY, other bigint, price numeric(10,2));
CREATE TABLE s.complete (id integer PRIMARY KEY, other bigint NOT NULL, price numeric(12,2), name text);
CREATE TABLE s.floats (id bigint PRIMARY KEY, r double precision);
ALTER TABLE s.floats REPLICA IDENTITY FULL;
ALTER TABLE s.complete REPLICA IDENTITY FULL;
"""
CATALOG = parse_catalog({"tables.sql": TABLES})


@pytest.fixture
def leaves() -> Leaves:
    return Leaves()


def leaf_of(leaves: Leaves, name: str) -> Leaf:
    """A leaf of a table; the id of each column is the table's and the column's name."""
    (table,) = CATALOG.find("s", name)
    ids = {each.name: f"{name}.{each.name}" for each in table.columns}
    scan = Scan(table, ids, name, Span(0, 0))
    return leaves.add(scan, scan.columns, scan.identity)


def test_a_table_without_old_rows_is_split_by_its_primary_key_only(leaves: Leaves) -> None:
    plain = leaf_of(leaves, "plain")

    assert leaves.may_be_key(plain, ("plain.id",))
    assert not leaves.may_be_key(plain, ("plain.other",))
    assert not leaves.may_be_key(plain, ("plain.id", "plain.other"))


def test_a_table_with_old_rows_is_split_by_any_column_whose_text_is_its_value(leaves: Leaves) -> None:
    complete = leaf_of(leaves, "complete")

    assert leaves.may_be_key(complete, ("complete.other",))
    assert leaves.may_be_key(complete, ("complete.name", "complete.id"))


def test_a_column_whose_json_does_not_tell_values_apart_is_no_key(leaves: Leaves) -> None:
    leaf = leaf_of(leaves, "floats")

    assert not leaves.may_be_key(leaf, ("floats.r",))
    assert leaves.may_be_key(leaf, ("floats.id",))


def test_rows_of_a_stage_are_split_by_what_they_have(leaves: Leaves) -> None:
    leaf = leaves.add(StageRows(1, ("k", "v"), ("BIGINT", "VARCHAR")), ("k", "v"), ("k",))

    assert leaves.may_be_key(leaf, ("v",))
    assert not leaves.may_be_key(leaf, ("w",))


def test_keys_are_equal_on_the_wire_if_their_types_are_of_one_family(leaves: Leaves) -> None:
    plain, complete = leaf_of(leaves, "plain"), leaf_of(leaves, "complete")

    def equal(one: str, other: str) -> bool:
        return leaves.has_equal_types(
            (LeafKey(plain, (f"plain.{one}",), True), LeafKey(complete, (f"complete.{other}",), True))
        )

    assert equal("id", "id"), "bigint and integer"
    assert equal("id", "other")
    assert equal("price", "price"), "of one scale"
    assert not equal("id", "name")
    assert not equal("id", "price")


def test_rows_move_when_their_key_is_not_their_primary_key(leaves: Leaves) -> None:
    complete = leaf_of(leaves, "complete")
    scan = leaves.origins[complete.number]
    assert isinstance(scan, Scan)

    still, _ = table_input(scan, "c", (), LeafKey(complete, ("complete.id",), True), Reads.GROUP)
    moving, _ = table_input(scan, "c", (), LeafKey(complete, ("complete.other",), True), Reads.GROUP)
    assert (still.needs_replica_identity_full, moving.needs_replica_identity_full) == (False, True)
    assert [each.name for each in moving.columns] == ["id", "other"], "the primary key tells rows apart"


def test_rows_with_null_in_the_key_are_packed_where_they_count_and_can_be(leaves: Leaves) -> None:
    complete = leaf_of(leaves, "complete")
    scan = leaves.origins[complete.number]
    assert isinstance(scan, Scan)

    def keeps(column: str, *, counts: bool) -> bool:
        part = LeafKey(complete, (f"complete.{column}",), counts)
        return table_input(scan, "c", (), part, Reads.GROUP)[0].keeps_null_keys

    assert keeps("name", counts=True)
    assert not keeps("name", counts=False)
    assert not keeps("other", counts=True), "it is NOT NULL"
