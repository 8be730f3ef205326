"""The one key of a view: the columns on which its tables are joined and by which it is grouped."""

from collections.abc import Iterator
from dataclasses import dataclass

from slackwater_sql.errors import ViewError
from slackwater_sql.resolution import Input, Reference, Scope
from slackwater_sql.syntax import Expression, Select

_SUPPORTED = (
    "Supported: every table is joined by equality of one common key (… JOIN b ON b.key = a.key), "
    "and the view is grouped by that key"
)

Node = tuple[int, str]
"""Input number and column name."""


@dataclass(frozen=True, slots=True)
class ViewKey:
    """The key of a view.

    Attributes:
        columns: Per input, the names of its key columns, in the order of the view's key.
        groups: The columns of GROUP BY that make the key.
        dependents: Inputs of which each key has at most one row, so that their columns may stand outside of
            aggregates: GROUP BY holds their primary key.
        grouped: All columns of GROUP BY.
        equalities: The comparisons in ON that join by the key.
    """

    columns: tuple[tuple[str, ...], ...]
    groups: tuple[Reference, ...]
    dependents: frozenset[int]
    grouped: tuple[Reference, ...]
    equalities: tuple[tuple[Reference, Reference], ...]

    @property
    def root(self) -> int:
        """An input that is never filled with NULL."""
        return self.groups[0].input


def view_key(scope: Scope, select: Select) -> ViewKey:
    """The key of the view.

    Raises:
        ViewError: The view is not grouped by the one key that joins all its tables.
    """
    grouped = tuple(_group_reference(scope, group) for group in _checked_groups(scope, select))
    equalities = tuple(tuple(_equalities(scope, each.condition)) for each in scope.inputs)
    classes = _Classes(pair for pairs in equalities for pair in pairs)
    parts = _key_parts(scope, grouped, classes)
    columns = tuple(
        tuple(classes.member(part, number) for part in parts) for number in range(len(scope.inputs))
    )
    joining = tuple(
        pair
        for number, each in enumerate(scope.inputs)
        for pair in _joining(scope, each, number, equalities[number], columns)
    )
    _check_key_types(scope, parts, columns)
    dependents = frozenset(
        number for number, each in enumerate(scope.inputs) if _holds_primary_key(each, number, grouped)
    )
    _refuse_further_groups(scope, grouped, parts, dependents, classes)
    return ViewKey(columns, parts, dependents, grouped, joining)


class _Classes:
    """Columns that the view's joins make equal."""

    def __init__(self, pairs: Iterator[tuple[Reference, Reference]]) -> None:
        self._class_of: dict[Node, list[Node]] = {}
        for left, right in pairs:
            merged = self.of(left) + [node for node in self.of(right) if node not in self.of(left)]
            for node in merged:
                self._class_of[node] = merged

    def of(self, reference: Reference) -> list[Node]:
        node = (reference.input, reference.column.name)
        return self._class_of.get(node, [node])

    def covers(self, reference: Reference, inputs: int) -> bool:
        return {number for number, _ in self.of(reference)} == set(range(inputs))

    def member(self, reference: Reference, number: int) -> str:
        """The column of this input that is equal to the reference."""
        if reference.input == number:
            return reference.column.name
        return next(name for owner, name in self.of(reference) if owner == number)


def _checked_groups(scope: Scope, select: Select) -> tuple[Expression, ...]:
    if not select.is_plain_grouping:
        at = select.groups[0] if select.groups else select.items[-1]
        raise scope.error(at, "GROUP BY ALL, ROLLUP, CUBE and GROUPING SETS are not supported", _SUPPORTED)
    if not select.groups:
        raise scope.error(select.source, "the view has no GROUP BY", _SUPPORTED)
    return select.groups


def _group_reference(scope: Scope, group: Expression) -> Reference:
    reference = scope.reference(group)
    if reference is None and group.kind == "COLUMN_REF":
        named = scope.aliases[group.names[0].lower()]
        found = scope.reference(named)
        reference = None if found is None else Reference(group, found.input, found.column)
    if reference is None:
        raise scope.error(group, "GROUP BY holds something else than a column", _SUPPORTED)
    return reference


def _equalities(scope: Scope, condition: Expression | None) -> Iterator[tuple[Reference, Reference]]:
    """The comparisons `a.x = b.y` of different inputs that must hold for a row to be joined."""
    if condition is None:
        return
    if condition.operator == "CONJUNCTION_AND":
        for child in condition.children:
            yield from _equalities(scope, child)
    elif condition.operator == "COMPARE_EQUAL":
        left, right = (scope.reference(side) for side in condition.children)
        if left is not None and right is not None and left.input != right.input:
            yield left, right


def _key_parts(scope: Scope, grouped: tuple[Reference, ...], classes: _Classes) -> tuple[Reference, ...]:
    """The columns of GROUP BY that key all inputs, reduced to a primary key if one is among them."""
    for group in grouped:
        if scope.inputs[group.input].is_left_joined:
            problem = f"{_name(scope, group)} is NULL where the LEFT JOIN finds no row, so it is no key"
            raise scope.error(group.expression, problem, "Group by the column on the left side of the join")
    covering = tuple(group for group in grouped if classes.covers(group, len(scope.inputs)))
    if not covering:
        raise _not_joined(scope, grouped[0], classes)
    for number, each in enumerate(scope.inputs):
        own = {group.column.name: group for group in covering if group.input == number}
        if each.table.primary_key and set(each.table.primary_key) <= set(own):
            return tuple(own[name] for name in each.table.primary_key)
    distinct: dict[int, Reference] = {}
    for group in covering:
        distinct.setdefault(id(classes.of(group)) if len(scope.inputs) > 1 else id(group), group)
    return tuple(distinct.values())


def _not_joined(scope: Scope, group: Reference, classes: _Classes) -> ViewError:
    covered = {number for number, _ in classes.of(group)}
    missing = next(number for number in range(len(scope.inputs)) if number not in covered)
    each = scope.inputs[missing]
    problem = f"{each.alias} is not joined by equality with {_name(scope, group)}, the column of GROUP BY"
    return scope.error(each.condition or group.expression, problem, _SUPPORTED)


def _joining(
    scope: Scope,
    each: Input,
    number: int,
    equalities: tuple[tuple[Reference, Reference], ...],
    columns: tuple[tuple[str, ...], ...],
) -> Iterator[tuple[Reference, Reference]]:
    """The equalities of this input's ON that compare its key with an earlier input's."""
    if each.condition is None:
        return
    matched = set()
    for left, right in equalities:
        positions = [
            position
            for position in range(len(columns[number]))
            if columns[left.input][position] == left.column.name
            and columns[right.input][position] == right.column.name
        ]
        if positions and number in {left.input, right.input}:
            matched.update(positions)
            yield left, right
    if len(matched) < len(columns[number]):
        names = ", ".join(columns[number])
        problem = (
            f"the condition does not compare the key ({names}) of {each.alias} with that of a table before it"
        )
        raise scope.error(each.condition, problem, _SUPPORTED)


def _check_key_types(
    scope: Scope, parts: tuple[Reference, ...], columns: tuple[tuple[str, ...], ...]
) -> None:
    for position, part in enumerate(parts):
        for number, each in enumerate(scope.inputs):
            column = each.table.column(columns[number][position])
            if (
                column is None
                or not column.type.is_key_safe
                or column.type.wire_family != part.column.type.wire_family
            ):
                name = f"{each.alias}.{columns[number][position]}"
                problem = f"{name} of type {'' if column is None else column.type} cannot be the key"
                hint = "Keys are smallint, integer, bigint, text, varchar, enum or uuid, alike in all tables"
                raise scope.error(part.expression, problem, hint)


def _holds_primary_key(each: Input, number: int, grouped: tuple[Reference, ...]) -> bool:
    names = {group.column.name for group in grouped if group.input == number}
    return bool(each.table.primary_key) and set(each.table.primary_key) <= names


def _refuse_further_groups(
    scope: Scope,
    grouped: tuple[Reference, ...],
    parts: tuple[Reference, ...],
    dependents: frozenset[int],
    classes: _Classes,
) -> None:
    """One key must give one row: a further column of GROUP BY must have one value per key."""
    for group in grouped:
        is_equal_to_key = any((group.input, group.column.name) in classes.of(part) for part in parts)
        if group not in parts and not is_equal_to_key and group.input not in dependents:
            keys = ", ".join(_name(scope, part) for part in parts)
            problem = f"grouping by {_name(scope, group)} too would give several rows for one key ({keys})"
            raise scope.error(group.expression, problem, _SUPPORTED)


def _name(scope: Scope, reference: Reference) -> str:
    return f"{scope.inputs[reference.input].alias}.{reference.column.name}"
