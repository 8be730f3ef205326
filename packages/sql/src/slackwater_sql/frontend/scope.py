"""Which column each name means."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from slackwater_sql.catalog import Table, similar
from slackwater_sql.document import identifier, literal
from slackwater_sql.errors import ViewError
from slackwater_sql.frontend.syntax import Node
from slackwater_sql.frontend.text import ViewText
from slackwater_sql.type_names import SUPPORTED_TYPES


@dataclass(frozen=True, slots=True)
class Visible:
    """A column that can be named.

    Attributes:
        name: Its name as declared or given; empty if it has none.
        id: Its id.
    """

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class Source:
    """What FROM calls by a name.

    Attributes:
        alias: The name.
        qualifiers: What may stand before a column's name to mean it, in lower case.
        columns: Its columns.
        table: The declared table, if it is one.
    """

    alias: str
    qualifiers: tuple[tuple[str, ...], ...]
    columns: tuple[Visible, ...]
    table: Table | None

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return self.table.full_name if self.table is not None else self.alias


@dataclass(frozen=True, slots=True)
class Found:
    """What a name means.

    Attributes:
        id: The column.
        name: The name of the column as written there.
        fields: Fields of the struct that the column is.
        source: Where the column is from; None if it was merged by USING.
    """

    id: str
    name: str
    fields: tuple[str, ...]
    source: Source | None

    @property
    def sql(self) -> str:
        """SQL for the value."""
        sql = identifier(self.id)
        for field in self.fields:
            sql = f"struct_extract({sql}, {literal(field)})"
        return sql


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that FROM makes.

    Attributes:
        text: The view's text.
        sources: What was named.
        visible: All columns that may be named without a qualifier, in the order of ``*``.
    """

    text: ViewText
    sources: tuple[Source, ...]
    visible: tuple[Visible, ...]

    def find(self, node: Node) -> Found | None:
        """What the name means; None if it means nothing here.

        Raises:
            ViewError: It means several columns, or one that the table does not have or that no view may use.
        """
        for length in (2, 1):
            if len(node.names) > length:
                source = self.source(node.names[:length])
                if source is not None:
                    return self._column(node, source, length)
        return self._unqualified(node)

    def of_names(self, names: tuple[str, ...]) -> Found | None:
        """What the parts of a name mean; None if nothing or several things."""
        for length in (2, 1):
            source = self.source(names[:length]) if len(names) > length else None
            columns = _named(source.columns, names[length]) if source is not None else []
            if columns:
                return Found(columns[0].id, columns[0].name, names[length + 1 :], source)
        candidates = {each.id: each for each in _named(self.visible, names[0])}
        if len(candidates) != 1:
            return None
        (column,) = candidates.values()
        return Found(column.id, column.name, names[1:], None)

    def source(self, qualifier: Iterable[str]) -> Source | None:
        """What is called so."""
        lower = tuple(name.lower() for name in qualifier)
        return next((each for each in self.sources if lower in each.qualifiers), None)

    def unknown(self, node: Node) -> ViewError:
        """The error for a name that means nothing."""
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

    def error(self, node: Node, problem: str, hint: str) -> ViewError:
        """An error at the place of an expression."""
        return self.text.error(node.start, node.end, problem, hint)

    def joined(self, other: "Scope") -> "Scope":
        """The names of both."""
        return replace(self, sources=self.sources + other.sources, visible=self.visible + other.visible)

    def refuse_unsupported(self, table: Table | None, name: str, start: int, end: int) -> None:
        """Refuse columns of types that no view may use.

        Raises:
            ViewError: The column is such a one.
        """
        column = next((each for each in table.columns if each.name.lower() == name), None) if table else None
        if table is not None and column is not None and not column.type.is_supported:
            problem = f"column {column.name} of {table.full_name} has the type {column.type}: "
            raise self.text.error(
                start, end, problem + column.type.reason, f"Supported are {SUPPORTED_TYPES}"
            )

    def _column(self, node: Node, source: Source, length: int) -> Found:
        name = node.names[length]
        columns = _named(source.columns, name)
        if not columns:
            self.refuse_unsupported(source.table, name.lower(), node.start, node.end)
            raise self._unknown_column(node, name, (source,))
        return self._found(node, Found(columns[0].id, columns[0].name, node.names[length + 1 :], source))

    def _unqualified(self, node: Node) -> Found | None:
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
        return self._found(node, Found(column.id, column.name, node.names[1:], source))

    def _found(self, node: Node, found: Found) -> Found:
        if found.fields and found.source is not None and found.source.table is not None:
            problem = f"{found.name} is a column without fields"
            raise self.error(node, problem, "Use functions on the column")
        return found

    def _unknown_column(self, node: Node, name: str, sources: tuple[Source, ...]) -> ViewError:
        tables = ", ".join(each.shown for each in sources)
        names = {
            column.name.lower(): f"{each.alias}.{column.name}" for each in sources for column in each.columns
        }
        likely = similar(name, names)
        hint = (
            f"Did you mean {' or '.join(likely)}?"
            if likely
            else "Columns are those declared in the schema files"
        )
        return self.error(node, f"there is no column {name} in {tables}", hint)


def _named(columns: tuple[Visible, ...], name: str) -> list[Visible]:
    return [each for each in columns if each.name.lower() == name.lower()]
