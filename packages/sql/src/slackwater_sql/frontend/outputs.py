"""The select list: its columns and their names, stars expanded."""

from collections.abc import Iterator
from dataclasses import dataclass

from slackwater_sql.frontend.build import Environment
from slackwater_sql.frontend.levels import Level
from slackwater_sql.frontend.scope import Found, Scope, Source, Visible
from slackwater_sql.frontend.syntax import Node, Raw
from slackwater_sql.logical import Expression


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the select list, stars expanded.

    Attributes:
        name: Its name; may be empty.
        node: What was written.
        column: The column, if a star stands for it.
    """

    name: str
    node: Node
    column: Visible | None


def output_expression(level: Level, output: Output) -> Expression:
    """The column over ids."""
    if output.column is None:
        return level.expression(output.node)
    column = output.column
    source = next((each for each in level.scope.sources if column in each.columns), None)
    return level.made(output.node, level.value(output.node, Found(column.id, column.name, (), source)))


def outputs(environment: Environment, scope: Scope, items: tuple[Node, ...]) -> Iterator[Output]:
    """The columns of a select list.

    Raises:
        ViewError: A star stands for what no view may use.
    """
    for item in items:
        if item.kind != "STAR":
            name = item.alias or (item.names[-1] if item.kind == "COLUMN_REF" else "")
            yield Output(_declared(scope, item, name), item, None)
            continue
        raw = item.raw
        if raw["columns"] or any(raw[each] for each in ("replace_list", "rename_list", "expr")):
            problem = "only *, t.* and * EXCLUDE (…) are supported"
            raise environment.error(item.start, item.end, problem, "Name the columns")
        for column in _starred(environment, scope, item):
            yield Output(column.name, item, column)


def _declared(scope: Scope, item: Node, name: str) -> str:
    """As DuckDB does: an unnamed column of FROM keeps the spelling of its declaration."""
    if item.alias or item.kind != "COLUMN_REF":
        return name
    found = scope.of_names(item.names)
    return found.name if found is not None and not found.fields else name


def _starred(environment: Environment, scope: Scope, item: Node) -> tuple[Visible, ...]:
    qualifier = item.raw["relation_name"]
    sources = scope.sources
    ids: set[str] = set()
    if qualifier:
        source = scope.source((qualifier,))
        if source is None:
            problem = f"no table in FROM is called {qualifier}"
            raise environment.error(item.start, item.end, problem, "Use the alias that FROM gives")
        sources = (source,)
    excluded = {name.lower() for name in item.raw["exclude_list"]}
    for source in sources:
        own = {each["column"].lower() for each in item.raw["qualified_exclude_list"] if _is_of(source, each)}
        left_out = own | excluded
        ids |= {each.id for each in source.columns if each.name.lower() in left_out}
        for column in source.table.columns if source.table is not None else ():
            if column.name.lower() not in left_out:
                scope.refuse_unsupported(source.table, column.name.lower(), item.start, item.end)
    visible = sources[0].columns if qualifier else scope.visible
    return tuple(each for each in visible if each.id not in ids and each.name.lower() not in excluded)


def _is_of(source: Source, name: Raw) -> bool:
    return tuple(part.lower() for part in (name["schema"], name["table"]) if part) in source.qualifiers
