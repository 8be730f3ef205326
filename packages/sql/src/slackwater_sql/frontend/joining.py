"""Joins, with equalities where they belong.

Inner joins that stand together are one *region*: their order is free, and conditions that compare two of
its parts may come from ON or from WHERE. A region is joined part by part in the order of FROM; a part that
no equality connects with those before it waits until one does.
"""

from dataclasses import dataclass, field

from slackwater_sql.frontend.levels import conjunction
from slackwater_sql.logical import Expression, Filter, Join, JoinKind, Relation, Span

Pair = tuple[Expression, Expression]


@dataclass
class Condition:
    """Something that must hold.

    Attributes:
        whole: The condition.
        sides: Left and right of ``=``, if it is a comparison by it.
    """

    whole: Expression
    sides: Pair | None


@dataclass
class Outer:
    """A join that is not an inner one; its left side may still get conditions."""

    kind: JoinKind
    left: "Region"
    right: Relation
    equal: tuple[Pair, ...]
    residual: Expression | None
    span: Span


@dataclass
class Region:
    """Parts that are inner joined.

    Attributes:
        parts: In the order of FROM.
        conditions: What must hold of several parts.
        span: Where it stands.
    """

    parts: list[Relation | Outer]
    conditions: list[Condition] = field(default_factory=list)
    span: Span = field(default_factory=lambda: Span(0, 0))

    @property
    def columns(self) -> frozenset[str]:
        """Ids of all parts."""
        return frozenset(column for part in self.parts for column in _columns(part))

    def require(self, condition: Condition, *, is_where: bool) -> bool:
        """Take the condition in.

        Args:
            condition: What must hold.
            is_where: It stands in WHERE: then only comparisons of two parts are taken.

        Returns:
            Whether it was taken.
        """
        needed = set(condition.whole.columns)
        holders = [number for number, part in enumerate(self.parts) if needed & set(_columns(part))]
        if len(holders) == 1:
            return self._require_of(holders[0], condition, is_where=is_where)
        is_pair = condition.sides is not None and all(side.columns for side in condition.sides)
        if is_where and not is_pair:
            return False
        self.conditions.append(condition)
        return True

    def joined(self) -> Relation:
        """The tree."""
        relations = [part if not isinstance(part, Outer) else joined_outer(part) for part in self.parts]
        waiting = list(self.conditions)
        result, rest = relations[0], relations[1:]
        result = _filtered(result, waiting, self.span)
        while rest:
            following = next((each for each in rest if _pairs(result, each, waiting)), rest[0])
            rest.remove(following)
            result = self._with(result, following, waiting)
        return result

    def _with(self, left: Relation, right: Relation, waiting: list[Condition]) -> Relation:
        equal = _pairs(left, right, waiting)
        known = set(left.columns) | set(right.columns)
        used = [each for each in waiting if set(each.whole.columns) <= known]
        paired = [each for each in used if each.sides is not None and _pair(left, right, each.sides)]
        residual = [each.whole for each in used if each not in paired]
        waiting[:] = [each for each in waiting if each not in used]
        return Join(JoinKind.INNER, left, right, tuple(equal), conjunction(residual), self.span)

    def _require_of(self, number: int, condition: Condition, *, is_where: bool) -> bool:
        part = self.parts[number]
        if isinstance(part, Outer):
            of_left = set(condition.whole.columns) <= part.left.columns
            if of_left and part.kind is not JoinKind.FULL and part.left.require(condition, is_where=is_where):
                return True
            if is_where:
                return False
            self.parts[number] = part = joined_outer(part)
        if is_where:
            return False
        self.parts[number] = Filter(part, condition.whole)
        return True


def joined_outer(outer: Outer) -> Relation:
    """The tree of a join that is not an inner one."""
    return Join(outer.kind, outer.left.joined(), outer.right, outer.equal, outer.residual, outer.span)


def split(
    kind: JoinKind, left: frozenset[str], right: Relation, conditions: list[Condition]
) -> tuple[Relation, tuple[Pair, ...], Expression | None]:
    """Conditions of a join as filter of the right side, equal pairs and the rest."""
    equal: list[Pair] = []
    residual: list[Expression] = []
    for condition in conditions:
        needed = set(condition.whole.columns)
        pair = _oriented(left, frozenset(right.columns), condition.sides)
        if pair is not None:
            equal.append(pair)
        elif needed and needed <= set(right.columns) and kind is not JoinKind.FULL:
            right = Filter(right, condition.whole)
        else:
            residual.append(condition.whole)
    return right, tuple(equal), conjunction(residual)


def _pairs(left: Relation, right: Relation, conditions: list[Condition]) -> list[Pair]:
    found = (_pair(left, right, each.sides) for each in conditions)
    return [pair for pair in found if pair is not None]


def _pair(left: Relation, right: Relation, sides: Pair | None) -> Pair | None:
    return _oriented(frozenset(left.columns), frozenset(right.columns), sides)


def _oriented(left: frozenset[str], right: frozenset[str], sides: Pair | None) -> Pair | None:
    """The pair as left and right side's; None if it does not compare the two sides."""
    if sides is None or not all(side.columns for side in sides):
        return None
    one, other = sides
    if set(one.columns) <= left and set(other.columns) <= right:
        return one, other
    if set(other.columns) <= left and set(one.columns) <= right:
        return other, one
    return None


def _filtered(relation: Relation, waiting: list[Condition], span: Span) -> Relation:
    """Conditions without columns, and those of the first part."""
    for condition in [each for each in waiting if set(each.whole.columns) <= set(relation.columns)]:
        waiting.remove(condition)
        relation = Filter(relation, condition.whole)
    return relation


def _columns(part: Relation | Outer) -> frozenset[str]:
    if isinstance(part, Outer):
        own = part.left.columns
        return own if part.kind.keeps_left_only else own | set(part.right.columns)
    return frozenset(part.columns)
