"""The SQL of a tree at points.

Every relation gets an additional column, the point (a stage key at a commit LSN) at which its rows are live.
Rows of different points never meet: joins also compare the point, and groups and windows are split by it.
Everything else stays as the user wrote it. Over the tables themselves, without stages, there is one point.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.logical import (
    Aggregate,
    Expire,
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    Leaf,
    OneRow,
    Relation,
    Scan,
    TopN,
    Union,
    Unnest,
    Window,
    spend,
)
from slackwater.sql.plan import FROM_LSN, GROUP, LSN, POINT, POINTS_TABLE, TO_LSN, InputPlan, rows_table

AT = "__slackwater_at"
"""The column of the point."""


@dataclass(frozen=True, slots=True)
class LeafInput:
    """An input that a leaf reads.

    Attributes:
        number: Its number in the stage.
        names: The input's column for each id of the leaf.
    """

    number: int
    plan: InputPlan
    names: Mapping[str, str]


RenderLeaf = Callable[[Leaf, tuple[str, ...]], str]
"""A SELECT of a leaf's point and of these columns."""


def render(relation: Relation, wanted: Iterable[str], leaf: RenderLeaf) -> str:
    """Returns a SELECT of the point and of the wanted columns, in their order."""
    return _Renderer(leaf).select(relation, tuple(dict.fromkeys(wanted)))


def render_within_row(relation: Relation, wanted: Iterable[str]) -> str:
    """Returns a SELECT of columns of a relation that reads no table, for use in an expression over a row.

    Its expressions may use the row's columns.
    """
    rows = _Renderer(_no_leaf, is_within_row=True).select(relation, tuple(dict.fromkeys(wanted)))
    return f"SELECT {columns_sql(wanted).removeprefix(', ') or 'true'} FROM ({rows})"  # noqa: S608


def render_over_tables(relation: Relation) -> str:
    """Returns a query over the tables `"schema"."table"` with the relation's columns under their ids."""
    columns = ", ".join(identifier(name) for name in relation.columns) or "true"
    rows = render(relation, relation.columns, _no_leaf)
    return f"WITH {POINTS_TABLE} AS (SELECT 0 AS {POINT}) SELECT {columns} FROM (\n{rows}\n)"  # noqa: S608


def columns_sql(names: Iterable[str]) -> str:
    """Returns quoted ids, each preceded by a comma."""
    return "".join(f", {identifier(name)}" for name in names)


@dataclass(frozen=True, slots=True)
class _Renderer:
    _leaf: RenderLeaf
    is_within_row: bool = False

    def select(self, relation: Relation, wanted: tuple[str, ...]) -> str:
        spend(1 + len(wanted))
        match relation:
            case Leaf():
                return self._leaf(relation, wanted)
            case Scan() | OneRow():
                return _scan(relation, wanted) if isinstance(relation, Scan) else self._one_row()
            case Extend():
                return self._extend(relation, wanted)
            case Filter() | Expire():
                return self._filter(relation, wanted)
            case Unnest():
                return self._unnest(relation, wanted)
            case Join():
                return self._join(relation, wanted)
            case Aggregate():
                return self._aggregate(relation, wanted)
            case Union():
                branches = range(len(relation.children))
                return " UNION ALL ".join(self._branch(relation, number, wanted) for number in branches)
            case Window() | TopN():
                return self._by_partition(relation, wanted)

    def _extend(self, extend: Extend, wanted: tuple[str, ...]) -> str:
        computed = dict(extend.computed)
        read = (column for name in wanted if name in computed for column in computed[name].columns)
        below = self.select(extend.child, _needed(extend.child, [*wanted, *read]))
        return f"SELECT {AT}{_named(wanted, computed)} FROM ({below})"  # noqa: S608 - made of ids

    def _filter(self, relation: Filter | Expire, wanted: tuple[str, ...]) -> str:
        if isinstance(relation, Filter):
            condition, read = relation.condition.sql, relation.condition.columns
        else:
            condition, read = f"{identifier(relation.moment)} > epoch_us(now())", (relation.moment,)
        below = self.select(relation.child, _needed(relation.child, [*wanted, *read]))
        return f"SELECT {AT}{columns_sql(wanted)} FROM ({below}) WHERE {condition}"  # noqa: S608 - of ids

    def _one_row(self) -> str:
        return f"SELECT 0 AS {AT}" if self.is_within_row else f"SELECT {POINT} AS {AT} FROM {POINTS_TABLE}"  # noqa: S608

    def _unnest(self, unnest: Unnest, wanted: tuple[str, ...]) -> str:
        lists, ordinal = dict(unnest.lists), identifier(unnest.ordinal)
        kept = _needed(unnest.child, wanted)
        read = (column for each in lists.values() for column in each.columns)
        below = self.select(unnest.child, _needed(unnest.child, [*kept, *read]))
        longest = f"greatest({', '.join(f'len({identifier(name)})' for name in lists)})"
        form = f"CASE WHEN {ordinal} > 0 THEN {{}} ELSE [NULL] END" if unnest.keeps_empty else "{}"
        elements = {name: form.format(identifier(name)) for name in lists}
        elements[unnest.ordinal] = form.format(f"range(1, {ordinal} + 1)")
        # All lists are unnested, so that the longest one counts.
        shown = ", ".join(f"unnest({sql}) AS {identifier(name)}" for name, sql in elements.items())
        return (
            f"SELECT {AT}{columns_sql(wanted)} FROM (SELECT {AT}{columns_sql(kept)}, {shown} FROM ("  # noqa: S608
            f"SELECT *, {longest} AS {ordinal} FROM ("
            f"SELECT {AT}{_named((*kept, *lists), lists)} FROM ({below}))))"
        )

    def _join(self, join: Join, wanted: tuple[str, ...]) -> str:
        conditions = [f"l.{AT} = r.{AT}"]
        conditions += [f"({left.sql}) = ({right.sql})" for left, right in join.equal]
        read = [column for pair in join.equal for side in pair for column in side.columns]
        if join.residual is not None:
            conditions.append(f"({join.residual.sql})")
            read += join.residual.columns
        read += join.right.identity if join.kind.has_one_partner else ()
        left = self.select(join.left, _needed(join.left, [*wanted, *read]))
        right = self.select(join.right, _needed(join.right, [*wanted, *read]))
        if join.kind.has_one_partner:
            right = self._closest(join, right)
        at = f"coalesce(l.{AT}, r.{AT})" if join.kind is JoinKind.FULL else f"l.{AT}"
        return (
            f"SELECT {at} AS {AT}{columns_sql(wanted)} FROM ({left}) AS l "  # noqa: S608 - made of ids
            f"{join.kind} JOIN ({right}) AS r ON {' AND '.join(conditions)}"
        )

    def _closest(self, join: Join, right: str) -> str:
        """Returns SQL for the right rows of an ASOF join, one of those that are equal for every left row."""
        of_right = [] if join.residual is None else _needed(join.right, join.residual.columns)
        alike = ", ".join([AT, *(f"({each.sql})" for _, each in join.equal), *map(identifier, of_right)])
        order = ", ".join(map(identifier, join.right.identity))
        first = f"row_number() OVER (PARTITION BY {alike}{f' ORDER BY {order}' if order else ''}) = 1"
        return f"SELECT * FROM ({right}) QUALIFY {first}"  # noqa: S608 - made of ids

    def _aggregate(self, aggregate: Aggregate, wanted: tuple[str, ...]) -> str:
        calls = {name: call.sql for name, call in aggregate.calls if name in wanted}
        read = [column for name, call in aggregate.calls if name in wanted for column in call.columns]
        read += [column for _, group in aggregate.groups for column in group.columns]
        below = self.select(aggregate.child, _needed(aggregate.child, read))
        groups = dict(aggregate.groups)
        shown = "".join(f", {calls.get(name) or groups[name].sql} AS {identifier(name)}" for name in wanted)
        by = "".join(f", {group.sql}" for group in groups.values())
        if self.is_within_row and not groups:
            return f"SELECT 0 AS {AT}{shown} FROM ({below})"  # noqa: S608 - made of ids
        grouped = f"SELECT {AT}{shown} FROM ({below}) GROUP BY {AT}{by}"  # noqa: S608 - made of ids
        return grouped if groups else f"{grouped} UNION ALL {_of_no_rows(below, shown)}"

    def _branch(self, union: Union, number: int, wanted: tuple[str, ...]) -> str:
        branch = union.children[number]
        below = {name: ids[number] for name, ids in union.sources}
        texts = dict(zip(union.identity, _branch_identity(union, number), strict=True))
        read = [*(below[name] for name in wanted if name in below), *branch.identity]
        rows = self.select(branch, _needed(branch, read))
        shown = "".join(
            f", {identifier(below[name]) if name in below else texts[name]} AS {identifier(name)}"
            for name in wanted
        )
        return f"SELECT {AT}{shown} FROM ({rows})"  # noqa: S608 - made of ids

    def _by_partition(self, relation: Window | TopN, wanted: tuple[str, ...]) -> str:
        return self._top_n(relation, wanted) if isinstance(relation, TopN) else self._window(relation, wanted)

    def _window(self, window: Window, wanted: tuple[str, ...]) -> str:
        calls = {name: call for name, call in window.calls if name in wanted}
        read = (column for call in calls.values() for column in call.columns)
        below = self.select(window.child, _needed(window.child, [*wanted, *read]))
        return f"SELECT {AT}{_named(wanted, calls)} FROM ({below})"  # noqa: S608 - made of ids

    def _top_n(self, top: TopN, wanted: tuple[str, ...]) -> str:
        ties = top.child.identity if top.ranks.function == "row_number" else ()
        read = [*wanted, *(column for each in top.read for column in each.columns), *ties]
        below = self.select(top.child, _needed(top.child, read))
        parts = "".join(f", {each.sql}" for each in top.partition)
        order = [*(f"{value.sql} {direction}" for value, direction in top.order), *map(identifier, ties)]
        by = f" ORDER BY {', '.join(order)}" if order else ""
        rank = f"{top.ranks.function}() OVER (PARTITION BY {AT}{parts}{by})"
        return (
            f"SELECT {AT}{columns_sql(wanted)} FROM (SELECT *, {rank} AS {identifier(top.rank)} "  # noqa: S608
            f"FROM ({below})) WHERE {identifier(top.rank)} BETWEEN {top.ranks.first} AND {top.ranks.last}"
        )


def typed_leaf(inputs: Mapping[int, LeafInput], *, is_live: bool) -> RenderLeaf:
    """Returns leaves at points: the versions of rows that are live at a point's LSN.

    If all rows are live, the point is the number of the stage key. The inputs are by the leaf's number.
    """

    def select(leaf: Leaf, wanted: tuple[str, ...]) -> str:
        of_leaf = inputs[leaf.number]
        names, rows = of_leaf.names, rows_table(of_leaf.number)
        types = {column.name: column.type for column in of_leaf.plan.columns}
        shown = "".join(
            f", {types[names[name]].duckdb_expression('r.' + identifier(names[name]))} AS {identifier(name)}"
            for name in wanted
        )
        if is_live:
            return f"SELECT r.{GROUP} AS {AT}{shown} FROM {rows} AS r"  # noqa: S608 - own names
        return (
            f"SELECT p.{POINT} AS {AT}{shown} FROM {POINTS_TABLE} AS p JOIN {rows} AS r "  # noqa: S608
            f"ON r.{GROUP} = p.{GROUP} AND r.{FROM_LSN} <= p.{LSN} AND p.{LSN} < r.{TO_LSN}"
        )

    return select


def _scan(scan: Scan, wanted: tuple[str, ...]) -> str:
    """Returns all rows of a table, live at the only point."""
    names = {of_column: name for name, of_column in scan.ids.items()}
    shown = "".join(f", {identifier(names[each])} AS {identifier(each)}" for each in wanted)
    table = f"{identifier(scan.table.schema)}.{identifier(scan.table.name)}"
    return f"SELECT 0 AS {AT}{shown} FROM {table}"  # noqa: S608 - own names


def _no_leaf(_: Leaf, __: tuple[str, ...]) -> str:
    msg = "a leaf stands for rows that only a stage has"
    raise TypeError(msg)


def _of_no_rows(below: str, shown: str) -> str:
    """Returns SQL for the row that a global aggregate has even if there is nothing to aggregate."""
    columns = source = ""
    if shown:
        columns = ", e.*"
        source = f", (SELECT {shown.removeprefix(', ')} FROM ({below}) WHERE false) AS e"  # noqa: S608
    return (
        f"SELECT p.{POINT} AS {AT}{columns} FROM {POINTS_TABLE} AS p{source} "  # noqa: S608 - made of ids
        f"WHERE p.{POINT} NOT IN (SELECT {AT} FROM ({below}))"
    )


def _branch_identity(union: Union, number: int) -> list[str]:
    own = [f"CAST({identifier(name)} AS VARCHAR)" for name in union.children[number].identity]
    padding = ["CAST(NULL AS VARCHAR)"] * (len(union.identity) - 1 - len(own))
    return [str(number), *own, *padding]


def _named(wanted: tuple[str, ...], computed: dict[str, Expression]) -> str:
    return "".join(
        f", {computed[name].sql} AS {identifier(name)}" if name in computed else f", {identifier(name)}"
        for name in wanted
    )


def _needed(relation: Relation, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names that are columns of the relation, without duplicates."""
    columns = set(relation.columns)
    return tuple(name for name in dict.fromkeys(names) if name in columns)
