"""Ids in the order of the tree, so that equal views have equal trees."""

import re
from dataclasses import replace
from typing import Any

from slackwater_sql.logical import (
    Aggregate,
    AggregateCall,
    Expression,
    Extend,
    Filter,
    Join,
    Leaf,
    Relation,
    Scan,
    Union,
    Window,
)

_ID = re.compile(r'"(c\d+)"')


class Numbering:
    """New ids for a tree, in the order in which its columns come into being.

    Attributes:
        ids: New ids by old ones.
    """

    def __init__(self, first: int) -> None:
        self.ids: dict[str, str] = {}
        self._first = first

    def relation(self, relation: Relation) -> Relation:
        """The tree with new ids."""
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
