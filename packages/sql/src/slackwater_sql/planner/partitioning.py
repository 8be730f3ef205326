"""By which columns the inputs of a tree must be split so that rows which meet are together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slackwater_sql.logical import (
    Aggregate,
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    Leaf,
    Relation,
    Scan,
    Union,
    Window,
)

Key = tuple[str, ...]
"""Ids of columns."""


@dataclass(frozen=True, slots=True)
class LeafKey:
    """How one input is split.

    Attributes:
        leaf: The input.
        key: Its key columns.
        keeps_nulls: Rows with a NULL in the key can be part of the result.
    """

    leaf: Leaf
    key: Key
    keeps_nulls: bool


Partitioning = tuple[LeafKey, ...]
"""For each leaf of a tree, left to right."""

MayBeKey = Callable[[Leaf, Key], bool]
"""Whether a leaf's rows can be split by these columns."""


def partitioning(relation: Relation, key: Key, may_be_key: MayBeKey) -> Partitioning | None:
    """How to split the leaves so that all rows of the relation with one key come of one part.

    None if there is no such way: some row of the result depends on rows that the key does not bring together.
    The key of no columns always works: all rows are one part.
    """
    return _Splitter(may_be_key).split(relation, key, keeps_nulls=True)


def keys_of_join(join: Join) -> Iterator[tuple[Key, Key]]:
    """Keys by which the sides of a join may be split, best first; the last one does not split at all."""
    pairs = [(left.column, right.column) for left, right in join.equal]
    plain = [(left, right) for left, right in pairs if left is not None and right is not None]
    if plain:
        yield tuple(left for left, _ in plain), tuple(right for _, right in plain)
    if len(plain) > 1:
        yield from (((left,), (right,)) for left, right in plain)
    if not join.equal:
        yield (), ()


def keys_of_group(groups: tuple[Expression, ...]) -> Iterator[Key]:
    """Keys by which rows that are grouped by these expressions may be split, best first."""
    plain = list(dict.fromkeys(each.column for each in groups if each.column is not None))
    if len(plain) == len({each.sql for each in groups}):
        yield tuple(plain)
    if len(plain) > 1 or len(plain) < len(groups):
        yield from ((column,) for column in plain)


class _Splitter:
    def __init__(self, may_be_key: MayBeKey) -> None:
        self._may_be_key = may_be_key

    def split(self, relation: Relation, key: Key, *, keeps_nulls: bool) -> Partitioning | None:
        match relation:
            case Leaf():
                has_no_repeats = len(set(key)) == len(key)
                fits = not key or (has_no_repeats and self._may_be_key(relation, key))
                return (LeafKey(relation, key, keeps_nulls),) if fits else None
            case Union():
                return self._union(relation, key, keeps_nulls=keeps_nulls)
            case Join():
                return self._join(relation, key, keeps_nulls=keeps_nulls)
            case Filter() | Extend() | Aggregate() | Window():
                below = _below(relation, key)
                return None if below is None else self.split(relation.child, below, keeps_nulls=keeps_nulls)
            case Scan():
                return None

    def _union(self, union: Union, key: Key, *, keeps_nulls: bool) -> Partitioning | None:
        sources = dict(union.sources)
        if not set(key) <= set(sources):
            return None
        found: Partitioning = ()
        for number, branch in enumerate(union.children):
            part = self.split(branch, tuple(sources[name][number] for name in key), keeps_nulls=keeps_nulls)
            if part is None:
                return None
            found += part
        return found

    def _join(self, join: Join, key: Key, *, keeps_nulls: bool) -> Partitioning | None:
        sides = _sides(join, key)
        if sides is None:
            return None
        left_key, right_key = sides
        drops_left = join.kind in {JoinKind.INNER, JoinKind.SEMI}
        drops_right = join.kind is not JoinKind.FULL
        left = self.split(join.left, left_key, keeps_nulls=keeps_nulls and not drops_left)
        right = self.split(join.right, right_key, keeps_nulls=keeps_nulls and not drops_right)
        return None if left is None or right is None else left + right


def split_join(join: Join, keys: tuple[Key, Key], may_be_key: MayBeKey) -> Partitioning | None:
    """How to split the leaves of a join so that rows which are compared are together."""
    splitter = _Splitter(may_be_key)
    drops_left = join.kind in {JoinKind.INNER, JoinKind.SEMI}
    left = splitter.split(join.left, keys[0], keeps_nulls=not drops_left)
    right = splitter.split(join.right, keys[1], keeps_nulls=join.kind is JoinKind.FULL)
    return None if left is None or right is None else left + right


def _sides(join: Join, key: Key) -> tuple[Key, Key] | None:
    """What a key of the joined rows is on either side; None if it does not decide which rows meet.

    A column of a side whose rows may be missing is NULL in some rows, wherever their other side is.
    """
    to_right = {left.column: right.column for left, right in join.equal}
    to_left = {right.column: left.column for left, right in join.equal}
    left_key, right_key = [], []
    for name in key:
        if join.kind is not JoinKind.FULL and name in join.left.columns:
            left, right = name, to_right.get(name)
        elif join.kind is JoinKind.INNER and name in join.right.columns:
            left, right = to_left.get(name) or "", name
        else:
            return None
        if not left or not right:
            return None
        left_key.append(left)
        right_key.append(right)
    return tuple(left_key), tuple(right_key)


def _below(relation: Filter | Extend | Aggregate | Window, key: Key) -> Key | None:
    """The key in the columns of the child; None if it does not keep together what is computed together."""
    match relation:
        case Filter():
            return key
        case Extend(computed=computed):
            return _through(dict(computed), key)
        case Aggregate(groups=groups):
            is_grouped = set(key) <= {name for name, _ in groups}
            return _through(dict(groups), key) if is_grouped else None
        case Window(partition=partition):
            return key if set(key) <= {each.column for each in partition} else None


def _through(computed: dict[str, Expression], key: Key) -> Key | None:
    """The key below expressions; None if a part of it is computed."""
    below = []
    for name in key:
        column = computed[name].column if name in computed else name
        if column is None:
            return None
        below.append(column)
    return tuple(below)
