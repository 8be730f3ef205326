"""Aggregates that are maintained from changes: what is kept, what a change adds, and the result.

Counts are kept as a number, sums and averages of integers and decimals as number of values and exact sum, and
min, max, bool_and, bool_or, count(DISTINCT x), median and quantiles as the distinct values, ordered, each
with its count. arg_min, arg_max, first and last are kept as one value per row, in the order of the rows. All
others, and sums of floats (adding a float cannot be undone), are computed from all rows of a group.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from slackwater.sql.catalog import carried
from slackwater.sql.duckdb_sql import identifier, literal
from slackwater.sql.logical import Aggregate, AggregateCall, Expression, SortKey, TopN
from slackwater.sql.plan import (
    ACCUMULATORS_TABLE,
    LSN,
    MULTISETS,
    POINT,
    STEPS_TABLE,
    WEIGHT,
    Accumulator,
    AccumulatorKind,
    Quantile,
)
from slackwater.sql.planner.quantiles import QUANTILES, interpolated, quantile_of
from slackwater.sql.rendering import AT

TypeOf = Callable[[Expression], str]
"""DuckDB type of an expression over the aggregate's child."""

_INTEGERS = frozenset(
    {
        "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT",
        "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
    }
)  # fmt: skip
_DECIMAL = re.compile(r"DECIMAL\(\d+,(\d+)\)")
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_ASCENDING = "'ASC NULLS LAST'"
_NESTED_JSON = re.compile(r"\bJSON[\[\],)]")
"""Texts of lists and structs of JSON cannot be read back."""

UNORDERED = re.compile(r"\b(INTERVAL|TIME WITH TIME ZONE|UNION|VARIANT)\b")
"""DuckDB's sort key differs for values that are equal in SQL, or its text cannot be read back."""


def has_order(of_type: str) -> bool:
    """Returns whether values of a DuckDB type can be kept in order, as texts."""
    return not UNORDERED.search(of_type) and not _NESTED_JSON.search(of_type)


_MULTISET_OF = {
    "min": AccumulatorKind.MIN,
    "max": AccumulatorKind.MAX,
    "bool_and": AccumulatorKind.MIN,
    "bool_or": AccumulatorKind.MAX,
}
_BY_ANOTHER = {
    **dict.fromkeys(("arg_min", "argmin", "min_by"), "ASC NULLS LAST"),
    **dict.fromkeys(("arg_max", "argmax", "max_by"), "DESC NULLS LAST"),
}
"""Functions that take a value from the first row in this order of another value."""

_BY_ORDER = {
    "first": AccumulatorKind.MIN,
    "any_value": AccumulatorKind.MIN,
    "arbitrary": AccumulatorKind.MIN,
    "last": AccumulatorKind.MAX,
}


@dataclass(frozen=True, slots=True)
class AccumulatorInput:
    """An accumulator and the values that are added to it.

    Attributes:
        value: SQL of the value that a row adds; empty for count(*).
        condition: SQL that must hold for a row to count.
        columns: Ids that value and condition read.
        sort_key: SQL of the sort key of a row, if values are ordered by it and not by themselves.
    """

    accumulator: Accumulator
    value: str
    condition: str
    columns: tuple[str, ...]
    sort_key: str = ""


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The accumulators that keep an aggregate, and its results over them.

    Attributes:
        results: SQL of each call's result over the accumulators' columns, by id.
    """

    kept: tuple[AccumulatorInput, ...]
    results: tuple[tuple[str, str], ...]

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """As in the stage's plan."""
        return tuple(each.accumulator for each in self.kept)

    @property
    def is_top(self) -> bool:
        """Whether it keeps the rows of its groups in order."""
        return any(each.accumulator.kind is AccumulatorKind.TOP for each in self.kept)


def accumulation(aggregate: Aggregate, type_of: TypeOf) -> Accumulation | None:
    """Returns how to maintain the aggregate without its rows; None if some call needs them."""
    builder = _Builder(type_of)
    results = []
    for name, call in aggregate.calls:
        result = builder.result(call)
        if result is None:
            return None
        results.append((name, result))
    return Accumulation(tuple(builder.kept), tuple(results))


def top_accumulation(top: TopN, columns: Sequence[tuple[str, str]], *, is_ranked: bool) -> Accumulation:
    """Returns how to maintain the first rows; the columns of the result are given with their DuckDB types."""
    by_user = [f"{value.sql}, '{direction}'" for value, direction in top.order]
    # The text makes every sort key a BLOB, and ends the part that rows of equal rank share.
    shared = ", ".join([*by_user, f"'', {_ASCENDING}"])
    own = "".join(f", {identifier(each)}, {_ASCENDING}" for each in top.child.identity)
    types = [carried(of_type) for _, of_type in columns]
    is_tied = top.ranks.function != "row_number"
    tied = f"octet_length(create_sort_key({shared}))" if is_tied else "0"
    wire = [of.wire_expression(identifier(name)) for (name, _), of in zip(columns, types, strict=True)]
    accumulator = Accumulator(AccumulatorKind.TOP, "a row", 0, 0, top.ranks, tuple(types), is_ranked)
    names = [name for name, _ in columns]
    read = (*names, *top.child.identity, *(column for each in top.read for column in each.columns))
    kept = AccumulatorInput(
        accumulator,
        value=f"CAST(json_array({', '.join([tied, *wire])}) AS VARCHAR)",
        condition="",
        columns=tuple(dict.fromkeys(read)),
        sort_key=f"create_sort_key({shared}{own})",
    )
    values = (of.duckdb_expression(f"a0_{number}") for number, of in enumerate(types))
    return Accumulation((kept,), ((top.rank, "a0"), *zip(names, values, strict=True)))


def partials_statement(
    relation_sql: str, groups: Sequence[str], kept: Sequence[AccumulatorInput], wire: Sequence[str]
) -> str:
    """Returns SQL for what changed rows add to groups, see :mod:`slackwater.sql.plan`.

    The relation is a SELECT of the point, the groups and the columns that the accumulators read; `wire` is
    SQL for the wire value of each group.
    """
    grouped = "".join(f", {identifier(name)}" for name in groups)
    key = ", ".join(wire)
    totals = list(_totals(kept))
    shown = "".join(f", {sql} AS {name}" for name, sql in totals)
    named = [name for name, _ in totals]
    row = ", ".join(part for part in (key, "n", *named) if part)
    changed = " OR ".join(["n <> 0", *(f"coalesce(CAST({name} AS VARCHAR), '0') <> '0'" for name in named)])
    parts = [
        f"SELECT {LSN} AS lsn, -1 AS number, CAST(json_array({row}) AS VARCHAR) AS row FROM ("  # noqa: S608
        f"SELECT {LSN}{grouped}, CAST(sum({WEIGHT}) AS BIGINT) AS n{shown} FROM d GROUP BY {LSN}{grouped}"
        f") WHERE {changed}"
    ]
    for number, each in enumerate(kept):
        if each.accumulator.multiset == number:
            of_multiset = _ordered_part if each.sort_key else _multiset_part
            parts.append(of_multiset(number, each, grouped, key))
    return (
        f"WITH d AS MATERIALIZED (SELECT s.{LSN}, s.{WEIGHT}, r.* FROM ({relation_sql}) AS r "  # noqa: S608
        f"JOIN {STEPS_TABLE} AS s ON s.{POINT} = r.{AT}) " + " UNION ALL ".join(parts)
    )


def accumulated_relation(
    groups: Sequence[tuple[str, str]], accumulation: Accumulation, wanted: Sequence[str], *, is_global: bool
) -> str:
    """Returns a SELECT of the point and the wanted columns of an aggregate, from its accumulators.

    Each group has the SQL of its value from its transport column ``k<i>``. A global group exists even without
    rows.
    """
    values = dict(groups) | dict(accumulation.results)
    shown = "".join(f", {values[name]} AS {identifier(name)}" for name in wanted)
    there = "" if is_global else " WHERE n > 0"
    return f"SELECT {POINT} AS {AT}{shown} FROM {ACCUMULATORS_TABLE}{there}"  # noqa: S608 - own names


@dataclass(frozen=True, slots=True)
class _Builder:
    _type_of: TypeOf
    kept: list[AccumulatorInput] = field(default_factory=list)

    def result(self, call: AggregateCall) -> str | None:
        if call.function == "count":
            return self._count(call)
        if call.function in _BY_ANOTHER and len(call.arguments) == 2:
            return self._by_another(call)
        if call.function in QUANTILES:
            return self._quantile(call)
        if len(call.arguments) != 1:
            return None
        if call.function in _MULTISET_OF:
            return self._extreme(call, _MULTISET_OF[call.function])
        if call.function in _BY_ORDER:
            condition = f"({call.arguments[0].sql}) IS NOT NULL" if call.function == "any_value" else ""
            return self._ordered(call, _BY_ORDER[call.function], call.orders, condition)
        if call.function in {"sum", "avg", "mean"} and not call.is_distinct:
            return self._sum(call)
        return None

    def _count(self, call: AggregateCall) -> str | None:
        if not call.is_distinct:
            return f"a{self._keep(AccumulatorKind.COUNT, call)}"
        if len(call.arguments) != 1 or UNORDERED.search(self._type_of(call.arguments[0])):
            return None
        return f"a{self._keep(AccumulatorKind.DISTINCT, call, self._comparable(call.arguments[0]))}"

    def _extreme(self, call: AggregateCall, kind: AccumulatorKind) -> str | None:
        of_type = self._type_of(call.arguments[0])
        if not has_order(of_type):
            return None
        number = self._keep(kind, call, self._comparable(call.arguments[0]))
        return f"CAST(a{number} AS {of_type})"

    def _by_another(self, call: AggregateCall) -> str | None:
        value, other = call.arguments
        orders = ((other, _BY_ANOTHER[call.function]), *call.orders)
        condition = f"({value.sql}) IS NOT NULL AND ({other.sql}) IS NOT NULL"
        return self._ordered(call, AccumulatorKind.MIN, orders, condition)

    def _ordered(
        self,
        call: AggregateCall,
        kind: AccumulatorKind,
        orders: Sequence[SortKey],
        condition: str,
    ) -> str | None:
        """Keeps the values in the order of their rows, which `orders` determines."""
        value = call.arguments[0]
        of_type = self._type_of(value)
        if call.is_distinct or not has_order(of_type) or not all(self._has_order(each) for each, _ in orders):
            return None
        sort_keys = [f"{self._comparable(each)}, {literal(modifier)}" for each, modifier in orders]
        # An update of the value alone moves it to another place of the multiset.
        order = ", ".join((*sort_keys, f"CAST({value.sql} AS VARCHAR), 'ASC NULLS LAST'"))
        text = f"coalesce('=' || CAST({value.sql} AS VARCHAR), '')"
        number = self._keep(kind, call, text, condition=condition, sort_key=f"create_sort_key({order})")
        return f"CASE WHEN a{number} <> '' THEN CAST(substr(a{number}, 2) AS {of_type}) END"

    def _quantile(self, call: AggregateCall) -> str | None:
        found = quantile_of(call)
        if found is None or not self._has_order(found.value):
            return None
        of_type = self._type_of(found.value)
        shown = []
        counted = self._keep(AccumulatorKind.COUNT, call, found.value.sql)
        for fraction in found.fractions:
            quantile = Quantile(fraction, counted, found.is_discrete, found.is_descending)
            sql = interpolated(quantile, of_type)
            if sql is None:
                return None
            number = self._keep(
                AccumulatorKind.QUANTILE, call, self._comparable(found.value), quantile=quantile
            )
            shown.append(sql.replace("#", f"a{number}"))
        result = f"[{', '.join(shown)}]" if found.is_list else shown[0]
        return f"CASE WHEN a{counted} > 0 THEN {result} END"

    def _has_order(self, each: Expression) -> bool:
        return has_order(self._type_of(each))

    def _sum(self, call: AggregateCall) -> str | None:
        argument = call.arguments[0]
        of_type = self._type_of(argument)
        decimal = _DECIMAL.fullmatch(of_type)
        if of_type not in _INTEGERS and decimal is None:
            return None
        scale = int(decimal[1]) if decimal else 0
        number = self._keep(AccumulatorKind.SUM, call, argument.sql, scale)
        total = f"CAST(a{number} AS {f'DECIMAL(38,{scale})' if decimal else 'HUGEINT'})"
        if call.function == "sum":
            return f"CASE WHEN a{number}_n > 0 THEN {total} END"
        return f"CASE WHEN a{number}_n > 0 THEN CAST({total} AS DOUBLE) / a{number}_n END"

    def _comparable(self, argument: Expression) -> str:
        # -0.0 equals 0.0, but has another text.
        return f"({argument.sql}) + 0.0" if self._type_of(argument) in _FLOATS else argument.sql

    def _keep(
        self,
        kind: AccumulatorKind,
        call: AggregateCall,
        value: str = "",
        scale: int = 0,
        *,
        condition: str = "",
        sort_key: str = "",
        quantile: Quantile | None = None,
    ) -> int:
        if not value and call.arguments:
            value = call.arguments[0].sql
        if call.condition is not None:
            condition = f"{condition} AND ({call.condition.sql})" if condition else call.condition.sql
        multiset = -1
        for number, each in enumerate(self.kept):
            if (each.value, each.condition, each.sort_key) == (value, condition, sort_key):
                if (each.accumulator.kind, each.accumulator.quantile) == (kind, quantile):
                    return number
                if kind in MULTISETS and each.accumulator.multiset >= 0:
                    multiset = each.accumulator.multiset
        if kind in MULTISETS and multiset < 0:
            multiset = len(self.kept)
        accumulator = Accumulator(kind, call.text, scale, multiset, quantile=quantile)
        self.kept.append(AccumulatorInput(accumulator, value, condition, call.columns, sort_key))
        return len(self.kept) - 1


def _totals(kept: Sequence[AccumulatorInput]) -> Iterator[tuple[str, str]]:
    """Yields columns of the sums that a change adds, in the order of the wire row."""
    for number, each in enumerate(kept):
        counted = _counted(each)
        if each.accumulator.kind is AccumulatorKind.COUNT:
            yield f"t{number}", f"coalesce(CAST(sum({WEIGHT}){counted} AS BIGINT), 0)"
        elif each.accumulator.kind is AccumulatorKind.SUM:
            yield f"t{number}_n", f"coalesce(CAST(sum({WEIGHT}){counted} AS BIGINT), 0)"
            added = f"coalesce(sum({each.value}){_counted(each, f'{WEIGHT} > 0')}, 0)"
            taken = f"coalesce(sum({each.value}){_counted(each, f'{WEIGHT} < 0')}, 0)"
            yield f"t{number}", f"CAST(nullif({added} - {taken}, 0) AS VARCHAR)"


def _counted(each: AccumulatorInput, further: str = "") -> str:
    conditions = [f"({each.value}) IS NOT NULL"] if each.value else []
    conditions += [f"({each.condition})"] if each.condition else []
    conditions += [further] if further else []
    return f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""


def _multiset_part(number: int, each: AccumulatorInput, grouped: str, key: str) -> str:
    condition = f" AND ({each.condition})" if each.condition else ""
    row = ", ".join(
        part for part in (key, "hex(create_sort_key(x, 'ASC NULLS LAST'))", "CAST(x AS VARCHAR)", "m") if part
    )
    return (
        f"SELECT {LSN} AS lsn, {number} AS number, CAST(json_array({row}) AS VARCHAR) AS row FROM ("  # noqa: S608
        f"SELECT {LSN}{grouped}, x, CAST(sum({WEIGHT}) AS BIGINT) AS m FROM ("
        f"SELECT {LSN}, {WEIGHT}{grouped}, {each.value} AS x FROM d "
        f"WHERE ({each.value}) IS NOT NULL{condition}) GROUP BY {LSN}{grouped}, x HAVING sum({WEIGHT}) <> 0)"
    )


def _ordered_part(number: int, each: AccumulatorInput, grouped: str, key: str) -> str:
    condition = f" WHERE {each.condition}" if each.condition else ""
    row = ", ".join(part for part in (key, "hex(s)", "x", "m") if part)
    return (
        f"SELECT {LSN} AS lsn, {number} AS number, CAST(json_array({row}) AS VARCHAR) AS row FROM ("  # noqa: S608
        f"SELECT {LSN}{grouped}, s, x, CAST(sum({WEIGHT}) AS BIGINT) AS m FROM ("
        f"SELECT {LSN}, {WEIGHT}{grouped}, {each.sort_key} AS s, {each.value} AS x "
        f"FROM d{condition}) "
        f"GROUP BY {LSN}{grouped}, s, x HAVING sum({WEIGHT}) <> 0)"
    )
