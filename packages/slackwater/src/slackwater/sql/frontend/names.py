"""Resolves names: the columns that FROM makes visible, and what each name in an expression means."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from slackwater.sql.catalog import Table, similar
from slackwater.sql.duckdb_sql import identifier, literal
from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend.syntax import Node
from slackwater.sql.frontend.text import ViewText


@dataclass(frozen=True, slots=True)
class NamedColumn:
    """A column that can be named.

    Attributes:
        name: Its name as declared or given; empty if it has none.
        id: Its id.
    """

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class NamedRelation:
    """A relation to which FROM gives a name.

    Attributes:
        alias: The name.
        qualifiers: What may precede a column's name, in lower case.
        columns: Its columns.
        table: The declared table, if it is one.
    """

    alias: str
    qualifiers: tuple[tuple[str, ...], ...]
    columns: tuple[NamedColumn, ...]
    table: Table | None

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return self.table.full_name if self.table is not None else self.alias


@dataclass(frozen=True, slots=True)
class ResolvedColumn:
    """The column that a name means.

    Attributes:
        id: The column.
        name: The name of the column as written there.
        fields: The fields of the struct that follow the column's name.
        source: The relation of the column; None if it was merged by USING.
    """

    id: str
    name: str
    fields: tuple[str, ...]
    source: NamedRelation | None

    @property
    def sql(self) -> str:
        """SQL for the value."""
        sql = identifier(self.id)
        for field in self.fields:
            sql = f"struct_extract({sql}, {literal(field)})"
        return sql


@dataclass(frozen=True, slots=True)
class NameScope:
    """The names that FROM provides.

    Attributes:
        text: The view's text.
        sources: The named relations.
        visible: All columns that can be named without a qualifier, in the order of ``*``.
    """

    text: ViewText
    sources: tuple[NamedRelation, ...]
    visible: tuple[NamedColumn, ...]

    def resolve(self, node: Node) -> ResolvedColumn | None:
        """Returns the column that the name means; None if it means nothing here.

        Raises:
            SqlTextError: It is ambiguous, or the table has no such column, or no view may use it.
        """
        for length in (2, 1):
            if len(node.names) > length:
                source = self.source(node.names[:length])
                if source is not None:
                    return self._column(node, source, length)
        return self._unqualified(node)

    def resolve_parts(self, names: tuple[str, ...]) -> ResolvedColumn | None:
        """Returns the column that the parts of a name mean; None if there is none, or are several."""
        for length in (2, 1):
            source = self.source(names[:length]) if len(names) > length else None
            columns = _named(source.columns, names[length]) if source is not None else []
            if columns:
                return ResolvedColumn(columns[0].id, columns[0].name, names[length + 1 :], source)
        candidates = {each.id: each for each in _named(self.visible, names[0])}
        if len(candidates) != 1:
            return None
        (column,) = candidates.values()
        return ResolvedColumn(column.id, column.name, names[1:], None)

    def source(self, qualifier: Iterable[str]) -> NamedRelation | None:
        """Returns the relation of this name."""
        lower = tuple(name.lower() for name in qualifier)
        return next((each for each in self.sources if lower in each.qualifiers), None)

    def unknown(self, node: Node) -> SqlTextError:
        """Returns the error for a name that means nothing."""
        if len(node.names) == 1:
            if self.source(node.names) is not None:
                return self.error(
                    node, "a whole row is not supported as a value", "Name the columns: {'a': t.a, …}"
                )
            return self._unknown_column(node, node.names[0], self.sources)
        aliases = [each.alias for each in self.sources]
        known = similar(node.names[0], aliases) or aliases
        problem = f"no table in FROM is called {node.names[0]}"
        return self.error(node, problem, f"Did you mean {' or '.join(known)}?")

    def error(self, node: Node, problem: str, hint: str) -> SqlTextError:
        """Returns an error at the place of an expression."""
        return self.text.error(node.start, node.end, problem, hint)

    def joined(self, other: "NameScope") -> "NameScope":
        """Returns the names of both."""
        return replace(self, sources=self.sources + other.sources, visible=self.visible + other.visible)

    def refuse_unsupported(self, table: Table | None, name: str, start: int, end: int) -> None:
        """Refuses columns of unsupported types.

        Raises:
            SqlTextError: The column has an unsupported type.
        """
        column = next((each for each in table.columns if each.name.lower() == name), None) if table else None
        if table is not None and column is not None and not column.type.is_supported:
            problem = f"column {column.name} of {table.full_name} has the type {column.type}: "
            raise self.text.error(start, end, problem + column.type.reason, column.type.hint)

    def _column(self, node: Node, source: NamedRelation, length: int) -> ResolvedColumn:
        name = node.names[length]
        columns = _named(source.columns, name)
        if not columns:
            self.refuse_unsupported(source.table, name.lower(), node.start, node.end)
            raise self._unknown_column(node, name, (source,))
        return self._found(
            node, ResolvedColumn(columns[0].id, columns[0].name, node.names[length + 1 :], source)
        )

    def _unqualified(self, node: Node) -> ResolvedColumn | None:
        name = node.names[0]
        columns = {each.id: each for each in _named(self.visible, name)}
        if len(columns) > 1:
            owners = [each.alias for each in self.sources if _named(each.columns, name)]
            choices = " or ".join(f"{owner}.{name.lower()}" for owner in owners)
            raise self.error(node, f"column {name.lower()} is ambiguous", f"Write {choices}")
        if not columns:
            for each in self.sources:
                self.refuse_unsupported(each.table, name.lower(), node.start, node.end)
            return None
        (column,) = columns.values()
        source = next((each for each in self.sources if column in each.columns), None)
        return self._found(node, ResolvedColumn(column.id, column.name, node.names[1:], source))

    def _found(self, node: Node, found: ResolvedColumn) -> ResolvedColumn:
        if found.fields and found.source is not None and found.source.table is not None:
            problem = f"column {found.name} has no fields"
            raise self.error(node, problem, "Use a function to take a part of its value")
        return found

    def _unknown_column(self, node: Node, name: str, sources: tuple[NamedRelation, ...]) -> SqlTextError:
        tables = ", ".join(each.shown for each in sources)
        names = {
            column.name.lower(): f"{each.alias}.{column.name}" for each in sources for column in each.columns
        }
        likely = similar(name, names)
        hint = (
            f"Did you mean {' or '.join(likely)}?"
            if likely
            else "A view can use only columns that the schema files declare"
        )
        return self.error(node, f"there is no column {name} in {tables}", hint)


def _named(columns: tuple[NamedColumn, ...], name: str) -> list[NamedColumn]:
    return [each for each in columns if each.name.lower() == name.lower()]
