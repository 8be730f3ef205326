"""What is known of a relation's columns: which never are NULL, and which ones others depend on."""

from collections.abc import Iterable, Iterator

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

Dependency = tuple[frozenset[str], frozenset[str]]
"""Rows that agree on the first columns, NULL being equal to NULL, agree on the second ones."""


def never_null(relation: Relation) -> frozenset[str]:
    """Columns without NULL."""
    match relation:
        case Scan(table=table, ids=ids):
            keys = set(table.primary_key)
            return frozenset(
                ids[column.name]
                for column in table.columns
                if column.name in ids and (not column.nullable or column.name in keys)
            )
        case Join(kind=kind, left=left, right=right):
            if kind is JoinKind.FULL:
                return frozenset()
            return never_null(left) | (never_null(right) if kind is JoinKind.INNER else frozenset())
        case Aggregate(child=child, groups=groups, calls=calls):
            below = never_null(child)
            counts = {name for name, call in calls if call.function == "count"}
            return frozenset(counts | {name for name, each in groups if each.column in below})
        case Union(children=children, sources=sources, identity=identity):
            each = [never_null(child) for child in children]
            safe = {
                name
                for name, ids in sources
                if all(column in known for column, known in zip(ids, each, strict=True))
            }
            return frozenset(safe | {identity[0]})
        case Extend(child=child, computed=computed):
            below = never_null(child)
            return below | {name for name, each in computed if each.column in below}
        case Filter() | Window():
            return never_null(relation.child)
        case Leaf():
            return frozenset()


def dependencies(relation: Relation) -> Iterator[Dependency]:
    """What holds between the columns of the relation's rows."""
    match relation:
        case Scan() | Aggregate() | Union():
            yield frozenset(relation.identity), frozenset(relation.columns)
        case Join(kind=kind, left=left, right=right):
            yield from _of_side(left, may_be_missing=kind is JoinKind.FULL)
            if not kind.keeps_left_only:
                yield from _of_side(right, may_be_missing=kind is not JoinKind.INNER)
        case Extend(child=child, computed=computed):
            yield from dependencies(child)
            for name, each in computed:
                yield frozenset(each.columns), frozenset({name})
        case Filter(child=child) | Window(child=child):
            yield from dependencies(child)
    yield frozenset(relation.identity), frozenset(relation.columns)


def closure(known: Iterable[str], rules: Iterable[Dependency]) -> frozenset[str]:
    """The columns and all that depend on them; what depends on nothing is left out."""
    found = set(known)
    rules = [rule for rule in rules if rule[0]]
    while more := [rule for rule in rules if rule[0] <= found and not rule[1] <= found]:
        found.update(*(determined for _, determined in more))
    return frozenset(found)


def without_dependents(columns: tuple[str, ...], rules: Iterable[Dependency]) -> tuple[str, ...]:
    """The first of the columns on which all of them depend."""
    rules = list(rules)
    kept = list(columns)
    for column in reversed(columns):
        rest = [each for each in kept if each != column]
        if column in closure(rest, rules):
            kept = rest
    return tuple(kept)


def _of_side(side: Relation, *, may_be_missing: bool) -> Iterator[Dependency]:
    if not may_be_missing:
        yield from dependencies(side)
        return
    safe = never_null(side)  # where these are NULL, the whole side is
    yield from (rule for rule in dependencies(side) if rule[0] & safe)
