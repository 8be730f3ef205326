"""Compiling `SELECT TRANSACTIONALLY`.

The SQL is DuckDB's: lists, structs, lambdas, FILTER and all its pure functions. The supported shape is one
SELECT over tables that are joined (inner or left) by equality of one key and grouped by that key; whatever
is computed from the rows of one key may then be arbitrary. The key's columns must be selected as they are;
they name the record key.

Columns outside of aggregates: allowed are the columns of GROUP BY and, as in PostgreSQL, all columns of a
table whose primary key is in GROUP BY, since they have one value per key; DuckDB is given
`any_value(column)` for them.

Order: an aggregate that depends on the order of its rows and has no ORDER BY (`list(x)`, `first(x)`, …) gets
the rows in the order of the primary keys, so that a document never depends on how rows happened to arrive.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

import duckdb
from duckdb.sqltypes import DuckDBPyType

from slackwater_sql.aggregates import order_splices
from slackwater_sql.binding import bind
from slackwater_sql.catalog import Catalog
from slackwater_sql.document import (
    Field,
    UnsupportedOutputError,
    check_output,
    document_expression,
    identifier,
)
from slackwater_sql.errors import ViewError
from slackwater_sql.key import ViewKey, view_key
from slackwater_sql.place import SourceText
from slackwater_sql.plan import InputPlan, KeyColumn, OutputColumn, ViewPlan
from slackwater_sql.refusals import refuse_unsupported
from slackwater_sql.resolution import Reference, Scope, resolve_inputs
from slackwater_sql.session import function_facts, open_connection
from slackwater_sql.statement import MATCH, POINT, Splice, lifted_rows, live_rows, spliced
from slackwater_sql.syntax import Expression, Select, parse_select

FINGERPRINT_VERSION = 1
"""Raised when kept rows or documents of an unchanged view would change."""

_BLANK = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)"
_START = re.compile(rf"\A{_BLANK}*SELECT{_BLANK}+(TRANSACTIONALLY)\b", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\w+|[^\w\s]", re.DOTALL)
_COMMENT = re.compile(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Analysis:
    """All that is known of a view before its types are."""

    name: str
    source: SourceText
    select: Select
    scope: Scope
    key: ViewKey
    names: tuple[str, ...]
    inputs: tuple[InputPlan, ...]
    splices: tuple[Splice, ...]


def compile_view(sql: str, catalog: Catalog, *, path: str) -> ViewPlan:
    """The plan of a view.

    Args:
        sql: The text of the view's file.
        catalog: The declared tables.
        path: The file's name, for messages; its stem is the view's name.

    Raises:
        ViewError: The SQL is outside of what is supported; with the place and what is supported.
    """
    source = SourceText(path, sql)
    with open_connection() as connection:
        analysis = _analysis(connection, source, catalog)
        latest = spliced(*_text_and_splices(analysis, live_rows))
        types = bind(connection, analysis.inputs, source, latest)
    lifted = spliced(*_text_and_splices(analysis, lifted_rows))
    _check_outputs(analysis, types)
    fields = tuple(
        Field(name, f"v.c{number}", output)
        for number, (name, output) in enumerate(zip(analysis.names, types, strict=True))
    )
    outputs = tuple(OutputColumn(field.name, str(field.type)) for field in fields)
    return ViewPlan(
        name=analysis.name,
        sql=sql,
        key=tuple(_key_columns(analysis)),
        inputs=analysis.inputs,
        outputs=outputs,
        latest_statement=_statement(latest.text, fields),
        lifted_statement=_statement(lifted.text, fields),
        fingerprint=_fingerprint(analysis, outputs),
    )


def _analysis(connection: duckdb.DuckDBPyConnection, source: SourceText, catalog: Catalog) -> _Analysis:
    start, end = _keyword(source)
    masked = source.text[:start] + " " * (end - start) + source.text[end:]
    select = parse_select(connection, source, masked)
    refuse_unsupported(source, select)
    inputs = resolve_inputs(source, select, catalog)
    aliases = {item.alias.lower(): item for item in select.items if item.alias}
    scope = Scope(source, inputs, aliases)
    key = view_key(scope, select)
    names = tuple(_output_names(scope, select))
    references = tuple(_all_references(scope, select))
    plans = tuple(_input_plan(scope, key, number, references) for number in range(len(inputs)))
    splices = (
        Splice(start, end, f"{_qualified(scope, key.root, POINT)} AS {POINT},"),
        *_column_splices(scope, select, key, references),
        *order_splices(scope, select, key.dependents),
        *_ending(source, select),
    )
    return _Analysis(PurePath(source.path).stem, source, select, scope, key, names, plans, splices)


def _text_and_splices(
    analysis: _Analysis, rows: Callable[[int, InputPlan], str]
) -> tuple[str, tuple[Splice, ...]]:
    tables = (
        Splice(each.relation.start, each.relation.end, rows(number, plan))
        for number, (each, plan) in enumerate(zip(analysis.scope.inputs, analysis.inputs, strict=True))
    )
    return analysis.source.text, (*analysis.splices, *tables)


def _keyword(source: SourceText) -> tuple[int, int]:
    found = _START.match(source.text)
    if found is None:
        first = re.compile(rf"{_BLANK}*(\w*)", re.DOTALL).match(source.text)
        start, end = first.span(1) if first else (0, 0)
        problem = "a view starts with SELECT TRANSACTIONALLY"
        hint = "It says that every published state is the view of one committed state of the database"
        raise ViewError(source.place(start, end), problem, hint)
    return found.span(1)


def _output_names(scope: Scope, select: Select) -> Iterator[str]:
    seen: set[str] = set()
    for item in select.items:
        reference = scope.reference(item)
        name = item.alias or (reference.column.name if reference is not None else "")
        if not name:
            raise scope.error(item, "this column has no name", "Name it with AS")
        if name.lower() in seen:
            raise scope.error(item, f"the view has two columns called {name}", "Name one differently with AS")
        seen.add(name.lower())
        yield name


def _all_references(scope: Scope, select: Select) -> Iterator[Reference]:
    conditions = (each.condition for each in scope.inputs if each.condition is not None)
    for expression in (*select.expressions(), *conditions):
        yield from scope.references(expression)


def _input_plan(scope: Scope, key: ViewKey, number: int, references: tuple[Reference, ...]) -> InputPlan:
    each = scope.inputs[number]
    table = each.table
    if not table.primary_key:
        hint = "Give it one: rows are told apart by it"
        raise scope.error(each.relation, f"table {table.full_name} has no primary key", hint)
    used = {reference.column.name for reference in references if reference.input == number}
    wanted = used | set(key.columns[number]) | set(table.primary_key)
    columns = tuple(column for column in table.columns if column.name in wanted)
    is_movable = not set(key.columns[number]) <= set(table.primary_key)
    if is_movable and not table.replica_identity_full:
        problem = (
            f"{table.full_name} is joined by {', '.join(key.columns[number])}, which an update may change"
        )
        hint = f"Old rows are needed: ALTER TABLE {table.full_name} REPLICA IDENTITY FULL; in the database"
        raise scope.error(each.relation, problem, hint + " and in the declared schema")
    has_nullable_key = any(column.nullable for column in columns if column.name in key.columns[number])
    only_left_joins = all(other.is_left_joined for other in scope.inputs[1:])
    keeps_null_keys = number == 0 and has_nullable_key and only_left_joins
    return InputPlan(each.alias, table, columns, key.columns[number], is_movable, keeps_null_keys)


def _column_splices(
    scope: Scope, select: Select, key: ViewKey, references: tuple[Reference, ...]
) -> Iterator[Splice]:
    joining = {side.expression.start for pair in key.equalities for side in pair}
    loose = set(_outside_of_aggregates(scope, select, key))
    grouping = {reference.expression.start for reference in key.grouped}
    first_group = key.grouped[0].expression.start
    for reference in {each.expression.start: each for each in (*references, *key.grouped)}.values():
        start, end = reference.expression.start, reference.expression.end
        text = _qualified(scope, reference.input, reference.column.name)
        if start in joining:
            text = _qualified(scope, reference.input, MATCH)
        elif start == first_group:
            text = f"{_qualified(scope, key.root, POINT)}, {text}"
        elif start in loose and start not in grouping:
            text = f"any_value({text})"
        yield Splice(start, end, text)


def _outside_of_aggregates(scope: Scope, select: Select, key: ViewKey) -> Iterator[int]:
    """Starts of the columns that need `any_value`.

    Raises:
        ViewError: A column has no single value per key.
    """
    grouped = {(reference.input, reference.column.name) for reference in key.grouped}
    clauses = [*select.items, *([select.having] if select.having is not None else [])]
    for clause in clauses:
        inside = _inside_aggregates(clause)
        for reference in scope.references(clause):
            start = reference.expression.start
            if start in inside or (reference.input, reference.column.name) in grouped:
                continue
            if reference.input not in key.dependents:
                alias = scope.inputs[reference.input].alias
                problem = f"{alias}.{reference.column.name} can have several values for one key"
                hint = (
                    "Use it in an aggregate such as list(…) or max(…); outside of one, only columns of "
                    "GROUP BY and of tables whose primary key is in GROUP BY are possible"
                )
                raise scope.error(reference.expression, problem, hint)
            yield start


def _inside_aggregates(root: Expression) -> set[int]:
    facts = function_facts()
    return {
        below.start
        for node in root.walk()
        if node.kind == "FUNCTION" and node.function in facts.aggregates
        for below in node.walk()
    }


def _ending(source: SourceText, select: Select) -> Iterator[Splice]:
    """Semicolons after the last expression end the file's statement, not the one it is put into."""
    last = max(node.end for expression in select.expressions() for node in expression.walk())
    for found in re.finditer(";", source.text[last:]):
        yield Splice(last + found.start(), last + found.end(), " ")


def _key_columns(analysis: _Analysis) -> Iterator[KeyColumn]:
    for part in analysis.key.groups:
        for item, name in zip(analysis.select.items, analysis.names, strict=True):
            reference = analysis.scope.reference(item)
            if reference is not None and (reference.input, reference.column) == (part.input, part.column):
                yield KeyColumn(name, part.column.type)
                break
        else:
            column = f"{analysis.scope.inputs[part.input].alias}.{part.column.name}"
            problem = f"the key {column} is not among the selected columns"
            hint = f"Select {column}: its name is the name of the record key"
            raise analysis.scope.error(part.expression, problem, hint)


def _check_outputs(analysis: _Analysis, types: tuple[DuckDBPyType, ...]) -> None:
    for item, output in zip(analysis.select.items, types, strict=True):
        try:
            check_output(output)
        except UnsupportedOutputError as error:
            problem = f"a value of type {error} cannot be written as JSON exactly"
            hint = "Convert it to a text, number, list or struct"
            raise analysis.scope.error(item, problem, hint) from error


def _statement(rows: str, fields: tuple[Field, ...]) -> str:
    columns = ", ".join([POINT, *(f"c{number}" for number in range(len(fields)))])
    return f"SELECT v.{POINT}, {document_expression(fields)}\nFROM (\n{rows}\n) AS v({columns})"


def _qualified(scope: Scope, number: int, column: str) -> str:
    return f"{identifier(scope.inputs[number].alias)}.{identifier(column)}"


def _fingerprint(analysis: _Analysis, outputs: tuple[OutputColumn, ...]) -> str:
    without_comments = _COMMENT.sub(lambda found: found.group(1) or " ", analysis.source.text)
    words = [word if word[0] in "'\"" else word.lower() for word in _WORD.findall(without_comments)]
    meaning = {
        "version": FINGERPRINT_VERSION,
        "words": [word for word in words if word != ";"],
        "inputs": [
            [each.table.full_name, each.key, each.table.primary_key]
            + [[column.name, str(column.type), column.nullable] for column in each.columns]
            for each in analysis.inputs
        ],
        "outputs": [[output.name, output.type] for output in outputs],
    }
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()
