"""The queries of a suite, and tables whose few values are those that a query asks for."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final

from sqlglot import exp, parse, parse_one

from slackwater_lab.differential.history import DrawnColumn, DrawnTable
from slackwater_lab.differential.query import WORD, View
from slackwater_lab.differential.sql_types import Family, SqlType, Value, parsed

FOLDER: Final = Path(__file__).parent
SUITES: Final = ("tpch", "tpcds", "nexmark")
_FAMILIES = {
    "int": Family.INTEGER,
    "bigint": Family.INTEGER,
    "decimal": Family.DECIMAL,
    "varchar": Family.TEXT,
    "text": Family.TEXT,
    "date": Family.DATE,
    "timestamp": Family.TIMESTAMP,
}
_KEYS = ("1", "2", "3")
_FEW_KEYS = ("1", "2")
"""Where a row has to find rows in many other tables."""
_MANY_TABLES = 5
_DEFAULTS = {
    Family.INTEGER: (*_KEYS, "54"),
    Family.DECIMAL: ("1.50", "20.00", "7.25", "100.00", "50.00"),
    Family.TEXT: ("a", "b", "c"),
    Family.DATE: ("2001-01-10", "2001-02-20", "2001-06-05"),
    Family.TIMESTAMP: tuple(f"2024-05-01 10:0{n % 2}:{n * 7 % 60:02}.{n:03}" for n in range(1, 30)),
}
_COMPARISONS = (
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In, exp.Like, exp.SimilarTo,
)  # fmt: skip
_FAVOUR = 6
"""A value with which a comparison holds is drawn this much more often than another one."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a suite.

    Attributes:
        name: Its name within the suite.
        text: As it is in its file, with the word TRANSACTIONALLY.
        tables: Those that it reads, with the values that it asks for.
    """

    name: str
    text: str
    tables: tuple[DrawnTable, ...]

    @property
    def view(self) -> View:
        """The view that it is."""
        return View(self.name, self.text)


def queries(suite: str, only: Sequence[str] = ()) -> Iterator[Query]:
    """The queries of a suite in the order of their names, all of them or these."""
    schema = {table.name: table for table in _schema((FOLDER / suite / "schema.sql").read_text())}
    for path in sorted((FOLDER / suite).glob("q*.sql")):
        if not only or path.stem in only:
            text = path.read_text()
            tree = parse_one(text.replace(WORD, ""), read="postgres")
            names = {table.name for table in tree.find_all(exp.Table)} & schema.keys()
            yield Query(path.stem, text, _with_values([schema[name] for name in sorted(names)], tree))


def _schema(ddl: str) -> Iterator[DrawnTable]:
    for statement in parse(ddl, read="postgres"):
        if statement is not None:
            columns = list(statement.find_all(exp.ColumnDef))
            key = next(statement.find_all(exp.PrimaryKey)).expressions
            drawn = tuple(_column(each, number) for number, each in enumerate(columns))
            yield DrawnTable(statement.this.this.name, drawn, tuple(each.name for each in key), is_full=True)


def _column(column: exp.ColumnDef, position: int) -> DrawnColumn:
    kind = column.args["kind"]
    family = _FAMILIES[kind.this.value.lower()]
    duckdb = "VARCHAR" if family is Family.TEXT else kind.sql("duckdb").replace(" ", "")
    duckdb = "TIMESTAMP" if family is Family.TIMESTAMP else duckdb
    is_required = any(isinstance(each.kind, exp.NotNullColumnConstraint) for each in column.constraints)
    return DrawnColumn(column.name, SqlType(kind.sql("postgres"), duckdb, family), not is_required, position)


def _with_values(tables: Sequence[DrawnTable], tree: exp.Expr) -> tuple[DrawnTable, ...]:
    asked, groups = _asked(tree)
    keys = {name for table in tables for name in table.primary_key}

    def values(table: DrawnTable, column: DrawnColumn) -> tuple[Value, ...]:
        of_type = column.type
        group = groups.get(column.name, {column.name})
        texts: list[str] = []
        for constant, is_strict in (each for name in sorted(group) for each in asked[name]):
            near = list(_near(constant, of_type.family))
            if is_strict:
                texts += [
                    *(near or _DEFAULTS[of_type.family]) * _FAVOUR,
                    constant,
                    *_DEFAULTS[of_type.family],
                ]
            else:
                texts += [constant] * _FAVOUR + near
        if of_type.family is Family.INTEGER and (group & keys or len(group) > 1):
            texts += (_FEW_KEYS if len(tables) >= _MANY_TABLES else _KEYS) * _FAVOUR
        return _parsed(of_type, texts) or _parsed(of_type, _DEFAULTS[of_type.family])

    def filled(table: DrawnTable) -> DrawnTable:
        columns = (replace(c, type=replace(c.type, values=values(table, c))) for c in table.columns)
        return replace(table, columns=tuple(columns))

    return tuple(map(filled, tables))


def _parsed(of_type: SqlType, texts: Sequence[str]) -> tuple[Value, ...]:
    found: list[Value] = []
    for each in texts:
        with suppress(ValueError, ArithmeticError):
            found.append(parsed(of_type, each))
    return tuple(found)


def _asked(tree: exp.Expr) -> tuple[defaultdict[str, list[tuple[str, bool]]], dict[str, set[str]]]:
    """The constants with which columns are compared, and the columns that are compared with each other.

    A constant is strict if the comparison holds beside it.
    """
    asked: defaultdict[str, list[tuple[str, bool]]] = defaultdict(list)
    groups: dict[str, set[str]] = {}
    for node in tree.find_all(*_COMPARISONS, exp.Alias):
        scope = node.find_ancestor(exp.Select)
        sides = [_columns(side, scope) for side in node.iter_expressions()]
        alike = set().union(*sides)
        query = node.args.get("query")
        if isinstance(node, exp.Alias):
            alike = alike | {node.alias} if len(alike) == 1 and node.find(exp.AggFunc) is None else set()
        elif query is not None:
            alike |= {each.alias_or_name for each in query.this.selects}
        elif [len(side) for side in sides] == [1, 1]:
            shifts = [
                int(each.name) for each in node.find_all(exp.Literal) if isinstance(each.parent, exp.Sub)
            ]
            for name in alike:
                asked[name] += [(str(each), False) for shift in shifts for each in (1, 1 + shift)]
        elif len(alike) == 1:
            asked[alike.pop()] += _constants(node, scope)
        if len(alike) > 1:
            group = alike.union(*(groups.get(name, ()) for name in alike))
            groups.update(dict.fromkeys(group, group))
    return asked, groups


def _columns(part: exp.Expr, scope: exp.Expr | None) -> set[str]:
    return {column.name for column in part.find_all(exp.Column) if column.find_ancestor(exp.Select) is scope}


def _constants(comparison: exp.Expr, scope: exp.Expr | None) -> Iterator[tuple[str, bool]]:
    is_pattern = isinstance(comparison, exp.Like | exp.SimilarTo)
    is_strict = isinstance(comparison, exp.GT | exp.LT | exp.NEQ) or bool(
        comparison.args.get("negate") or isinstance(comparison.parent, exp.Not)
    )
    for literal in comparison.find_all(exp.Literal):
        above = literal.find_ancestor(exp.Interval, exp.Mul, exp.Div, type(comparison))
        if literal.find_ancestor(exp.Select) is scope and above is comparison:
            constant = re.sub("[%_]+", " x ", literal.name).strip() if is_pattern else literal.name
            yield ("-" if isinstance(literal.parent, exp.Neg) else "") + constant, is_strict


def _near(constant: str, family: Family) -> Iterator[str]:
    with suppress(ValueError, ArithmeticError):
        match family:
            case Family.INTEGER | Family.DECIMAL:
                yield str(Decimal(constant) + 1)
                yield str(Decimal(constant) - 1)
            case Family.DATE:
                day = date.fromisoformat(constant)
                yield from (str(day + timedelta(days=days)) for days in (1, 20, -100))
