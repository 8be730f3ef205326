"""Leaves of trees, and the ways to split their rows so that rows that must meet are together.

A split determines which rows of a key must be read when only one of its inputs has changed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from slackwater.sql.catalog import carried
from slackwater.sql.logical import (
    Aggregate,
    Expire,
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    Leaf,
    OneRow,
    Relation,
    Scan,
    TopN,
    Union,
    Unnest,
    Window,
)
from slackwater.sql.plan import Reads

Key = tuple[str, ...]
"""Ids of columns."""

_DECIMAL_PRECISION = re.compile(r"DECIMAL\(\d+")


@dataclass(frozen=True)
class StageRows:
    """The rows that a stage passes on.

    Attributes:
        wire: Ids of the wire row's values, the identity first.
        moment: Id of the column that tells when a row ends; empty for rows that do not end by themselves.
    """

    stage: int
    wire: tuple[str, ...]
    types: tuple[str, ...]
    moment: str = ""


Origin = Scan | StageRows
"""What a leaf stands for: a table, or rows of an earlier stage."""


@dataclass(frozen=True, slots=True)
class LeafKey:
    """The key by which the rows of one leaf are split.

    Attributes:
        keeps_nulls: Whether rows with a NULL in the key can be part of the result.
    """

    leaf: Leaf
    key: Key
    keeps_nulls: bool


Partitioning = tuple[LeafKey, ...]
"""For each leaf of a tree, left to right."""


def keys_of_join(join: Join) -> Iterator[tuple[Key, Key]]:
    """Returns the keys by which the sides of a join may be split, best first; the last one does not split."""
    pairs = [(left.column, right.column) for left, right in join.equal]
    plain = [(left, right) for left, right in pairs if left is not None and right is not None]
    if plain:
        yield tuple(left for left, _ in plain), tuple(right for _, right in plain)
    if len(plain) > 1:
        yield from (((left,), (right,)) for left, right in plain)
    if not join.equal:
        yield (), ()


def keys_of_group(groups: tuple[Expression, ...]) -> Iterator[Key]:
    """Returns the keys by which rows grouped by these expressions may be split, best first."""
    plain = list(dict.fromkeys(each.column for each in groups if each.column is not None))
    if len(plain) == len({each.sql for each in groups}):
        yield tuple(plain)
    if len(plain) > 1 or len(plain) < len(groups):
        yield from ((column,) for column in plain)


class Leaves:
    """The leaves so far, by number, and the ways to split their rows."""

    def __init__(self) -> None:
        self.origins: dict[int, Origin] = {}
        self._next = 0

    @property
    def read_tables(self) -> bool:
        """Whether any of them is a table."""
        return any(isinstance(origin, Scan) for origin in self.origins.values())

    def add(self, origin: Origin | None, columns: tuple[str, ...], identity: tuple[str, ...]) -> Leaf:
        """Returns a leaf that stands for `origin`; None stands for the groups of an accumulate part."""
        number = self._next
        self._next += 1
        if origin is not None:
            self.origins[number] = origin
        return Leaf(number, columns, identity)

    def split(self, relation: Relation, key: Key) -> Partitioning | None:
        """Splits the leaves so that each key of the relation is computed from one part.

        Returns None if that is impossible: some row of the result depends on rows with different keys, or
        equal keys would differ on the wire. The empty key always works, because all rows are then one part.
        """
        found = self._split(relation, key, keeps_nulls=True)
        return found if found is not None and self.has_equal_types(found) else None

    def split_join(
        self, join: Join, keys: tuple[Key, Key], *, keeps_nulls: bool = True
    ) -> Partitioning | None:
        """Splits the leaves of a join so that rows that are compared are together, ignoring types."""
        left = self._split(join.left, keys[0], keeps_nulls=keeps_nulls and not join.kind.drops_left)
        right = self._split(join.right, keys[1], keeps_nulls=keeps_nulls and join.kind is JoinKind.FULL)
        return None if left is None or right is None else left + right

    def may_be_key(self, leaf: Leaf, key: Key) -> bool:
        """Whether a table can be split by these columns as it is read, by their JSON."""
        origin = self.origins.get(leaf.number)
        if not isinstance(origin, Scan):
            return set(key) <= set(leaf.columns)
        table = origin.table
        names = {number: name for name, number in origin.ids.items()}
        columns = [names.get(each) for each in key]
        if not table.replica_identity_full and not set(columns) <= set(table.primary_key):
            return False
        found = [table.column(name) for name in columns if name is not None]
        return all(each is not None and each.type.is_key_safe for each in found)

    def has_equal_types(self, split: Partitioning) -> bool:
        """Returns whether equal keys of all leaves are equal on the wire."""
        return len(set(self.key_types(split))) <= 1

    def key_types(self, split: Partitioning) -> list[tuple[str, ...]]:
        """Returns for each leaf the types of its key, as far as they matter for equality."""
        return [tuple(self._family(part.leaf, name) for name in part.key) for part in split]

    def _family(self, leaf: Leaf, name: str) -> str:
        """Returns the column's family, in which wire values are equal exactly if the values are."""
        origin = self.origins.get(leaf.number)
        if isinstance(origin, Scan):
            of_column = {number: column for column, number in origin.ids.items()}
            declared = origin.table.column(of_column[name])
            return "" if declared is None else declared.type.wire_family
        if isinstance(origin, StageRows):
            of_type = dict(zip(origin.wire, origin.types, strict=True))[name]
            return _DECIMAL_PRECISION.sub("DECIMAL(", carried(of_type).wire_family)
        return ""

    def _split(self, relation: Relation, key: Key, *, keeps_nulls: bool) -> Partitioning | None:
        match relation:
            case Leaf():
                has_no_repeats = len(set(key)) == len(key)
                fits = not key or (has_no_repeats and self.may_be_key(relation, key))
                return (LeafKey(relation, key, keeps_nulls),) if fits else None
            case Union():
                return self._split_union(relation, key, keeps_nulls=keeps_nulls)
            case Join():
                sides = _sides(relation, key)
                return None if sides is None else self.split_join(relation, sides, keeps_nulls=keeps_nulls)
            case Filter() | Extend() | Unnest() | Aggregate() | Window() | TopN():
                below = _below(relation, key)
                return None if below is None else self._split(relation.child, below, keeps_nulls=keeps_nulls)
            case Scan() | OneRow() | Expire():
                return None

    def _split_union(self, union: Union, key: Key, *, keeps_nulls: bool) -> Partitioning | None:
        sources = dict(union.sources)
        if not set(key) <= set(sources):
            return None
        found: Partitioning = ()
        for number, branch in enumerate(union.children):
            part = self._split(branch, tuple(sources[name][number] for name in key), keeps_nulls=keeps_nulls)
            if part is None:
                return None
            found += part
        return found


def _sides(join: Join, key: Key) -> tuple[Key, Key] | None:
    """Returns a key of joined rows in the columns of either side; None if it does not decide which rows meet.

    A column of a side whose rows may be missing is NULL in some rows, regardless of the other side.
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


def _below(relation: Filter | Extend | Unnest | Aggregate | Window | TopN, key: Key) -> Key | None:
    """Returns the key in the child's columns; None if it separates rows that are computed together."""
    match relation:
        case Filter():
            return key
        case Extend(computed=computed):
            return _through(dict(computed), key)
        case Unnest(child=child):
            return key if set(key) <= set(child.columns) else None
        case Aggregate(groups=groups):
            is_grouped = set(key) <= {name for name, _ in groups}
            return _through(dict(groups), key) if is_grouped else None
        case Window(partition=partition) | TopN(partition=partition):
            return key if set(key) <= {each.column for each in partition} else None


def _through(computed: dict[str, Expression], key: Key) -> Key | None:
    """Returns the key below expressions; None if a part of it is computed."""
    below = []
    for name in key:
        column = computed[name].column if name in computed else name
        if column is None:
            return None
        below.append(column)
    return tuple(below)


def reads(relation: Relation, split: Partitioning) -> dict[int, Reads]:
    """Returns how each leaf of a tree is read, given how its leaves are split, by the leaf's number."""
    keys = {part.leaf.number: part.key for part in split}
    return _ReadModes(keys).modes(relation) | dict.fromkeys(_alone(relation), Reads.ALONE)


def _alone(relation: Relation) -> Iterator[int]:
    """Returns the numbers of the leaves whose rows meet no others: those of branches that nothing joins."""
    match relation:
        case Leaf(number=number):
            yield number
        case Filter(child=child) | Extend(child=child) | Unnest(child=child):
            yield from _alone(child)
        case Union(children=branches):
            for branch in branches:
                yield from _alone(branch)
        case _:
            return


@dataclass(frozen=True, slots=True)
class _ReadModes:
    _keys: dict[int, tuple[str, ...]]

    def modes(self, relation: Relation) -> dict[int, Reads]:
        match relation:
            case Leaf(number=number):
                return {number: Reads.CHANGED}
            case Filter(child=child) | Extend(child=child) | Unnest(child=child):
                return self.modes(child)
            case Aggregate() | Window() | TopN():
                return dict.fromkeys(self.modes(relation.child), Reads.GROUP)
            case Union(children=branches):
                return {number: mode for branch in branches for number, mode in self.modes(branch).items()}
            case Join():
                return self._join(relation)
            case Scan() | OneRow() | Expire():
                return {}

    def _join(self, join: Join) -> dict[int, Reads]:
        left, right = self.modes(join.left), self.modes(join.right)
        if join.kind is JoinKind.INNER:
            return left | right
        is_pure = self._is_pure(join)
        right = self._witnessed(join.right, right) if is_pure else dict.fromkeys(right, Reads.GROUP)
        if join.kind is JoinKind.FULL:
            left = self._witnessed(join.left, left) if is_pure else dict.fromkeys(left, Reads.GROUP)
        return left | right

    def _witnessed(self, side: Relation, modes: dict[int, Reads]) -> dict[int, Reads]:
        """Returns the modes of a side if the other side depends on whether it has a row."""
        mode = Reads.CHANGED_AND_WITNESS if self._has_any_row_as_witness(side) else Reads.GROUP
        return dict.fromkeys(modes, mode)

    def _is_pure(self, join: Join) -> bool:
        """Whether all rows of a key meet: only the key is compared, and there is no other condition."""
        compared = {(left.column, right.column) for left, right in join.equal}
        return join.residual is None and compared <= self._key_pairs(join)

    def _key_pairs(self, join: Join) -> set[tuple[str | None, str | None]]:
        left, right = self._key_of(join.left), self._key_of(join.right)
        return set(zip(left, right, strict=True)) if left is not None and right is not None else set()

    def _key_of(self, relation: Relation) -> tuple[str, ...] | None:
        """Returns the stage key in the columns of a leaf, with computed columns resolved."""
        match relation:
            case Leaf(number=number):
                return self._keys[number]
            case Filter(child=child) | Unnest(child=child):
                return self._key_of(child)
            case Join(kind=kind, left=left) if kind is not JoinKind.FULL:
                return self._key_of(left)
            case Extend(child=child, computed=computed):
                below = self._key_of(child)
                renamed = {each.column: name for name, each in computed if each.column is not None}
                return None if below is None else tuple(renamed.get(name, name) for name in below)
            case _:
                return None

    def _has_any_row_as_witness(self, relation: Relation) -> bool:
        """Returns whether any row of a leaf proves that the relation has a row."""
        return isinstance(relation, Leaf) or (
            isinstance(relation, Extend) and self._has_any_row_as_witness(relation.child)
        )
