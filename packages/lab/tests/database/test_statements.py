"""Operations become few statements."""

from slackwater_lab.database.statements import MAX_ROWS, grouped, merge_inserts, statement, tables_of
from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Delete,
    Insert,
    Operation,
    Plus,
    Undone,
    Update,
)


def test_neighbours_of_one_shape_become_one_statement() -> None:
    operations: list[Operation] = [
        Insert("s.t", {"id": 1, "n": 5}),
        Insert("s.t", {"id": 2, "n": 6}),
        Update("s.t", 1, {"n": Plus(1)}),
        Update("s.t", 2, {"n": 1}),
        Delete("s.t", 1),
        Delete("s.t", 2),
        Delete("s.u", 2),
    ]
    assert [len(group) for group in grouped(operations)] == [2, 1, 1, 2, 1]


def test_what_is_undone_is_a_statement_of_its_own() -> None:
    inserts = Insert("s.t", {"id": 1}), Insert("s.u", {"id": 2})
    operations: list[Operation] = [Delete("s.v", 1), Undone(inserts), Undone(inserts), Delete("s.v", 2)]
    assert [len(group) for group in grouped(operations)] == [1, 1, 1, 1]
    assert tables_of(operations) == {"s.t", "s.u", "s.v"}


def test_a_row_is_never_changed_twice_in_one_statement() -> None:
    operations = [Update("s.t", 1, {"n": Plus(1)}), Update("s.t", 2, {"n": Plus(1)})] * 2
    assert [len(group) for group in grouped(operations)] == [2, 2]


def test_huge_transactions_are_cut_into_statements_of_bounded_size() -> None:
    groups = list(grouped(Delete("s.t", number) for number in range(2 * MAX_ROWS + 1)))
    assert [len(group) for group in groups] == [MAX_ROWS, MAX_ROWS, 1]


def test_a_relative_update_adds_to_the_column() -> None:
    query, values = statement(
        [Update("s.t", 1, {"n": Plus(3), "m": "x"}), Update("s.t", 2, {"n": Plus(4), "m": "y"})],
        {"id": "bigint", "n": "integer", "m": "text"},
    )
    assert query.as_string(None) == (
        'UPDATE "s"."t" t SET "n" = t."n" + v."new_n", "m" = v."new_m" '
        'FROM unnest(%s::bigint[], %s::integer[], %s::text[]) AS v(key, "new_n", "new_m") WHERE t.id = v.key'
    )
    assert values == [[1, 2], [3, 4], ["x", "y"]]


def test_first_transactions_are_merged_by_table() -> None:
    transactions = [
        BusinessTransaction((Insert("s.a", {"id": n}), Insert("s.b", {"id": n}), Insert("s.b", {"id": -n})))
        for n in range(1, 5)
    ]
    one, two = merge_inserts(transactions, 6)
    assert [each.table for each in one.operations if isinstance(each, Insert)] == [
        "s.a",
        "s.a",
        "s.b",
        "s.b",
        "s.b",
        "s.b",
    ]
    assert len(two.operations) == 6
