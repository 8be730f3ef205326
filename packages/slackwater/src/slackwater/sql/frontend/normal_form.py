"""Trees in normal form: without unused parts, and with ids in the order of the tree.

Equal views then have equal trees.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from slackwater.sql.logical import (
    Aggregate,
    AggregateCall,
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

_ID = re.compile(r'"(c\d+)"')


def normalised(relation: Relation, needed: frozenset[str], first_id: int) -> tuple[Relation, dict[str, str]]:
    """Returns a tree with the same rows, and the new id of each of its columns by the old one.

    Args:
        relation: The tree.
        needed: Ids of the columns that are used.
        first_id: Number of the first new id.
    """
    numbering = _Numbering(first_id)
    return numbering.relation(_pruned(relation, needed)), numbering.ids


def _pruned(relation: Relation, needed: frozenset[str]) -> Relation:
    """Returns the same rows with these columns, what identifies rows, and nothing that is unused."""
    match relation:
        case Scan():
            kept = needed | {relation.ids[name] for name in relation.table.primary_key}
            return replace(relation, ids={name: each for name, each in relation.ids.items() if each in kept})
        case Extend():
            computed = tuple(each for each in relation.computed if each[0] in needed)
            child = _pruned(relation.child, needed | _columns(each for _, each in computed))
            return Extend(child, computed) if computed else child
        case Filter():
            below = needed | set(relation.condition.columns)
            return Filter(_pruned(relation.child, below), relation.condition)
        case Join():
            return _join(relation, needed)
        case Aggregate():
            return _aggregate(relation, needed)
        case Union():
            sources = tuple(each for each in relation.sources if each[0] in needed)
            branches = (
                _pruned(child, frozenset(ids[number] for _, ids in sources))
                for number, child in enumerate(relation.children)
            )
            return replace(relation, children=tuple(branches), sources=sources)
        case Window():
            calls = tuple(each for each in relation.calls if each[0] in needed)
            if not calls:
                return _pruned(relation.child, needed)
            used = _columns(relation.partition) | _columns(each for _, each in calls)
            return replace(relation, child=_pruned(relation.child, needed | used), calls=calls)
        case Leaf():
            return relation


def _join(join: Join, needed: frozenset[str]) -> Relation:
    if join.kind is JoinKind.LEFT and not needed & set(join.right.columns):
        is_unused = join.identity == join.left.identity  # at most one row on the right
        if is_unused:
            return _pruned(join.left, needed)
    used = needed | _columns(side for pair in join.equal for side in pair)
    used |= set(join.residual.columns) if join.residual is not None else set()
    return replace(join, left=_pruned(join.left, used), right=_pruned(join.right, used))


def _aggregate(relation: Aggregate, needed: frozenset[str]) -> Relation:
    kept = needed | set(relation.identity)
    groups = tuple(each for each in relation.groups if each[0] in kept)
    calls = tuple(each for each in relation.calls if each[0] in needed)
    if not groups and not calls:
        calls = relation.calls[:1]
    used = _columns(each for _, each in (*groups, *calls))
    return replace(relation, child=_pruned(relation.child, used), groups=groups, calls=calls)


def _columns(parts: Iterable[object]) -> frozenset[str]:
    return frozenset(column for part in parts for column in getattr(part, "columns", ()))


class _Numbering:
    """Assigns new ids to a tree, in the order in which its columns are created.

    Attributes:
        ids: New ids by old ones.
    """

    def __init__(self, first: int) -> None:
        self.ids: dict[str, str] = {}
        self._first = first

    def relation(self, relation: Relation) -> Relation:
        """Returns the tree with new ids."""
        match relation:
            case Scan():
                return replace(relation, ids={name: self._new(old) for name, old in relation.ids.items()})
            case Extend():
                child = self.relation(relation.child)
                return Extend(child, self._named(relation.computed))
            case Filter():
                return Filter(self.relation(relation.child), self._expression(relation.condition))
            case Join():
                left, right = self.relation(relation.left), self.relation(relation.right)
                equal = tuple((self._expression(one), self._expression(two)) for one, two in relation.equal)
                residual = None if relation.residual is None else self._expression(relation.residual)
                return replace(relation, left=left, right=right, equal=equal, residual=residual)
            case Aggregate():
                return self._aggregate(relation)
            case Union():
                branches = tuple(self.relation(child) for child in relation.children)
                sources = tuple(
                    (self._new(name), tuple(self.ids[each] for each in ids)) for name, ids in relation.sources
                )
                identity = tuple(self._new(each) for each in relation.identity)
                return replace(relation, children=branches, sources=sources, identity=identity)
            case Window():
                child = self.relation(relation.child)
                partition = tuple(self._expression(each) for each in relation.partition)
                return replace(relation, child=child, partition=partition, calls=self._named(relation.calls))
            case Leaf():
                return relation

    def _aggregate(self, relation: Aggregate) -> Aggregate:
        child = self.relation(relation.child)
        groups = self._named(relation.groups)
        calls = tuple((self._new(name), self._call(call)) for name, call in relation.calls)
        identity = tuple(self.ids[each] for each in relation.identity)
        return replace(relation, child=child, groups=groups, calls=calls, identity=identity)

    def _new(self, old: str) -> str:
        return self.ids.setdefault(old, f"c{self._first + len(self.ids)}")

    def _named(self, computed: tuple[tuple[str, Expression], ...]) -> tuple[tuple[str, Expression], ...]:
        expressions = [self._expression(each) for _, each in computed]
        return tuple((self._new(name), each) for (name, _), each in zip(computed, expressions, strict=True))

    def _expression(self, each: Expression) -> Expression:
        return replace(each, **self._sql(each))

    def _call(self, call: AggregateCall) -> AggregateCall:
        arguments = tuple(self._expression(each) for each in call.arguments)
        condition = None if call.condition is None else self._expression(call.condition)
        return replace(call, arguments=arguments, condition=condition, **self._sql(call))

    def _sql(self, each: Expression | AggregateCall) -> dict[str, Any]:
        sql = _ID.sub(lambda found: f'"{self.ids.get(found.group(1), found.group(1))}"', each.sql)
        return {"sql": sql, "columns": tuple(self.ids[column] for column in each.columns)}
