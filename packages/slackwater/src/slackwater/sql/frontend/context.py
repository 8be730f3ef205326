"""The context in which queries are bound: the names that they can see, and the bound queries themselves."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from slackwater.sql.catalog import Catalog, Table, similar
from slackwater.sql.duckdb_sql import identifier, literal
from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend.syntax import CommonTable, Item, Node, Query, Select, SetOperation
from slackwater.sql.frontend.text import Splice, ViewText
from slackwater.sql.logical import AggregateCall, Expression, Extend, Relation, Span
from slackwater.sql.rendering import render_over_tables


@dataclass(frozen=True, slots=True)
class NamedColumn:
    """A column that can be named.

    Attributes:
        name: Its name as declared or given; empty if it has none.
    """

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class NamedRelation:
    """A relation to which FROM gives a name.

    Attributes:
        qualifiers: What may precede a column's name, in lower case.
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
        for each in self.fields:
            sql = f"struct_extract({sql}, {literal(each)})"
        return sql


@dataclass(frozen=True, slots=True)
class NameScope:
    """The names that FROM provides.

    Attributes:
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
        found = self.resolve_parts(node.names)
        if found is None or (found.fields and found.source is not None and found.source.table is not None):
            self._refuse(node, found)
        return found

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
        source = next((each for each in self.sources if column in each.columns), None)
        return ResolvedColumn(column.id, column.name, names[1:], source)

    def source(self, qualifier: Iterable[str]) -> NamedRelation | None:
        """Returns the relation of this name."""
        lower = tuple(name.lower() for name in qualifier)
        return next((each for each in self.sources if lower in each.qualifiers), None)

    def unknown(self, node: Node) -> SqlTextError:
        """Returns the error for a name that means nothing."""
        if len(node.names) == 1 and self.sources:
            if self.source(node.names) is not None:
                return self.error(
                    node, "a whole row is not supported as a value", "Name the columns: {'a': t.a, …}"
                )
            return self._unknown_column(node, node.names[0], self.sources)
        if not self.sources:
            hint = "Only columns of tables that FROM names before can be used here"
            return self.error(node, f"{'.'.join(node.names)} is not known here", hint)
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

    def refuse_unsupported(self, table: Table | None, name: str, node: Node) -> None:
        """Refuses columns of unsupported types.

        Raises:
            SqlTextError: The column has an unsupported type.
        """
        column = next((each for each in table.columns if each.name.lower() == name), None) if table else None
        if table is not None and column is not None and not column.type.is_supported:
            problem = f"column {column.name} of {table.full_name} has the type {column.type}: "
            raise self.error(node, problem + column.type.reason, column.type.hint)

    def _refuse(self, node: Node, found: ResolvedColumn | None) -> None:
        """Raises the error of a name that is wrong; returns if it merely means nothing here."""
        for length in (2, 1):
            source = self.source(node.names[:length]) if len(node.names) > length else None
            if source is not None and not _named(source.columns, node.names[length]):
                self.refuse_unsupported(source.table, node.names[length].lower(), node)
                raise self._unknown_column(node, node.names[length], (source,))
        if found is not None:
            hint = "Use a function to take a part of its value"
            raise self.error(node, f"column {found.name} has no fields", hint)
        name = node.names[0].lower()
        if _named(self.visible, name):
            choices = " or ".join(
                f"{each.alias}.{name}" for each in self.sources if _named(each.columns, name)
            )
            raise self.error(node, f"column {name} is ambiguous", f"Write {choices}")
        for each in self.sources:
            self.refuse_unsupported(each.table, name, node)

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


_ID = re.compile(r'"(c\d+)"')
_ID_LIKE = re.compile(r"\bc(\d{1,9})\b", re.IGNORECASE)

_CLAUSE_HINTS = {
    "LIMIT of a percentage": "Write a number of rows",
    "ORDER BY or LIMIT after another LIMIT": "Write the inner query in FROM: SELECT … FROM (SELECT …) AS q",
}

Step = Callable[[Relation], Relation]


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """A query's rows.

    Attributes:
        relation: The tree, which may have more columns than the query.
        columns: The query's columns, in select order.
        spans: Where each was written.
    """

    relation: Relation
    columns: tuple[NamedColumn, ...]
    spans: tuple[Span, ...]


@dataclass
class BindContext:
    """The context that a view shares with all views it reads.

    Attributes:
        connection: Has the tables in use, without rows.
        views: The pipeline's other views by lower-case name.
        bind_query: Builds the tree of a query that is not a subquery of an expression.
        bind_other_view: Builds the tree of another view that FROM names.
        bind_subquery: Builds the tree of a query that may use columns of the rows that a binder knows.
        labels: The user's names for the ids.
        sorted: Ids of columns of queries that have ORDER BY.
        queries: How many queries have been read so far; a query that is read twice counts twice.
        first_id: The smallest number that is free for an id.
        hidden: Ids that only occur within expressions, in queries that read no table.
    """

    connection: duckdb.DuckDBPyConnection
    catalog: Catalog
    views: Mapping[str, ViewText]
    bind_query: Callable[["Query", "Environment"], BoundQuery]
    bind_other_view: Callable[[str, "Environment", Span], BoundQuery]
    bind_subquery: Callable[[Any, "Query", "OuterRows | None"], "BoundSelect"]
    labels: dict[str, str] = field(default_factory=dict)
    sorted: set[str] = field(default_factory=set)
    queries: int = 0
    hidden: set[str] = field(default_factory=set)
    _used: int = 0
    _tables: dict[str, str] = field(default_factory=dict)

    first_id: int = 1

    def reserve(self, text: ViewText) -> None:
        """Never assigns an id that could occur in this text or in those of the other views."""
        texts = [text.text, *(each.text for each in self.views.values())]
        written = [int(digits) for each in texts for digits in _ID_LIKE.findall(each)]
        self._used = max(written, default=0)
        self.first_id = self._used + 1

    def columns_of(self, sql: str) -> tuple[str, ...]:
        """Returns the ids in the SQL without duplicates."""
        written = dict.fromkeys(_ID.findall(sql))
        numbered = (each for each in written if self.first_id <= int(each[1:]) <= self._used)
        return tuple(each for each in numbered if each not in self.hidden)

    def new_id(self, label: str = "") -> str:
        """Returns an id that no other column has and that occurs in no text."""
        self._used += 1
        if label:
            self.labels[f"c{self._used}"] = label
        return f"c{self._used}"

    def union_identity(self, length: int) -> tuple[str, ...]:
        """Returns ids for the number of a branch, and for each part of the identity of its rows."""
        rows = ["row", *(f"row_{number + 1}" for number in range(1, length))]
        return tuple(self.new_id(label) for label in ("branch", *rows[:length]))

    def create_table(self, table: Table) -> str:
        """Creates the table in the connection, without rows.

        Returns the full name of another table that DuckDB cannot distinguish from it; empty if there is none.
        """
        known = self._tables.setdefault(table.full_name.lower(), "")
        if known:
            return "" if known == table.full_name else known
        self._tables[table.full_name.lower()] = table.full_name
        self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {identifier(table.schema)}")
        columns = ", ".join(
            f"{identifier(each.name)} {each.type.duckdb if each.type.is_supported else 'VARCHAR'}"
            for each in table.columns
        )
        name = f"{identifier(table.schema)}.{identifier(table.name)}"
        self.connection.execute(f"CREATE TABLE {name} ({columns})")
        return ""

    def types(self, relation: Relation, ids: tuple[str, ...]) -> tuple[str, ...]:
        """Returns DuckDB types of columns of a relation."""
        columns = ", ".join(identifier(each) for each in ids)
        statement = f"SELECT {columns} FROM (\n{render_over_tables(relation)}\n)"  # noqa: S608 - our own names
        return tuple(str(each) for each in self.connection.sql(statement).types)


@dataclass(frozen=True, slots=True)
class OuterRows:
    """A copy of the rows of the query around a subquery, which the subquery joins with its own rows.

    Attributes:
        ids: The copy's column for each column of the outer query.
        equal: What identifies a row of the outer query, compared with the same of the copy.
        missing: Columns of the outer query that the subquery names and the copy lacks.
    """

    relation: Relation
    ids: Mapping[str, str]
    equal: tuple[tuple[Expression, Expression], ...]
    missing: list[str] = field(default_factory=list)

    @property
    def identity(self) -> tuple[Expression, ...]:
        """The columns that identify a row of the copy."""
        return tuple(
            Expression(identifier(self.ids[column]), (self.ids[column],), left.span, left.text)
            for left, _ in self.equal
            for column in left.columns
        )


@dataclass(frozen=True, slots=True)
class BoundSelect:
    """The rows of a SELECT whose select list is not computed yet.

    Attributes:
        names: Names of the columns; empty for those without one.
        items: The columns over the rows.
        equal: For a subquery: expressions over the outer query, and what they must equal here.
        residual: For a subquery: other conditions over both.
        calls: The aggregates, if there is no GROUP BY: then there is one row even if there are no rows.
        is_bare: Whether nothing but the aggregation is applied to the groups.
        outer: For a subquery: columns that have the values of columns of the outer query, with these.
    """

    relation: Relation
    names: tuple[str, ...]
    items: tuple[Expression, ...]
    equal: tuple[tuple[Expression, Expression], ...] = ()
    residual: tuple[Expression, ...] = ()
    calls: tuple[tuple[str, AggregateCall], ...] | None = None
    is_bare: bool = True
    outer: tuple[tuple[str, str], ...] = ()

    @property
    def is_correlated(self) -> bool:
        """Whether it uses columns of the outer query."""
        return bool(self.equal or self.residual)

    def computed(self, context: BindContext) -> BoundQuery:
        """Returns the rows with all columns of the select list."""
        new: list[tuple[str, Expression]] = []
        columns: list[NamedColumn] = []
        for name, item in zip(self.names, self.items, strict=True):
            column = item.column
            if column is None:
                column = next((known for known, each in new if each.sql == item.sql), None)
            if column is None:
                column = context.new_id()
                new.append((column, item))
            columns.append(NamedColumn(name, column))
        relation = Extend(self.relation, tuple(new)) if new else self.relation
        return BoundQuery(relation, tuple(columns), tuple(each.span for each in self.items))


@dataclass(frozen=True, slots=True)
class CommonQuery:
    """A query in WITH and the names that it can see."""

    definition: CommonTable
    environment: "Environment"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a query is, and the names that it can see besides tables.

    Attributes:
        name: Lower-case name of the view that it belongs to.
        span: The place in the view's own text, if this is another view's text.
        commons: Queries of WITH by lower-case name.
        splices: Replacements that let DuckDB bind the text, collected on the way.
        reading: Lower-case names of this view and of the views that read it.
        lateral: For a subquery in FROM: names of the tables beside it and around it, for messages.
        row: Returns SQL for a name of the row for which FROM, or the whole query, is computed; None if it has
            no such column.
    """

    context: BindContext
    text: ViewText
    name: str
    span: Span | None
    commons: Mapping[str, CommonQuery]
    splices: list[Splice]
    reading: tuple[str, ...]
    lateral: NameScope | None = None
    row: Callable[[Node], str | None] | None = None

    def place(self, start: int, end: int) -> Span:
        """Returns the span of the characters `[start, end)`, in the view's own text."""
        return self.span or Span(max(start, 0), max(end, 0))

    def error(self, at: Node | Item | Span, problem: str, hint: str) -> SqlTextError:
        """Returns an error at the place of a part of the query."""
        return self.text.error(at.start, at.end, problem, hint)

    def refuse_clauses(self, query: Select | SetOperation) -> None:
        """Refuses clauses that no query of a view may have.

        Raises:
            SqlTextError: The query has one.
        """
        for clause, start in query.refused:
            hint = _CLAUSE_HINTS.get(
                clause, "Supported are SELECT, FROM, WHERE, GROUP BY, HAVING, QUALIFY, ORDER BY and LIMIT"
            )
            raise self.text.error(start, start, f"{clause} is not supported", hint)

    def with_commons(self, definitions: tuple[CommonTable, ...]) -> "Environment":
        """Returns a copy that sees the queries of a WITH; each of them sees those before it."""
        environment = self
        for each in definitions:
            commons = {**environment.commons, each.name.lower(): CommonQuery(each, environment)}
            environment = replace(environment, commons=commons)
        return environment
