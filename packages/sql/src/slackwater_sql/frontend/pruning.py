"""Trees without columns that nothing uses."""

from collections.abc import Iterable
from dataclasses import replace

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


def pruned(relation: Relation, needed: frozenset[str]) -> Relation:
    """The same rows with these columns, what tells rows apart, and nothing that is in vain."""
    match relation:
        case Scan():
            kept = needed | {relation.ids[name] for name in relation.table.primary_key}
            return replace(relation, ids={name: each for name, each in relation.ids.items() if each in kept})
        case Extend():
            computed = tuple(each for each in relation.computed if each[0] in needed)
            child = pruned(relation.child, needed | _columns(each for _, each in computed))
            return Extend(child, computed) if computed else child
        case Filter():
            below = needed | set(relation.condition.columns)
            return Filter(pruned(relation.child, below), relation.condition)
        case Join():
            return _join(relation, needed)
        case Aggregate():
            return _aggregate(relation, needed)
        case Union():
            sources = tuple(each for each in relation.sources if each[0] in needed)
            branches = (
                pruned(child, frozenset(ids[number] for _, ids in sources))
                for number, child in enumerate(relation.children)
            )
            return replace(relation, children=tuple(branches), sources=sources)
        case Window():
            calls = tuple(each for each in relation.calls if each[0] in needed)
            if not calls:
                return pruned(relation.child, needed)
            used = _columns(relation.partition) | _columns(each for _, each in calls)
            return replace(relation, child=pruned(relation.child, needed | used), calls=calls)
        case Leaf():
            return relation


def _join(join: Join, needed: frozenset[str]) -> Relation:
    if join.kind is JoinKind.LEFT and not needed & set(join.right.columns):
        is_in_vain = join.identity == join.left.identity  # at most one row on the right
        if is_in_vain:
            return pruned(join.left, needed)
    used = needed | _columns(side for pair in join.equal for side in pair)
    used |= set(join.residual.columns) if join.residual is not None else set()
    return replace(join, left=pruned(join.left, used), right=pruned(join.right, used))


def _aggregate(relation: Aggregate, needed: frozenset[str]) -> Relation:
    kept = needed | set(relation.identity)
    groups = tuple(each for each in relation.groups if each[0] in kept)
    calls = tuple(each for each in relation.calls if each[0] in needed)
    if not groups and not calls:
        calls = relation.calls[:1]
    used = _columns(each for _, each in (*groups, *calls))
    return replace(relation, child=pruned(relation.child, used), groups=groups, calls=calls)


def _columns(parts: Iterable[object]) -> frozenset[str]:
    return frozenset(column for part in parts for column in getattr(part, "columns", ()))
