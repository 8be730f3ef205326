"""What a clause of a query can refer to."""

from dataclasses import dataclass

from slackwater_differential.history import Table, quoted
from slackwater_differential.query import Query, Source
from slackwater_differential.schema_generator import is_reference, key_values
from slackwater_differential.sql_types import Family, SqlType


@dataclass(frozen=True, slots=True)
class Output:
    """A column of a relation.

    Attributes:
        name: As SQL writes it.
        type: Its type.
        nullable: May be NULL.
        is_reference: Has the few values by which rows find each other.
    """

    name: str
    type: SqlType
    nullable: bool = True
    is_reference: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """Something that can stand in FROM.

    Attributes:
        source: A name, or a query.
        outputs: Its columns.
        identity: Names of columns that tell its rows apart; empty if there are none, or none are known.
        is_table: It is a table and `identity` its primary key.
        is_grouped: It has a GROUP BY.
        is_view: It is another view.
    """

    source: str | Query
    outputs: tuple[Output, ...]
    identity: tuple[str, ...] = ()
    is_table: bool = False
    is_grouped: bool = False
    is_view: bool = False


def table_relation(table: Table) -> Relation:
    """A table as FROM has it."""
    outputs = tuple(Output(quoted(c.name), c.type, c.nullable, is_reference(table, c)) for c in table.columns)
    return Relation(table.name, outputs, tuple(map(quoted, table.primary_key)), is_table=True)


@dataclass(frozen=True, slots=True)
class Term:
    """A column within reach.

    Attributes:
        sql: How it is written.
        type: Its type.
        is_reference: As of `Output`.
        alias: Whose it is.
        nullable: It may be NULL, outer joins aside.
    """

    sql: str
    type: SqlType
    is_reference: bool
    alias: str
    nullable: bool = True

    def literals(self) -> list[str]:
        """Values that it is likely to have, as SQL."""
        values = key_values(self.type) if self.is_reference else self.type.values
        return [value.sql for value in values if len(value.sql) < 200] if self.type.is_groupable else []


def terms_of(relation: Relation, alias: str) -> tuple[Term, ...]:
    """The columns of a relation that is called so."""
    return tuple(
        Term(f"{alias}.{o.name}", o.type, o.is_reference, alias, o.nullable) for o in relation.outputs
    )


@dataclass(frozen=True, slots=True)
class Scope:
    """What a SELECT has in FROM.

    Attributes:
        sources: The sources.
        relations: What they are, by alias; without those of which no column can be used.
        terms: Their columns.
        identity: Columns that tell the joined rows apart; empty if unknown.
    """

    sources: tuple[Source, ...]
    relations: tuple[tuple[str, Relation], ...]
    terms: tuple[Term, ...]
    identity: tuple[str, ...]

    def never_null(self) -> tuple[Term, ...]:
        """Columns that are not NULL in any row."""
        if any(word in source.join for source in self.sources for word in ("RIGHT", "FULL", "LEFT")):
            return ()
        return tuple(term for term in self.terms if not term.nullable)

    @property
    def is_grouped(self) -> bool:
        """Something in FROM has a GROUP BY."""
        return any(relation.is_grouped for _, relation in self.relations)


def are_joinable(one: Term, other: Term) -> bool:
    """`one = other` is a comparison of keys."""
    families = one.type.family, other.type.family
    if Family.FLOAT in families or not (one.type.is_groupable and other.type.is_groupable):
        return False
    are_of_one_family = families[0] is families[1] and "HUGEINT" not in {one.type.duckdb, other.type.duckdb}
    return one.type.duckdb == other.type.duckdb or (
        are_of_one_family and families[0] in {Family.INTEGER, Family.TEXT}
    )
