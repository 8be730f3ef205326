"""Decides which rows of a key must be read when only one of its inputs has changed."""

from collections.abc import Iterator

from slackwater_sql.logical import (
    Aggregate,
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
from slackwater_sql.plan import Reads
from slackwater_sql.planner.partitioning import Partitioning


def reads(relation: Relation, split: Partitioning) -> dict[int, Reads]:
    """Returns the way in which each leaf is read, by the leaf's number.

    Args:
        relation: The tree.
        split: How its leaves are split.
    """
    keys = {part.leaf.number: part.key for part in split}
    return _Modes(keys).modes(relation) | dict.fromkeys(_alone(relation), Reads.ALONE)


def _alone(relation: Relation) -> Iterator[int]:
    """Numbers of the leaves whose rows meet no others: those of branches that nothing joins."""
    match relation:
        case Leaf(number=number):
            yield number
        case Filter(child=child) | Extend(child=child):
            yield from _alone(child)
        case Union(children=branches):
            for branch in branches:
                yield from _alone(branch)
        case _:
            return


class _Modes:
    def __init__(self, keys: dict[int, tuple[str, ...]]) -> None:
        self._keys = keys

    def modes(self, relation: Relation) -> dict[int, Reads]:
        match relation:
            case Leaf(number=number):
                return {number: Reads.CHANGED}
            case Filter(child=child) | Extend(child=child):
                return self.modes(child)
            case Aggregate(child=child) | Window(child=child):
                return dict.fromkeys(self.modes(child), Reads.GROUP)
            case Union(children=branches):
                return {number: mode for branch in branches for number, mode in self.modes(branch).items()}
            case Join():
                return self._join(relation)
            case Scan():
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
        """All rows of a key meet: the comparisons are those of the key, and nothing else is asked."""
        compared = {(left.column, right.column) for left, right in join.equal}
        return join.residual is None and compared <= self._key_pairs(join)

    def _key_pairs(self, join: Join) -> set[tuple[str | None, str | None]]:
        left, right = self._key_of(join.left), self._key_of(join.right)
        return set(zip(left, right, strict=True)) if left is not None and right is not None else set()

    def _key_of(self, relation: Relation) -> tuple[str, ...] | None:
        """Returns the stage key in the columns of a leaf, computed columns looked through."""
        match relation:
            case Leaf(number=number):
                return self._keys[number]
            case Filter(child=child):
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
        """Says if any row of a leaf shows that the relation has a row."""
        return isinstance(relation, Leaf) or (
            isinstance(relation, Extend) and self._has_any_row_as_witness(relation.child)
        )
