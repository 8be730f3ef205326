"""By which columns rows may be split so that what meets stays together, and what must be read of a key."""

import pytest

from slackwater.sql.logical import (
    Aggregate,
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    Leaf,
    Relation,
    Span,
    Union,
    Window,
)
from slackwater.sql.plan import Reads
from slackwater.sql.planner.partitioning import Key, Leaves, Partitioning, keys_of_group, keys_of_join, reads

NOWHERE = Span(0, 0)
LEFT = Leaf(0, ("a", "b"), ("a",))
RIGHT = Leaf(1, ("x", "y"), ("x",))
THIRD = Leaf(2, ("p", "q"), ("p",))
KINDS = list(JoinKind)


def column(name: str) -> Expression:
    return Expression(f'"{name}"', (name,), NOWHERE)


def computed(name: str) -> Expression:
    return Expression(f'"{name}" + 1', (name,), NOWHERE)


def join(
    kind: JoinKind,
    *pairs: tuple[str, str],
    left: Relation = LEFT,
    right: Relation = RIGHT,
    residual: Expression | None = None,
) -> Join:
    equal = tuple((column(one), column(other)) for one, other in pairs)
    return Join(kind, left, right, equal, residual, NOWHERE)


class SomeLeaves(Leaves):
    """Leaves of which some columns may be no key."""

    def __init__(self, *never: str) -> None:
        super().__init__()
        self._never = set(never)

    def may_be_key(self, leaf: Leaf, key: Key) -> bool:
        return not set(key) & self._never


def keys(found: Partitioning | None) -> list[tuple[Key, bool]] | None:
    """Of the leaves: key, and whether rows with NULL in it are kept."""
    return None if found is None else [(part.key, part.keeps_nulls) for part in found]


def split(relation: Relation, *key: str, never: tuple[str, ...] = ()) -> list[tuple[Key, bool]] | None:
    """How to split a relation by a key; some columns may be none."""
    return keys(SomeLeaves(*never).split(relation, key))


def modes(relation: Relation, *of_leaves: tuple[Leaf, str]) -> list[Reads]:
    found = partitioning_of(*of_leaves)
    result = reads(relation, found)
    return [result[number] for number in sorted(result)]


def partitioning_of(*of_leaves: tuple[Leaf, str]) -> Partitioning:
    found: Partitioning = ()
    for leaf, key in of_leaves:
        part = SomeLeaves().split(leaf, (key,))
        assert part is not None
        found += part
    return found


# --- how rows are split


def test_a_leaf_is_split_by_its_columns_unless_they_may_be_no_key() -> None:
    assert split(LEFT, "b") == [(("b",), True)]
    assert split(LEFT, "b", never=("b",)) is None
    assert split(LEFT, never=("b",)) == [((), True)], "the key of no columns always works"


def test_a_leaf_is_not_split_by_one_column_twice() -> None:
    assert split(LEFT, "b", "b") is None


def test_a_filter_is_split_like_what_it_filters() -> None:
    assert split(Filter(LEFT, computed("a")), "b") == [(("b",), True)]


def test_a_computed_column_is_no_key_of_what_it_is_computed_from() -> None:
    extended = Extend(LEFT, (("c", computed("b")), ("d", column("b"))))

    assert split(extended, "c") is None
    assert split(extended, "d") == [(("b",), True)]
    assert split(extended, "a") == [(("a",), True)]


def test_a_group_stays_together_only_by_what_it_is_grouped_by() -> None:
    grouped = Aggregate(LEFT, (("g", column("b")), ("h", computed("a"))), (), ("g", "h"), NOWHERE)

    assert split(grouped, "g") == [(("b",), True)]
    assert split(grouped, "h") is None
    assert split(grouped, "a") is None


def test_a_window_stays_together_only_by_its_partition() -> None:
    window = Window(LEFT, (column("b"),), (("w", computed("a")),), NOWHERE)

    assert split(window, "b") == [(("b",), True)]
    assert split(window, "a") is None


def test_every_branch_of_a_union_is_split_by_its_own_column() -> None:
    union = Union((LEFT, RIGHT), (("u", ("b", "y")), ("v", ("a", "x"))), ("i",), NOWHERE)

    assert split(union, "u") == [(("b",), True), (("y",), True)]
    assert split(union, "u", never=("y",)) is None
    assert split(union, "i") is None, "it is no column of the branches"


@pytest.mark.parametrize("kind", KINDS)
def test_joined_rows_are_split_by_what_is_compared(kind: JoinKind) -> None:
    """A FULL JOIN by no column of one side: rows of the other have NULL there."""
    drops_left = kind in {JoinKind.INNER, JoinKind.SEMI, JoinKind.ASOF}
    expected = [(("b",), not drops_left), (("y",), False)]

    assert split(join(kind, ("b", "y")), "b") == (None if kind is JoinKind.FULL else expected)
    assert split(join(kind, ("b", "y")), "a") is None, "rows of one a may meet rows of any y"


@pytest.mark.parametrize("kind", KINDS)
def test_only_an_inner_join_is_split_by_a_column_of_its_right_side(kind: JoinKind) -> None:
    expected = [(("b",), False), (("y",), False)] if kind is JoinKind.INNER else None

    assert split(join(kind, ("b", "y")), "y") == expected


@pytest.mark.parametrize(
    ("kind", "keeps"),
    [
        (JoinKind.INNER, (False, False)),
        (JoinKind.LEFT, (True, False)),
        (JoinKind.FULL, (True, True)),
        (JoinKind.SEMI, (False, False)),
        (JoinKind.ANTI, (True, False)),
        (JoinKind.ASOF, (False, False)),
        (JoinKind.ASOF_LEFT, (True, False)),
    ],
)
def test_rows_with_null_in_the_key_are_kept_where_the_join_keeps_them(
    kind: JoinKind, keeps: tuple[bool, bool]
) -> None:
    found = SomeLeaves().split_join(join(kind, ("b", "y")), (("b",), ("y",)))

    assert keys(found) == [(("b",), keeps[0]), (("y",), keeps[1])]


def test_what_a_join_drops_is_dropped_below_it() -> None:
    below = join(JoinKind.LEFT, ("b", "y"))
    above = join(JoinKind.INNER, ("b", "q"), left=below, right=THIRD)

    assert split(above, "b") == [(("b",), False), (("y",), False), (("q",), False)]


def test_a_join_is_split_only_if_both_sides_are() -> None:
    assert split(join(JoinKind.INNER, ("b", "y")), "b", never=("y",)) is None
    found = SomeLeaves("y").split_join(join(JoinKind.INNER, ("b", "y")), (("b",), ("y",)))
    assert found is None


def test_a_join_is_split_by_all_comparisons_or_by_one() -> None:
    two = join(JoinKind.INNER, ("a", "x"), ("b", "y"))

    assert list(keys_of_join(two)) == [(("a", "b"), ("x", "y")), (("a",), ("x",)), (("b",), ("y",))]
    assert list(keys_of_join(join(JoinKind.INNER))) == [((), ())]


def test_groups_are_split_by_all_columns_or_by_one_but_by_no_expression() -> None:
    assert list(keys_of_group((column("a"), column("b")))) == [("a", "b"), ("a",), ("b",)]
    assert list(keys_of_group((column("a"), computed("b")))) == [("a",)]
    assert list(keys_of_group(())) == [()]


# --- what is read of a key


BOTH = (LEFT, "b"), (RIGHT, "y")


def test_of_an_inner_join_changed_rows_are_read() -> None:
    assert modes(join(JoinKind.INNER, ("b", "y")), *BOTH) == [Reads.CHANGED, Reads.CHANGED]


@pytest.mark.parametrize("kind", [JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI])
def test_of_an_outer_join_a_witness_is_read_of_the_side_that_may_be_missing(kind: JoinKind) -> None:
    assert modes(join(kind, ("b", "y")), *BOTH) == [Reads.CHANGED, Reads.CHANGED_AND_WITNESS]


def test_of_a_full_join_a_witness_is_read_of_both_sides() -> None:
    expected = [Reads.CHANGED_AND_WITNESS, Reads.CHANGED_AND_WITNESS]
    assert modes(join(JoinKind.FULL, ("b", "y")), *BOTH) == expected


def test_a_witness_does_not_do_where_more_than_the_key_is_compared() -> None:
    assert modes(join(JoinKind.LEFT, ("b", "y"), ("a", "x")), *BOTH) == [Reads.CHANGED, Reads.GROUP]
    residual = join(JoinKind.LEFT, ("b", "y"), residual=computed("x"))
    assert modes(residual, *BOTH) == [Reads.CHANGED, Reads.GROUP]
    full = join(JoinKind.FULL, ("b", "y"), residual=computed("x"))
    assert modes(full, *BOTH) == [Reads.GROUP, Reads.GROUP]


def test_a_witness_does_not_do_where_a_filter_may_hide_it() -> None:
    filtered = join(JoinKind.LEFT, ("b", "y"), right=Filter(RIGHT, computed("x")))
    assert modes(filtered, *BOTH) == [Reads.CHANGED, Reads.GROUP]

    extended = join(JoinKind.LEFT, ("b", "y"), right=Extend(RIGHT, (("z", computed("x")),)))
    assert modes(extended, *BOTH) == [Reads.CHANGED, Reads.CHANGED_AND_WITNESS]


def test_of_what_is_grouped_the_whole_group_is_read() -> None:
    grouped = Aggregate(LEFT, (("g", column("b")),), (), ("g",), NOWHERE)
    window = Window(LEFT, (column("b"),), (), NOWHERE)

    assert modes(grouped, (LEFT, "b")) == modes(window, (LEFT, "b")) == [Reads.GROUP]


def test_rows_that_meet_no_others_are_read_alone() -> None:
    union = Union((Filter(LEFT, computed("a")), RIGHT), (("u", ("b", "y")),), ("i",), NOWHERE)
    mixed = Union((join(JoinKind.INNER, ("b", "y")), THIRD), (("u", ("b", "q")),), ("i",), NOWHERE)

    assert modes(union, *BOTH) == [Reads.ALONE, Reads.ALONE]
    assert modes(mixed, *BOTH, (THIRD, "q")) == [Reads.CHANGED, Reads.CHANGED, Reads.ALONE]
