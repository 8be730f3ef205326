"""TUMBLE and HOP in FROM: a table's rows, each in the windows of time to which it belongs.

As in RisingWave and Flink, windows are counted from 1970-01-01, include their start, and exclude their end. A
row without a time has no window: TUMBLE returns it with NULL, HOP does not return it.
"""

from contextlib import suppress
from dataclasses import replace

import duckdb

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.frontend.context import Environment, NamedColumn, NamedRelation, NameScope
from slackwater.sql.frontend.expressions import ExpressionBinder
from slackwater.sql.frontend.syntax import Item, Node
from slackwater.sql.frontend.text import Splice
from slackwater.sql.logical import Expression, Extend, Relation, Unnest

FORMS = {"tumble": "TUMBLE(table, column, size)", "hop": "HOP(table, column, slide, size)"}
_BUCKET = "time_bucket({slide}, {time}, TIMESTAMP '1970-01-01'{offset})"
_FIRST = "time_bucket({slide}, {time} - {size}, TIMESTAMP '1970-01-01'{offset}) + {slide}"
_STARTS = f"generate_series({_FIRST}, {_BUCKET}, {{slide}})"


def windowed(
    environment: Environment, item: Item, relation: Relation, source: NamedRelation
) -> tuple[Relation, NamedRelation]:
    """Returns the rows of a table, or of a query, with the columns ``window_start`` and ``window_end``.

    Raises:
        SqlTextError: The column is not one of the table, or an interval is not a positive constant.
    """
    function = item.function
    assert function is not None  # noqa: S101 - it is a call
    scope = NameScope(environment.text, (source,), source.columns)
    binder = ExpressionBinder(environment, scope, {}, None)
    table, time, *intervals = function.arguments
    is_hop = function.function == "hop"
    for each in intervals[: 1 + is_hop]:
        _refuse_empty(binder, each)
    context, span = environment.context, environment.place(item.start, item.end)
    with binder.reading("a window of time"):
        sql = [binder.sql(each) for each in (time, *intervals)]
    start, end, ordinal = (context.new_id(name) for name in ("window_start", "window_end", "ordinality"))

    def computed(form: str) -> Expression:
        text = _filled(form, sql, is_hop=is_hop)
        return Expression(text, context.columns_of(text), span)

    size = _filled("{size}", sql, is_hop=is_hop)
    ends = Expression(f"{identifier(start)} + {size}", (start,), span)
    if is_hop:
        relation = Unnest(relation, ((start, computed(_STARTS)),), ordinal)
    else:
        relation = Extend(relation, ((start, computed(_BUCKET)),))
    columns = (*source.columns, NamedColumn("window_start", start), NamedColumn("window_end", end))
    alias = item.alias or source.alias or function.function
    _point_to(environment, item, table, alias, is_hop=is_hop)
    named = NamedRelation(alias, ((alias.lower(),),), columns, source.table)
    return Extend(relation, ((end, ends),)), named


def table_of(environment: Environment, item: Item) -> Item:
    """Returns the table, or the query, whose rows are put into windows, as an item of FROM.

    Raises:
        SqlTextError: The call has another form.
    """
    function = item.function
    assert function is not None  # noqa: S101 - it is a call
    arguments, form = function.arguments, FORMS[function.function]
    is_plain = not item.columns and not item.with_ordinality and len(arguments) - form.count(",") in {1, 2}
    if not is_plain or not (arguments[0].names or arguments[0].query):
        problem = f"{function.function} needs a table, a column and constant intervals"
        raise environment.error(item, problem, f"Write {form}, or {form[:-1]}, offset)")
    table = arguments[0]
    schema, name = ("", *table.names)[-2:] if table.names else ("", item.alias)
    kind = "BASE_TABLE" if table.names else "SUBQUERY"
    place = replace(item, kind=kind, start=table.start, end=table.end, alias="", function=None)
    return replace(place, schema=schema, name=name, query=table.query)


def _refuse_empty(binder: ExpressionBinder, interval: Node) -> None:
    with binder.reading("the interval of a window of time"):
        sql = binder.sql(interval)
    hint = "Write a positive constant: INTERVAL '5 minutes'"
    if binder.context.columns_of(sql):
        raise binder.error(interval, "the interval of a window of time is not constant", hint)
    row = None
    with suppress(duckdb.Error):
        positive = f"SELECT CAST({sql} AS INTERVAL) > INTERVAL 0 SECOND"
        row = binder.context.connection.execute(positive).fetchone()
    if row != (True,):
        raise binder.error(interval, "the interval of a window of time is not positive", hint)


def _filled(form: str, sql: list[str], *, is_hop: bool) -> str:
    time, *intervals = (f"({each})" for each in sql)
    offset = "".join(f" + CAST({each} AS INTERVAL)" for each in intervals[1 + is_hop :])
    return form.format(time=time, slide=intervals[0], size=intervals[is_hop], offset=offset)


def _point_to(environment: Environment, item: Item, table: Node, alias: str, *, is_hop: bool) -> None:
    """Makes DuckDB read a query that means the same."""
    function, text = item.function, environment.text
    assert function is not None  # noqa: S101 - it is a call
    written = [text.code[each.start : each.end] for each in function.arguments[1:]]
    form = f"unnest({_STARTS})" if is_hop else _BUCKET
    starts = _filled(form, written, is_hop=is_hop)
    size = _filled("{size}", written, is_hop=is_hop)
    within = f"SELECT *, {starts} AS window_start FROM "  # noqa: S608
    before = f"(SELECT *, window_start + {size} AS window_end FROM ({within}"  # noqa: S608
    closing = text.closing(text.structure.find("(", item.start)) + 1
    after = "))" if item.alias else f")) AS {identifier(alias)}"
    environment.splices.extend([Splice(item.start, table.start, before), Splice(table.end, closing, after)])
