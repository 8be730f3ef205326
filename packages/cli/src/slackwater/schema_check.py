"""Compares declared tables with those of the database, and finds the views that a difference touches."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from slackwater.output import aligned
from slackwater_spark.pipeline import table_names, view_inputs
from slackwater_sql.catalog import Catalog, Column, Table
from slackwater_sql.errors import MissingTablesError
from slackwater_sql.plan import EnginePlan, InputPlan
from slackwater_sql.postgres import (
    GENERATED,
    PARTITIONS_APART,
    CatalogueConnection,
    parse_catalog,
    pull_schema,
)

ABSENT = "absent"
_PARTITIONS = "PARTITIONS"


@dataclass(frozen=True, slots=True)
class Difference:
    """Describes something that is declared otherwise than it is."""

    table: str
    what: str
    """A column, or what else of the table."""
    declared: str
    found: str
    views: tuple[str, ...]
    """Views that are touched; none if no view uses it."""


def pulled_catalog(connection: CatalogueConnection, tables: Sequence[str]) -> Catalog:
    """Returns the tables that the database has, as it has them."""
    try:
        return parse_catalog({"the database": pull_schema(connection, tables, keeps_generated=True)})
    except MissingTablesError as error:
        found = [table for table in tables if table not in error.tables]
        return pulled_catalog(connection, found) if found else Catalog(())


def differences(
    plan: EnginePlan, declared: Catalog, database: Catalog, apart: Collection[str] = ()
) -> list[Difference]:
    """Returns what differs by table, in the order of its columns.

    Args:
        plan: Of the pipeline.
        declared: Its schema files.
        database: Of the tables that the plan reads, those that are there.
        apart: Those of them whose changes are published under the names of their partitions.
    """
    found: list[Difference] = []
    there = {table.full_name: table for table in database.tables}
    for name in table_names(plan):
        (own,) = (each for each in declared.tables if each.full_name == name)
        uses = _Uses(plan, name)
        if name in there:
            found += [*_columns(own, there[name], uses), *_keys(own, there[name], uses)]
        else:
            found.append(Difference(name, "TABLE", "declared", ABSENT, uses.of_table()))
        if name in apart:
            found.append(Difference(name, _PARTITIONS, "one table", "published apart", uses.of_table()))
    return found


def affected(found: Sequence[Difference]) -> tuple[str, ...]:
    """Returns the views that are touched, each once."""
    return tuple(dict.fromkeys(view for each in found for view in each.views))


def difference_lines(pipeline: str, revision: int, found: Sequence[Difference]) -> Iterator[str]:
    """Writes the differences as a table, and what to do."""
    if not found:
        yield f"{pipeline}: the declared tables are those of the database"
        return
    rows = [("table", "", "declared", "in the database", "affects")]
    rows += [
        (each.table, each.what, each.declared, each.found, ", ".join(each.views) or "no view")
        for each in found
    ]
    yield from aligned(rows)
    for each in found:
        if each.what == _PARTITIONS:
            yield f"{pipeline}: {each.table} is partitioned: {PARTITIONS_APART}."
    views = affected(found)
    if not views:
        yield f"{pipeline}: no view uses what differs; it goes on as it is"
        return
    yield f"{pipeline}: affected: {', '.join(views)}. Such a view stops at the first row that contradicts it."
    yield (
        "What to do: adapt the views, write the tables anew (`slackwater schema pull`), and set "
        f"`revision = {revision + 1}` in pipeline.toml: the new revision starts at the beginning of the "
        "topics, so these must hold no row of the old form that contradicts the new one (else take a new "
        "snapshot into new topics)."
    )


class _Uses:
    """Knows which views use what of a table."""

    def __init__(self, plan: EnginePlan, table: str) -> None:
        self._by_view: dict[str, list[InputPlan]] = {
            view.name: [each for each in view_inputs(plan, view) if each.table.full_name == table]
            for view in plan.views
        }

    def of_column(self, name: str) -> tuple[str, ...]:
        return self._where(lambda each: name in each.column_names)

    def of_table(self) -> tuple[str, ...]:
        return self._where(lambda _: True)

    def of_old_rows(self) -> tuple[str, ...]:
        return self._where(lambda each: each.table.replica_identity_full)

    def _where(self, holds: Callable[[InputPlan], bool]) -> tuple[str, ...]:
        return tuple(name for name, inputs in self._by_view.items() if any(map(holds, inputs)))


def _columns(declared: Table, found: Table, uses: _Uses) -> Iterator[Difference]:
    for column in declared.columns:
        now = found.column(column.name)
        if now is None:
            views = uses.of_column(column.name)
            yield Difference(declared.full_name, column.name, _shown(column), ABSENT, views)
        elif str(now.type) != str(column.type) or now.nullable != column.nullable:
            harmless = str(now.type) == str(column.type) and column.nullable
            views = () if harmless else uses.of_column(column.name)
            yield Difference(declared.full_name, column.name, _shown(column), _shown(now), views)
    for column in found.columns:
        if declared.column(column.name) is None and not _is_generated(column):
            yield Difference(declared.full_name, column.name, ABSENT, _shown(column), ())


def _keys(declared: Table, found: Table, uses: _Uses) -> Iterator[Difference]:
    if declared.primary_key != found.primary_key:
        was, now = (", ".join(each.primary_key) or ABSENT for each in (declared, found))
        yield Difference(declared.full_name, "PRIMARY KEY", was, now, uses.of_table())
    if declared.replica_identity_full != found.replica_identity_full:
        was, now = ("FULL" if t.replica_identity_full else "DEFAULT" for t in (declared, found))
        views = () if found.replica_identity_full else uses.of_old_rows()
        yield Difference(declared.full_name, "REPLICA IDENTITY", was, now, views)


def _is_generated(column: Column) -> bool:
    """Says if the database computes it, so that connectors do not send it and nobody declares it."""
    return str(column.type).endswith(GENERATED)


def _shown(column: Column) -> str:
    not_sent = ", which connectors do not send" if _is_generated(column) else ""
    return f"{column.type}{'' if column.nullable else ' NOT NULL'}{not_sent}"
