"""The text of a view as a tree of relations.

The SQL is DuckDB's, from its functions to its rules for names. A view starts with `SELECT TRANSACTIONALLY`,
or with `WITH … SELECT TRANSACTIONALLY`; behind that stand SELECT with all joins, WHERE, GROUP BY, HAVING,
QUALIFY, DISTINCT, windows with PARTITION BY, subqueries in FROM, in conditions and as values, WITH, UNION
[ALL], EXCEPT and INTERSECT.

Beyond DuckDB's rules, columns outside of aggregates may depend on GROUP BY as in PostgreSQL. Results never
depend on how rows happen to be ordered: where a function would, it is given the rows' identity as order, and
`any_value` is the smallest value.
"""

from collections.abc import Mapping
from pathlib import PurePath

import duckdb
from duckdb.sqltypes import DuckDBPyType

from slackwater_sql.catalog import Catalog
from slackwater_sql.document import UnsupportedOutputError, check_output, identifier
from slackwater_sql.frontend.binding import bind, bind_view, planned
from slackwater_sql.frontend.build import Build, Environment, Result
from slackwater_sql.frontend.numbering import Numbering
from slackwater_sql.frontend.parsing import parse
from slackwater_sql.frontend.pruning import pruned
from slackwater_sql.frontend.queries import read_query
from slackwater_sql.frontend.scratch import scratch_database
from slackwater_sql.frontend.text import ViewText
from slackwater_sql.logical import LogicalView, Span

_NO_VIEWS: Mapping[str, ViewText] = {}


def read_view(
    sql: str, catalog: Catalog, *, path: str, views: Mapping[str, ViewText] = _NO_VIEWS
) -> LogicalView:
    """The tree of a view.

    Args:
        sql: The text of the view's file.
        catalog: The declared tables.
        path: The file's name, for messages; its stem is the view's name.
        views: The pipeline's views by name, which FROM may name, too.

    Raises:
        ViewError: The SQL is outside of what is supported; with the place and what is supported.
    """
    text = ViewText(sql, path)
    name = PurePath(path).stem
    with scratch_database() as connection, planned(connection, text):
        connection.execute("CREATE SCHEMA __slackwater_views")
        lower = {other.lower(): each for other, each in views.items()}
        build = Build(connection, catalog, lower, read_query, _inlined)
        build.reserve(text)
        environment = Environment(build, text, name.lower(), None, {}, [], (name.lower(),))
        result = read_query(parse(connection, text), environment)
        _check_names(environment, result)
        names, types = bind(connection, text, environment.splices)
        _check_types(environment, result, types)
        _check_meaning(environment, result, names, types)
    needed = frozenset(column.id for column in result.columns)
    numbering = Numbering(build.first_id)
    relation = numbering.relation(pruned(result.relation, needed))
    outputs = tuple((column.name, numbering.ids[column.id]) for column in result.columns)
    labels = {new: build.labels[old] for old, new in numbering.ids.items() if old in build.labels}
    return LogicalView(name, sql, path, relation, outputs, tuple(map(str, types)), labels)


def _inlined(name: str, reader: Environment, span: Span) -> Result:
    """The tree of another view, at the place that names it."""
    build = reader.build
    text = build.views[name]
    environment = Environment(build, text, name, span, {}, [], (*reader.reading, name))
    result = read_query(parse(build.connection, text), environment)
    _check_names(reader, result)
    bind_view(build.connection, text, environment.splices, f"__slackwater_views.{identifier(name)}")
    return result


def _check_names(environment: Environment, result: Result) -> None:
    seen: set[str] = set()
    for column, span in zip(result.columns, result.spans, strict=True):
        if not column.name:
            raise environment.error(span.start, span.end, "this column has no name", "Name it with AS")
        if column.name.lower() in seen:
            problem = f"the view has two columns called {column.name}"
            raise environment.error(span.start, span.end, problem, "Name one differently with AS")
        seen.add(column.name.lower())


def _check_types(environment: Environment, result: Result, types: tuple[DuckDBPyType, ...]) -> None:
    for span, output in zip(result.spans, types, strict=True):
        try:
            check_output(output)
        except UnsupportedOutputError as error:
            problem = f"a value of type {error} cannot be written as JSON exactly"
            hint = "Convert it to a text, number, list or struct"
            raise environment.error(span.start, span.end, problem, hint) from error


def _check_meaning(
    environment: Environment, result: Result, names: tuple[str, ...], types: tuple[DuckDBPyType, ...]
) -> None:
    """The tree has the columns that DuckDB gives to the text itself.

    Raises:
        ViewError: It has not, so the text was understood in another way.
    """
    own_names = tuple(column.name for column in result.columns)
    problem = ""
    try:
        own = environment.build.types(result.relation, tuple(column.id for column in result.columns))
    except duckdb.Error as error:
        problem = f"this query is not understood ({str(error).splitlines()[0]})"
    else:
        wanted = tuple(map(str, types))
        for name, other, one, two in zip(own_names, names, own, wanted, strict=True):
            if (name.lower(), one) != (other.lower(), two):
                problem = f"column {other} of type {two} was understood as {name} of type {one}"
    if problem:
        raise environment.error(0, 0, problem, "Please report it, and write the query in another way")
