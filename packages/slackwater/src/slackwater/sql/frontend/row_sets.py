"""Rows that are computed: VALUES, table functions, `unnest` in a select list, and queries that read no table.

They are elements of lists (:class:`Unnest`) of the one row of :class:`OneRow`. Expressions may use columns of
the row for which they are computed (LATERAL): the rows that have these columns then replace the one row.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import UnionType
from typing import Final

import duckdb

from slackwater.sql.duckdb_sql import identifier, literal
from slackwater.sql.frontend.context import BindContext, Environment, NamedColumn, NamedRelation, NameScope
from slackwater.sql.frontend.expressions import ExpressionBinder, compared_by
from slackwater.sql.frontend.syntax import Item, Node, Query, Refused
from slackwater.sql.frontend.text import Splice
from slackwater.sql.frontend.time_windows import FORMS
from slackwater.sql.logical import (
    AggregateCall,
    Expression,
    Extend,
    Filter,
    OneRow,
    Relation,
    Scan,
    Span,
    Unnest,
    children,
)
from slackwater.sql.rendering import render_within_row

Rows = tuple[Relation, NamedRelation]

_LISTS: Final[Mapping[str, str]] = {
    "unnest": "{0}",
    "generate_series": "generate_series({all})",
    "range": "range({all})",
    "generate_subscripts": "generate_series(1, array_length({all}))",
    "regexp_split_to_table": "string_split_regex({0}, {1})",
    "string_to_table": "string_split({0}, {1})",
    "json_array_elements": "CAST({0} AS JSON[])",
    "jsonb_array_elements": "CAST({0} AS JSON[])",
    "json_array_elements_text": "json_extract_string({0}, '$[*]')",
    "jsonb_array_elements_text": "json_extract_string({0}, '$[*]')",
    "json_object_keys": "json_keys({0})",
    "jsonb_object_keys": "json_keys({0})",
}
"""Functions that return rows, and the lists of their values."""
_JSON = ("key", "value", "type", "atom", "id", "parent", "fullkey", "path")
_JSON_FUNCTIONS = frozenset({"json_each", "json_tree"})
_FUNCTIONS = f"Supported are tables, TUMBLE, HOP, and {', '.join(sorted({*_LISTS, *_JSON_FUNCTIONS}))}"
_FILLED = "Write generate_series(…) AS g(time) LEFT JOIN (SELECT … GROUP BY …) s ON s.time = g.time"


def values(environment: Environment, item: Item) -> Rows:
    """Returns the rows of VALUES."""
    binder = _row_binder(environment, "VALUES")
    columns = zip(*([binder.sql(each) for each in row] for row in item.values), strict=True)
    span = environment.place(item.start, item.end)
    lists = [_expression(binder, f"[{', '.join(column)}]", span) for column in columns]
    names = [f"col{number}" for number in range(len(lists))]
    return _elements(environment, item, lists, names)


def table_function(environment: Environment, item: Item) -> Rows:
    """Returns the rows of a function in FROM.

    Raises:
        SqlTextError: It is not a function whose rows follow from its arguments alone.
    """
    function = item.function
    assert function is not None  # noqa: S101 - the parser's word
    name, nodes = function.function, function.arguments
    binder = _row_binder(environment, "a function in FROM")
    if name not in _LISTS and name not in _JSON_FUNCTIONS:
        problem = f"{name} is not supported in FROM"
        raise environment.error(item, problem, _FILLED if name == "gap_fill" else _FUNCTIONS)
    arguments = [binder.sql(each) for each in nodes]
    span = environment.place(item.start, item.end)
    if name in _JSON_FUNCTIONS:
        rows = f"(SELECT list(e ORDER BY e.id) FROM {name}({', '.join(arguments)}) AS e)"  # noqa: S608
        return _elements(environment, item, [_expression(binder, rows, span)], list(_JSON))
    form = _form(environment, function, item)
    end = environment.text.closing(environment.text.structure.find("(", item.start)) + 1
    written = [environment.text.code[each.start : each.end] for each in nodes]
    environment.splices.append(Splice(item.start, end, f"unnest({_filled(form, written)})"))
    if not item.alias:
        environment.splices.append(Splice(item.end, item.end, f" AS {identifier(name)}"))
    unnested = _expression(binder, _filled(form, arguments), span)
    return _elements(environment, item, [unnested], [item.alias or name])


@dataclass
class Unnests:
    """The lists in a select list, or in GROUP BY, whose elements become rows."""

    binder: ExpressionBinder
    _lists: dict[str, tuple[str, Expression]] = field(default_factory=dict)
    ordinal: str = ""

    def value(self, node: Node) -> str:
        """Returns the id of a list's elements.

        Raises:
            SqlTextError: The list is not supported.
        """
        binder = self.binder
        with binder.reading(node.function):
            form = _form(binder.environment, node, node)
            sql = _filled(form, [binder.sql(each) for each in node.arguments])
        self.ordinal = self.ordinal or binder.context.new_id("ordinality")
        if sql not in self._lists:
            self._lists[sql] = (binder.context.new_id(), binder.placed(node, sql))
        return identifier(self._lists[sql][0])

    def applied(self, relation: Relation) -> Relation:
        """Returns the rows, each once for every element.

        Raises:
            SqlTextError: The value is no list.
        """
        if not self._lists:
            return relation
        lists, names = tuple(self._lists.values()), tuple(name for name, _ in self._lists.values())
        context, extended = self.binder.context, Extend(relation, lists)
        types: tuple[str, ...] = ()
        with suppress(duckdb.Error):  # DuckDB reports others when it binds the text
            types = () if row_columns(extended) else context.types(extended, names)
        for (_, each), of_type in zip(lists, types, strict=False):
            if not of_type.endswith("]"):
                problem, hint = (
                    f"a value of type {of_type} is not a list",
                    "Name the fields of a struct: s.field",
                )
                raise self.binder.environment.error(each.span, problem, hint)
        return Unnest(relation, lists, self.ordinal)


def reads_tables(query: Query) -> bool:
    """Whether a query, or a query within it, reads anything that has a name."""
    return any(
        isinstance(part, Refused)
        or (isinstance(part, Item) and part.kind == "BASE_TABLE")
        or (isinstance(part, Item) and part.function is not None and part.function.function in FORMS)
        for part in _parts(query)
    )


def is_computed(relation: Relation) -> bool:
    """Whether a relation reads no table."""
    return isinstance(relation, OneRow) or (
        not isinstance(relation, Scan) and all(map(is_computed, children(relation)))
    )


def row_columns(relation: Relation) -> frozenset[str]:
    """Returns the columns of the row that a relation is computed for: what it reads, but does not have."""
    own = {column for each in _below(relation) for column in each.columns}
    read = {
        column
        for each in _below(relation)
        for part in _expressions(tuple(vars(each).values()))
        for column in part.columns
    }
    return frozenset(read - own)


def as_elements(
    context: BindContext, relation: Relation, span: Span, *, keeps_empty: bool = False
) -> Relation:
    """Returns a relation that reads no table as filtered and computed elements of one row.

    With `keeps_empty`, there is a row of NULLs if there is none otherwise.
    """
    if keeps_empty and isinstance(relation, Unnest) and isinstance(relation.child, OneRow):
        return replace(relation, keeps_empty=True)
    if _is_stack(relation, Extend) or (not keeps_empty and _is_stack(relation, Extend | Filter | Unnest)):
        return relation
    keys = {name: literal(str(number)) for number, name in enumerate(relation.columns)}
    struct = ", ".join(f"{key}: {identifier(name)}" for name, key in keys.items())
    order = f" ORDER BY {', '.join(map(identifier, relation.identity))}" if relation.identity else ""
    sql = f"(SELECT list({{{struct}}}{order}) FROM ({render_within_row(relation, relation.columns)}))"  # noqa: S608
    rows = Expression(sql, tuple(sorted(row_columns(relation))), span)
    _hide(context, relation, relation.columns)
    element = context.new_id()
    unnested = Unnest(OneRow(), ((element, rows),), context.new_id("ordinality"), keeps_empty)
    return _extracted(unnested, element, keys, span)


def computed_for(relation: Relation, rows: Relation) -> Relation:
    """Returns elements of one row as those of other rows, which have all columns that they need."""
    if isinstance(relation, OneRow):
        return rows
    assert isinstance(relation, Extend | Filter | Unnest)  # noqa: S101 - see `as_elements`
    return replace(relation, child=computed_for(relation.child, rows))


def value_within_row(binder: ExpressionBinder, node: Node) -> str:
    """Returns a subquery that reads no table as an expression over the rows that a binder knows."""
    assert node.query is not None  # noqa: S101 - it is a subquery
    result = binder.context.bind_query(node.query, replace(binder.environment, row=binder.column))
    _hide(binder.context, result.relation, ())
    rows = render_within_row(result.relation, [column.id for column in result.columns])
    kind = node.raw["subquery_type"]
    if kind == "ANY":
        (left,) = node.children
        return f"({binder.sql(left)} {compared_by(binder, node)} ANY ({rows}))"
    return f"(EXISTS ({rows}))" if kind == "EXISTS" else f"({rows})"


def _hide(context: BindContext, relation: Relation, shown: tuple[str, ...]) -> None:
    context.hidden.update({column for each in _below(relation) for column in each.columns} - set(shown))


def _row_binder(environment: Environment, clause: str) -> ExpressionBinder:
    """Returns a binder that knows only the columns of the row that something is computed for."""
    binder = ExpressionBinder(environment, NameScope(environment.text, (), ()), {}, None)
    binder.clause = clause
    return binder


def _form(environment: Environment, function: Node, place: Node | Item) -> str:
    """Returns the form of a function's list.

    Raises:
        SqlTextError: It has no such form with these arguments.
    """
    form, number = _LISTS.get(function.function, ""), len(function.arguments)
    if not form or (number != (2 if "{1}" in form else 1) and (not number or "{all}" not in form)):
        problem = f"{function.function} is not supported with {number} arguments"
        raise environment.error(place, problem, "Write unnest(list), with one list")
    return form


def _filled(form: str, arguments: list[str]) -> str:
    return form.format(*arguments, all=", ".join(arguments))


def _expression(binder: ExpressionBinder, sql: str, span: Span) -> Expression:
    return Expression(sql, binder.context.columns_of(sql), span)


def _elements(environment: Environment, item: Item, lists: list[Expression], names: list[str]) -> Rows:
    context = environment.context
    ids = [context.new_id(name) for name in _named(item, names)]
    ordinal = context.new_id("ordinality")
    if len(lists) == len(ids):
        unnested: Relation = Unnest(OneRow(), tuple(zip(ids, lists, strict=True)), ordinal)
    else:
        element = context.new_id()
        keys = dict(zip(ids, map(literal, names), strict=True))
        unnested = _extracted(Unnest(OneRow(), ((element, lists[0]),), ordinal), element, keys, lists[0].span)
    wanted = [*names, "ordinality"] if item.with_ordinality else names
    columns = tuple(map(NamedColumn, _named(item, wanted), [*ids, ordinal]))
    alias = item.alias or (item.function.function if item.function is not None else "")
    return unnested, NamedRelation(alias, ((alias.lower(),),), columns, None)


def _extracted(unnested: Unnest, element: str, keys: Mapping[str, str], span: Span) -> Relation:
    of_struct = (
        (name, Expression(f"struct_extract({identifier(element)}, {key})", (element,), span))
        for name, key in keys.items()
    )
    return Extend(unnested, tuple(of_struct))


def _named(item: Item, names: list[str]) -> list[str]:
    return [*item.columns, *names[len(item.columns) :]][: len(names)]


def _is_stack(relation: Relation, kinds: type | UnionType) -> bool:
    while isinstance(relation, kinds):
        (relation,) = children(relation)
    return isinstance(relation, OneRow)


def _parts(part: object) -> Iterator[object]:
    yield part
    below = tuple(part.values()) if isinstance(part, Mapping) else part
    if is_dataclass(part):
        below = tuple(getattr(part, each.name) for each in fields(part) if each.name != "raw")
    for each in below if isinstance(below, tuple) else ():
        yield from _parts(each)


def _below(relation: Relation) -> Iterator[Relation]:
    yield relation
    for child in children(relation):
        yield from _below(child)


def _expressions(part: object) -> Iterator[Expression | AggregateCall]:
    if isinstance(part, Expression | AggregateCall):
        yield part
    for each in part if isinstance(part, tuple) else ():
        yield from _expressions(each)
