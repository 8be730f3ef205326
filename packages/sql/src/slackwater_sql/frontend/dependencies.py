"""Facts about a relation's columns: those that never are NULL, and those on which others depend."""

from collections.abc import Iterable, Iterator, Mapping

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

_NO_READS: Mapping[str, Iterable[str]] = {}


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
    """Yields the dependencies that hold between the columns of the relation's rows."""
    match relation:
        case Scan() | Aggregate() | Union():
            yield frozenset(relation.identity), frozenset(relation.columns)
        case Join(kind=kind, left=left, right=right):
            yield from _of_side(left, may_be_missing=kind is JoinKind.FULL)
            if not kind.keeps_left_only:
                yield from _of_side(right, may_be_missing=kind is not JoinKind.INNER)
        case Extend(child=child, computed=computed):
            yield from dependencies(child)
            for determiners, determined in dependencies(child):
                made = {name for name, each in computed if set(each.columns) <= determined}
                yield determiners, determined | made
        case Filter(child=child) | Window(child=child):
            yield from dependencies(child)
    yield frozenset(relation.identity), frozenset(relation.columns)


def closure(known: Iterable[str], rules: Iterable[Dependency]) -> frozenset[str]:
    """Returns the columns and all that depend on them; what depends on nothing is left out."""
    found = set(known)
    rules = [rule for rule in rules if rule[0]]
    while more := [rule for rule in rules if rule[0] <= found and not rule[1] <= found]:
        found.update(*(determined for _, determined in more))
    return frozenset(found)


def without_dependents(
    columns: tuple[str, ...], rules: Iterable[Dependency], reads: Mapping[str, Iterable[str]] = _NO_READS
) -> tuple[str, ...]:
    """Returns the first of the columns on which all of them depend.

    Values that are equal need not be the same (0.0 and -0.0), so what is computed from a column depends only
    on what determines that column.

    Args:
        columns: The columns.
        rules: What is known of the rows.
        reads: For columns that are computed, from what.
    """
    rules = [rule for rule in rules if rule[0]]
    kept = list(columns)
    for column in reversed(columns):
        rest = [each for each in kept if each != column]
        known = closure(rest, rules)
        determined = {each for rule in rules if rule[0] <= known for each in rule[1]}
        if set(reads.get(column, (column,))) <= determined:
            kept = rest
    return tuple(kept)


def _of_side(side: Relation, *, may_be_missing: bool) -> Iterator[Dependency]:
    if not may_be_missing:
        yield from dependencies(side)
        return
    safe = never_null(side)  # where these are NULL, the whole side is
    yield from (rule for rule in dependencies(side) if rule[0] & safe)
