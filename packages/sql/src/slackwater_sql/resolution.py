"""Which input and column each name in a view's SQL means."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from slackwater_sql.catalog import Catalog, Column, Table, similar
from slackwater_sql.errors import ViewError
from slackwater_sql.place import SourceText
from slackwater_sql.session import function_facts
from slackwater_sql.syntax import Expression, Relation, Select
from slackwater_sql.type_names import SUPPORTED_TYPES

_JOINS = "Supported are tables joined with [INNER] JOIN or LEFT JOIN … ON"
_IMPURE_HINT = "A view must depend on nothing but the rows; take the value from a column"


@dataclass(frozen=True, slots=True)
class Input:
    """A base table in FROM.

    Attributes:
        relation: Where it stands.
        table: The declared table.
        is_left_joined: It is the right side of a LEFT JOIN.
        condition: What stands behind ON; None for the first input.
    """

    relation: Relation
    table: Table
    is_left_joined: bool
    condition: Expression | None

    @property
    def alias(self) -> str:
        """The name by which the view calls it."""
        return self.relation.alias


@dataclass(frozen=True, slots=True)
class Reference:
    """A use of an input's column.

    Attributes:
        expression: Where it stands.
        input: Number of the input.
        column: The declared column.
    """

    expression: Expression
    input: int
    column: Column


@dataclass(frozen=True)
class Scope:
    """The names of a view.

    Attributes:
        source: The view's text.
        inputs: The tables in FROM order.
        aliases: Lower-case names given in the select list, with what they stand for.
    """

    source: SourceText
    inputs: tuple[Input, ...]
    aliases: dict[str, Expression] = field(default_factory=dict)

    def error(self, at: Expression | Relation, problem: str, hint: str) -> ViewError:
        """An error at the place of this part of the SQL."""
        return ViewError(self.source.place(at.start, at.end), problem, hint)

    def references(self, root: Expression) -> Iterator[Reference]:
        """All uses of input columns in an expression.

        Raises:
            ViewError: A name means nothing, or more than one thing.
        """
        yield from self._references(root, frozenset())

    def reference(self, expression: Expression) -> Reference | None:
        """The column that this expression plainly is; None if it is something else."""
        if expression.kind != "COLUMN_REF":
            return None
        return self._resolve(expression)

    def _references(self, node: Expression, parameters: frozenset[str]) -> Iterator[Reference]:
        if node.kind == "COLUMN_REF":
            found = None if node.names[0].lower() in parameters else self._resolve(node)
            if found is not None:
                yield found
        if node.kind == "LAMBDA":
            parameters |= {name.lower() for name in node.names}
        for child in node.children:
            yield from self._references(child, parameters)

    def _resolve(self, node: Expression) -> Reference | None:
        names = [name.lower() for name in node.names]
        if len(names) == 1:
            return self._resolve_unqualified(node, names[0])
        number = self._input_number(names[:-1])
        if number is not None:
            return Reference(node, number, self._column(node, number, names[-1]))
        if names[0] in self.aliases:
            return None
        if self._owners(names[0]):
            raise self.error(
                node, f"{node.names[0]} is a column without fields", "Use functions on the column"
            )
        known = similar(names[0], [each.alias for each in self.inputs]) or [
            each.alias for each in self.inputs
        ]
        raise self.error(
            node, f"no table in FROM is called {node.names[0]}", f"Did you mean {' or '.join(known)}?"
        )

    def _resolve_unqualified(self, node: Expression, name: str) -> Reference | None:
        owners = self._owners(name)
        if len(owners) == 1:
            return Reference(node, owners[0], self._column(node, owners[0], name))
        if owners:
            choices = " or ".join(f"{self.inputs[owner].alias}.{name}" for owner in owners)
            raise self.error(node, f"column {name} is ambiguous", f"Write {choices}")
        if name in self.aliases:
            return None
        if function_facts().is_impure(name, 0):
            raise self.error(node, f"{name} depends on more than the rows", _IMPURE_HINT)
        if self._input_number([name]) is not None:
            raise self.error(
                node, "a whole row is not supported as a value", "Name the columns: {'a': t.a, …}"
            )
        raise self._unknown_column(node, name, self.inputs)

    def _owners(self, name: str) -> list[int]:
        return [
            number
            for number, each in enumerate(self.inputs)
            if any(column.name.lower() == name for column in each.table.columns)
        ]

    def _input_number(self, qualifier: list[str]) -> int | None:
        for number, each in enumerate(self.inputs):
            is_alias = qualifier == [each.alias.lower()]
            has_no_alias = each.alias == each.relation.name
            full_name = [each.table.schema.lower(), each.table.name.lower()]
            if is_alias or (has_no_alias and qualifier == full_name):
                return number
        return None

    def _column(self, node: Expression, number: int, name: str) -> Column:
        each = self.inputs[number]
        candidates = [column for column in each.table.columns if column.name.lower() == name]
        exact = [column for column in candidates if column.name == node.names[-1]] or candidates
        if not exact:
            raise self._unknown_column(node, name, (each,))
        column = exact[0]
        if not column.type.is_supported:
            owner = each.table.full_name
            problem = f"column {column.name} of {owner} has the type {column.type}: {column.type.reason}"
            raise self.error(node, problem, f"Supported are {SUPPORTED_TYPES}")
        return column

    def _unknown_column(self, node: Expression, name: str, inputs: tuple[Input, ...]) -> ViewError:
        tables = ", ".join(each.table.full_name for each in inputs)
        names = {
            column.name.lower(): f"{each.alias}.{column.name}"
            for each in inputs
            for column in each.table.columns
        }
        likely = similar(name, names)
        hint = (
            f"Did you mean {' or '.join(likely)}?"
            if likely
            else "Columns are those declared in the schema files"
        )
        return self.error(node, f"there is no column {node.names[-1]} in {tables}", hint)


def resolve_inputs(source: SourceText, select: Select, catalog: Catalog) -> tuple[Input, ...]:
    """The tables of FROM, in order.

    Raises:
        ViewError: Something else than inner and left joins of declared tables.
    """
    inputs = tuple(_inputs(source, select.source, catalog))
    seen: set[str] = set()
    for each in inputs:
        if each.alias.lower() in seen:
            problem = f"two tables are called {each.alias}"
            raise _error(source, each.relation, problem, "Give one of them another alias")
        seen.add(each.alias.lower())
    return inputs


def _inputs(source: SourceText, relation: Relation, catalog: Catalog) -> Iterator[Input]:
    if relation.kind != "JOIN":
        yield Input(relation, _table(source, relation, catalog), is_left_joined=False, condition=None)
        return
    _refuse_unsupported_join(source, relation)
    left, right = relation.inputs
    yield from _inputs(source, left, catalog)
    if right.kind == "JOIN":
        raise _error(source, right, "a join in parentheses is not supported", _JOINS)
    yield Input(
        right,
        _table(source, right, catalog),
        is_left_joined=relation.join_type == "LEFT",
        condition=relation.condition,
    )


def _refuse_unsupported_join(source: SourceText, join: Relation) -> None:
    if join.join_kind == "REGULAR" and join.join_type in {"INNER", "LEFT"} and join.condition is not None:
        return
    if join.using:
        columns = ", ".join(join.using)
        raise _error(source, join, f"USING ({columns}) is not supported", "Write JOIN … ON a.k = b.k")
    what = join.join_type if join.join_kind == "REGULAR" else join.join_kind
    raise _error(source, join, f"{what} JOIN is not supported", _JOINS)


def _table(source: SourceText, relation: Relation, catalog: Catalog) -> Table:
    if relation.kind != "BASE_TABLE":
        what = {"EMPTY": "a SELECT without FROM"}.get(relation.kind, f"{relation.kind} in FROM")
        raise _error(source, relation, f"{what.replace('_', ' ').lower()} is not supported", _JOINS)
    if not relation.is_plain:
        problem = "only a table name and an alias are supported here"
        raise _error(source, relation, problem, _JOINS)
    tables = catalog.find(relation.schema, relation.name)
    name = f"{relation.schema}.{relation.name}" if relation.schema else relation.name
    if len(tables) > 1:
        choices = " or ".join(table.full_name for table in tables)
        raise _error(source, relation, f"table {name} is ambiguous", f"Write {choices}")
    if not tables:
        likely = catalog.similar_names(relation.schema, relation.name)
        hint = (
            f"Did you mean {' or '.join(likely)}?" if likely else "Declare it in tables.sql or schema/*.sql"
        )
        raise _error(source, relation, f"table {name} is not declared", hint)
    return tables[0]


def _error(source: SourceText, relation: Relation, problem: str, hint: str) -> ViewError:
    return ViewError(source.place(relation.start, relation.end), problem, hint)
