"""What all parts of a view's tree are built with."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import duckdb

from slackwater_sql.catalog import Catalog, Table
from slackwater_sql.document import identifier
from slackwater_sql.errors import ViewError
from slackwater_sql.frontend.plain import plain
from slackwater_sql.frontend.scope import Scope, Visible
from slackwater_sql.frontend.syntax import CommonTable, Query
from slackwater_sql.frontend.text import Splice, ViewText
from slackwater_sql.logical import Relation, Span

_ID = re.compile(r'"(c\d+)"')
_ID_LIKE = re.compile(r"\bc(\d{1,9})\b", re.IGNORECASE)

Step = Callable[[Relation], Relation]


@dataclass(frozen=True, slots=True)
class Result:
    """A query's rows.

    Attributes:
        relation: The tree; it may have more columns.
        columns: The query's columns, in select order.
        spans: Where each was written.
    """

    relation: Relation
    columns: tuple[Visible, ...]
    spans: tuple[Span, ...]


@dataclass
class Build:
    """What is common to a view and all views it reads.

    Attributes:
        connection: Has the tables in use, without rows.
        catalog: The declared tables.
        views: The pipeline's other views by lower-case name.
        make_query: Builds the tree of a query that stands by itself.
        make_view: Builds the tree of another view, which a place in FROM names.
        labels: What the user calls the ids.
        queries: How many were read so far, each as often as it is.
        first_id: Number of the first id that is free.
    """

    connection: duckdb.DuckDBPyConnection
    catalog: Catalog
    views: Mapping[str, ViewText]
    make_query: Callable[["Query", "Environment"], Result]
    make_view: Callable[[str, "Environment", Span], Result]
    labels: dict[str, str] = field(default_factory=dict)
    queries: int = 0
    _used: int = 0
    _tables: set[str] = field(default_factory=set)

    first_id: int = 1

    def reserve(self, text: ViewText) -> None:
        """Never give out an id that could be written in this text or in those of the other views."""
        texts = [text.sql, *(each.sql for each in self.views.values())]
        written = [int(digits) for each in texts for digits in _ID_LIKE.findall(each)]
        self._used = max(written, default=0)
        self.first_id = self._used + 1

    def columns_of(self, sql: str) -> tuple[str, ...]:
        """The ids in the SQL, each once."""
        written = dict.fromkeys(_ID.findall(sql))
        return tuple(each for each in written if self.first_id <= int(each[1:]) <= self._used)

    def new_id(self, label: str = "") -> str:
        """An id that no other column has and that occurs in no text."""
        self._used += 1
        if label:
            self.labels[f"c{self._used}"] = label
        return f"c{self._used}"

    def union_identity(self, length: int) -> tuple[str, ...]:
        """Ids for the number of a branch and as many parts of its rows' identity."""
        rows = ["row", *(f"row_{number + 1}" for number in range(1, length))]
        return tuple(self.new_id(label) for label in ("branch", *rows[:length]))

    def make_table(self, table: Table) -> None:
        """Let the connection have the table, without rows."""
        if table.full_name in self._tables:
            return
        self._tables.add(table.full_name)
        self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {identifier(table.schema)}")
        columns = ", ".join(
            f"{identifier(each.name)} {each.type.duckdb if each.type.is_supported else 'VARCHAR'}"
            for each in table.columns
        )
        name = f"{identifier(table.schema)}.{identifier(table.name)}"
        self.connection.execute(f"CREATE TABLE {name} ({columns})")

    def types(self, relation: Relation, ids: tuple[str, ...]) -> tuple[str, ...]:
        """DuckDB types of columns of a relation."""
        columns = ", ".join(identifier(each) for each in ids)
        statement = f"SELECT {columns} FROM (\n{plain(relation)}\n)"  # noqa: S608 - our own names
        return tuple(str(each) for each in self.connection.sql(statement).types)


@dataclass(frozen=True, slots=True)
class Common:
    """A query of WITH and what it can see."""

    definition: CommonTable
    environment: "Environment"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a query stands.

    Attributes:
        build: What is common to all.
        text: The text it stands in.
        name: Lower-case name of the view it belongs to.
        span: The place in the view's own text, if this is another view's text.
        commons: Queries of WITH by lower-case name.
        splices: Replacements that let DuckDB bind the text; collected.
        reading: Lower-case names of the views that read this one, and its own.
        lateral: For a subquery in FROM: names of the tables beside it and around, for messages.
    """

    build: Build
    text: ViewText
    name: str
    span: Span | None
    commons: Mapping[str, Common]
    splices: list[Splice]
    reading: tuple[str, ...]
    lateral: Scope | None = None

    def place(self, start: int, end: int) -> Span:
        """The span of the characters `[start, end)`, in the view's own text."""
        return self.span or Span(max(start, 0), max(end, 0))

    def error(self, start: int, end: int, problem: str, hint: str) -> ViewError:
        """An error at the characters `[start, end)`; without a place at the text's start."""
        return self.text.error(max(start, 0), max(end, 0), problem, hint)

    def with_commons(self, definitions: tuple[CommonTable, ...]) -> "Environment":
        """The same with the queries of a WITH; each sees those before it."""
        environment = self
        for each in definitions:
            commons = {**environment.commons, each.name.lower(): Common(each, environment)}
            environment = replace(environment, commons=commons)
        return environment
