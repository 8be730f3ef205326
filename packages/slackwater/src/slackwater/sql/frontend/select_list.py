"""The columns of a select list: stars are expanded, and columns without a name get one."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.frontend.context import Environment, NamedColumn, NamedRelation, NameScope
from slackwater.sql.frontend.names import derived_name, end_of_column
from slackwater.sql.frontend.syntax import Node, Raw
from slackwater.sql.frontend.text import Splice


@dataclass(frozen=True, slots=True)
class ListedColumn:
    """A column of the select list after stars are expanded.

    Attributes:
        name: Its name; may be empty.
        column: The column, if it comes from a star.
    """

    name: str
    node: Node
    column: NamedColumn | None


def select_list(
    environment: Environment, scope: NameScope, items: tuple[Node, ...]
) -> tuple[ListedColumn, ...]:
    """Returns the columns of a select list.

    Raises:
        SqlTextError: A star is not supported, or is about a table that FROM does not name.
    """
    return tuple(_with_names(environment, list(_listed(environment, scope, items))))


def _listed(environment: Environment, scope: NameScope, items: tuple[Node, ...]) -> Iterator[ListedColumn]:
    """Yields the columns of a select list."""
    for item in items:
        if item.kind != "STAR":
            name = item.alias or (item.names[-1] if item.kind == "COLUMN_REF" else "")
            yield ListedColumn(_declared(scope, item, name), item, None)
            continue
        raw = item.raw
        if raw["columns"] or any(raw[each] for each in ("replace_list", "rename_list", "expr")):
            problem = "only *, t.* and * EXCLUDE (…) are supported"
            raise environment.error(item, problem, "Name the columns")
        for column in _starred(environment, scope, item):
            yield ListedColumn(column.name, item, column)


def _with_names(environment: Environment, columns: list[ListedColumn]) -> Iterator[ListedColumn]:
    """Names the columns that have no name as PostgreSQL does, where no two would have the same."""
    text = environment.text
    names = [
        each.name or ("" if each.column is not None else derived_name(text, each.node)) for each in columns
    ]
    counts = Counter(name.lower() for name in names)
    for each, name in zip(columns, names, strict=True):
        if each.name or counts[name.lower()] > 1 or each.node.start < 0:
            yield each
            continue
        end = end_of_column(text, each.node)
        environment.splices.append(Splice(end, end, f" AS {identifier(name)}"))
        yield replace(each, name=name)


def _declared(scope: NameScope, item: Node, name: str) -> str:
    """Names a column as DuckDB does: without an alias, as declared."""
    if item.alias or item.kind != "COLUMN_REF":
        return name
    found = scope.resolve_parts(item.names)
    return found.name if found is not None and not found.fields else name


def _starred(environment: Environment, scope: NameScope, item: Node) -> tuple[NamedColumn, ...]:
    qualifier = item.raw["relation_name"]
    sources = scope.sources
    ids: set[str] = set()
    if qualifier:
        source = scope.source((qualifier,))
        if source is None:
            problem = f"no table in FROM is called {qualifier}"
            raise environment.error(item, problem, "Use an alias that is given in FROM")
        sources = (source,)
    excluded = {name.lower() for name in item.raw["exclude_list"]}
    for source in sources:
        own = {each["column"].lower() for each in item.raw["qualified_exclude_list"] if _is_of(source, each)}
        left_out = own | excluded
        ids |= {each.id for each in source.columns if each.name.lower() in left_out}
        for column in source.table.columns if source.table is not None else ():
            if column.name.lower() not in left_out:
                scope.refuse_unsupported(source.table, column.name.lower(), item)
    visible = sources[0].columns if qualifier else scope.visible
    return tuple(each for each in visible if each.id not in ids and each.name.lower() not in excluded)


def _is_of(source: NamedRelation, name: Raw) -> bool:
    return tuple(part.lower() for part in (name["schema"], name["table"]) if part) in source.qualifiers
