"""Regions of FROM: what is inner joined, with its conditions.

Adjacent inner joins form a *region*: their order is free, and conditions that compare two of its parts may
come from ON or from WHERE. A region is joined part by part in the order of FROM. A part that no equality
connects with the parts before it waits until one does; what is computed follows the tables.
"""

from dataclasses import dataclass, field

from slackwater.sql.frontend.row_sets import computed_for, is_computed, row_columns
from slackwater.sql.frontend.syntax import Node
from slackwater.sql.logical import Expression, Filter, Join, JoinKind, Relation, Span, conjunction

Pair = tuple[Expression, Expression]


@dataclass
class Condition:
    """A condition that must hold.

    Attributes:
        whole: The condition.
        sides: Left and right side of ``=``, if it is an equality; in ASOF, also of an inequality.
        sign: Between the sides.
    """

    whole: Expression
    sides: Pair | None
    sign: str = "="


@dataclass
class OuterJoin:
    """An outer join. Conditions can still be added to its left side."""

    kind: JoinKind
    left: "Region"
    right: Relation
    equal: tuple[Pair, ...]
    residual: Expression | None
    span: Span

    @property
    def columns(self) -> frozenset[str]:
        """Ids of the result."""
        own = self.left.columns
        return own if self.kind.keeps_left_only else own | set(self.right.columns)

    @property
    def is_of_row(self) -> bool:
        """Whether its left side is computed for the rows of what precedes it in FROM."""
        left = self.left.joined()
        return self.kind is not JoinKind.FULL and is_computed(left) and bool(row_columns(left))

    def joined(self) -> Relation:
        """Builds the tree."""
        return Join(self.kind, self.left.joined(), self.right, self.equal, self.residual, self.span)


@dataclass
class Region:
    """Relations that are inner joined.

    Attributes:
        parts: In the order of FROM.
        conditions: Conditions over several parts.
        late: Conditions of ON that use subqueries or the outer query, which hold as if they were in WHERE.
    """

    parts: list[Relation | OuterJoin]
    conditions: list[Condition] = field(default_factory=list)
    late: list[Node] = field(default_factory=list)
    span: Span = field(default_factory=lambda: Span(0, 0))

    @property
    def columns(self) -> frozenset[str]:
        """Ids of all parts."""
        return frozenset(column for part in self.parts for column in part.columns)

    def require(self, condition: Condition, *, is_where: bool) -> bool:
        """Adds a condition, if it belongs here; returns whether it does.

        Of those from WHERE, only comparisons of two parts are accepted.
        """
        needed = set(condition.whole.columns)
        holders = [number for number, part in enumerate(self.parts) if needed & set(part.columns)]
        if len(holders) == 1:
            return self._require_of(holders[0], condition, is_where=is_where)
        is_pair = condition.sides is not None and all(side.columns for side in condition.sides)
        if is_where and not is_pair:
            return False
        self.conditions.append(condition)
        return True

    def joined(self) -> Relation:
        """Builds the tree."""
        relations = [part.joined() if isinstance(part, OuterJoin) else part for part in self.parts]
        waiting = list(self.conditions)
        result, *rest = sorted(relations, key=is_computed)  # rows are better computed for those of tables
        result = _filtered(result, waiting, self.span)
        while rest:
            known = set(result.columns)
            ready = [each for each in rest if not is_computed(each) or row_columns(each) <= known] or rest
            following = next((each for each in ready if _are_compared(result, each, waiting)), ready[0])
            rest.remove(following)
            result = self._with(result, following, waiting)
        return result

    def _with(self, left: Relation, right: Relation, waiting: list[Condition]) -> Relation:
        known = set(left.columns) | set(right.columns)
        used = [each for each in waiting if set(each.whole.columns) <= known]
        waiting[:] = [each for each in waiting if each not in used]
        if is_computed(right) and (row_columns(right) or not _are_compared(left, right, used)):
            result = computed_for(right, left)
            whole = conjunction([each.whole for each in used])
            return result if whole is None else Filter(result, whole)
        right, equal, residual = distributed(JoinKind.INNER, frozenset(left.columns), right, used)
        return Join(JoinKind.INNER, left, right, equal, residual, self.span)

    def _require_of(self, number: int, condition: Condition, *, is_where: bool) -> bool:
        part = self.parts[number]
        if isinstance(part, OuterJoin):
            of_left = set(condition.whole.columns) <= part.left.columns
            if of_left and part.kind is not JoinKind.FULL and part.left.require(condition, is_where=is_where):
                return True
            if is_where:
                return False
            self.parts[number] = part = part.joined()
        if is_where:
            return False
        self.parts[number] = Filter(part, condition.whole)
        return True


def distributed(
    kind: JoinKind, left: frozenset[str], right: Relation, conditions: list[Condition]
) -> tuple[Relation, tuple[Pair, ...], Expression | None]:
    """Returns the conditions of a join as filters of the right side, equal pairs and the rest."""
    equal: list[Pair] = []
    residual: list[Expression] = []
    for condition in conditions:
        needed = set(condition.whole.columns)
        pair = oriented(left, frozenset(right.columns), condition.sides)
        if pair is not None:
            equal.append(pair)
        elif needed and needed <= set(right.columns) and kind is not JoinKind.FULL:
            right = Filter(right, condition.whole)
        else:
            residual.append(condition.whole)
    return right, tuple(equal), conjunction(residual)


def _are_compared(left: Relation, right: Relation, conditions: list[Condition]) -> bool:
    sides = frozenset(left.columns), frozenset(right.columns)
    return any(oriented(*sides, each.sides) is not None for each in conditions)


def oriented(left: frozenset[str], right: frozenset[str], sides: Pair | None) -> Pair | None:
    """Returns the pair as left and right side; None if it does not compare the two sides."""
    if sides is None or not all(side.columns for side in sides):
        return None
    one, other = sides
    if set(one.columns) <= left and set(other.columns) <= right:
        return one, other
    if set(other.columns) <= left and set(one.columns) <= right:
        return other, one
    return None


def _filtered(relation: Relation, waiting: list[Condition], span: Span) -> Relation:
    """Filters the first part by its own conditions, and by those without columns."""
    for condition in [each for each in waiting if set(each.whole.columns) <= set(relation.columns)]:
        waiting.remove(condition)
        relation = Filter(relation, condition.whole)
    return relation
