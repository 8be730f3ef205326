"""Declared tables from PostgreSQL DDL: the schema files of a pipeline folder.

The supported statements are CREATE TABLE, CREATE TYPE … AS ENUM, CREATE DOMAIN, ALTER TABLE … ADD PRIMARY KEY
and ALTER TABLE … REPLICA IDENTITY. Statements that `pg_dump --schema-only` writes and that do not
change what a row looks like (indexes, comments, grants, other constraints) are ignored. Any other statement
is refused, and the error names its place.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from slackwater.protocol import ConfigError
from slackwater.protocol.keys import check_schema_name
from slackwater.sql.catalog import Catalog, Column, ColumnType, Table
from slackwater.sql.errors import SourceText, SqlTextError
from slackwater.sql.postgres.types import (
    array_of,
    enum_type,
    generated_type,
    parse_type,
    type_in_table,
    unreadable_type,
)

_SUPPORTED = (
    "Supported are CREATE TABLE with columns, CREATE TYPE … AS ENUM, CREATE DOMAIN, "
    "ALTER TABLE … ADD PRIMARY KEY and ALTER TABLE … REPLICA IDENTITY FULL; "
    "`slackwater schema pull` writes such a file from the database"
)
_PASSED_OVER = (
    "SET", "SELECT", "COMMENT", "GRANT", "REVOKE", "BEGIN", "COMMIT", "CREATE SCHEMA", "CREATE EXTENSION",
    "CREATE SEQUENCE", "CREATE INDEX", "CREATE UNIQUE INDEX", "ALTER SEQUENCE", "ALTER TYPE", "ALTER DOMAIN",
    "ALTER SCHEMA", "CREATE TYPE", "CREATE DOMAIN",
)  # fmt: skip
"""The beginnings of statements that do not change what a row looks like, or that are read before."""
_ALTERATIONS_PASSED_OVER = (
    "OWNER", "ENABLE", "CLUSTER", "ADD CONSTRAINT", "ADD FOREIGN", "ADD UNIQUE", "ADD CHECK", "ADD GENERATED",
    "SET", "DEFAULT",
)  # fmt: skip
_TABLE_CONSTRAINTS = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "EXCLUDE"})
_UNREADABLE_NAME = re.compile(r'["\\\x00-\x1f]')
_COLUMN_CONSTRAINTS = frozenset(
    {
        "CONSTRAINT", "NOT", "NULL", "DEFAULT", "PRIMARY", "UNIQUE", "CHECK", "REFERENCES", "GENERATED",
        "COLLATE", "STORAGE", "COMPRESSION", "DEFERRABLE", "INITIALLY",
    }
)  # fmt: skip


def parse_catalog(files: Mapping[str, str]) -> Catalog:
    """Returns the tables declared in these texts (file name → text), in order.

    Raises:
        SqlTextError: A statement is not supported; names its place and what is supported.
    """
    reader = _Reader()
    found = [each for path, text in files.items() for each in _statements(SourceText(path, text))]
    for each in found:
        reader.read_type(replace(each))
    for each in found:
        reader.read(each)
    return Catalog(tuple(map(_with_lost_columns, reader.tables.values())))


@dataclass(frozen=True, slots=True)
class _Word:
    """A token of a DDL text.

    Attributes:
        text: As written; a quoted name without its quotes.
        upper: Upper-case form to compare keywords with; empty for quoted names and strings.
    """

    text: str
    upper: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The name that this word means: PostgreSQL folds unquoted names to lower case."""
        return self.text.lower() if self.upper else self.text


@dataclass(slots=True)
class _Statement:
    """A statement that is consumed from left to right."""

    source: SourceText
    words: tuple[_Word, ...]
    position: int = 0

    def starts_with(self, *keywords: str) -> bool:
        ahead = self.words[self.position : self.position + len(keywords)]
        return tuple(word.upper for word in ahead) == keywords

    def starts_with_any(self, beginnings: Iterable[str]) -> bool:
        return any(self.starts_with(*each.split()) for each in beginnings)

    def skip(self, *keywords: str) -> bool:
        """Consumes the keywords if they come next."""
        found = self.starts_with(*keywords)
        self.position += len(keywords) if found else 0
        return found

    def take(self, what: str) -> _Word:
        if self.position >= len(self.words):
            raise self.error(f"expected {what}, but the statement ends")
        self.position += 1
        return self.words[self.position - 1]

    def take_qualified(self, what: str) -> tuple[str, ...]:
        parts = [self.take(what).name]
        while self.skip("."):
            parts.append(self.take(what).name)
        return tuple(parts)

    def take_parenthesised(self) -> tuple[_Word, ...]:
        """Consumes `( … )` and returns what is inside."""
        if not self.skip("("):
            raise self.error("expected (")
        start, depth = self.position, 1
        while depth:
            word = self.take(")")
            depth += (word.upper == "(") - (word.upper == ")")
        return self.words[start : self.position - 1]

    def rest(self) -> tuple[_Word, ...]:
        return self.words[self.position :]

    def error(self, problem: str, hint: str = _SUPPORTED) -> SqlTextError:
        words = self.rest() or self.words[-1:]
        return self.source.error(words[0].start, words[-1].end, problem, hint + ".")


@dataclass(slots=True)
class _Reader:
    tables: dict[tuple[str, str], Table] = field(default_factory=dict)
    types: dict[str, ColumnType] = field(default_factory=dict)

    def read_type(self, statement: _Statement) -> None:
        if statement.skip("CREATE", "TYPE"):
            name = statement.take_qualified("a type name")
            if statement.skip("AS", "ENUM"):
                self._add_type(name, enum_type(".".join(name)))
        elif statement.skip("CREATE", "DOMAIN"):
            name = statement.take_qualified("a domain name")
            statement.skip("AS")
            words, _ = _type_and_constraints(statement.rest())
            if not words:
                raise statement.error("the domain has no type")
            self._add_type(name, self._type(statement.source, words))

    def read(self, statement: _Statement) -> None:
        if statement.starts_with_any(_PASSED_OVER):
            return
        if statement.skip("CREATE", "TABLE") or statement.skip("CREATE", "UNLOGGED", "TABLE"):
            self._read_table(statement)
        elif statement.skip("ALTER", "TABLE"):
            self._read_alteration(statement)
        else:
            raise statement.error("this statement is not supported")

    def _add_type(self, name: tuple[str, ...], column_type: ColumnType) -> None:
        self.types[".".join(name)] = column_type
        self.types[name[-1]] = column_type

    def _type(self, source: SourceText, words: Sequence[_Word]) -> ColumnType:
        name = "".join(word.name for word in words if word.upper not in {"[", "]"})
        if name in self.types:
            return array_of(self.types[name]) if words[-1].upper == "]" else self.types[name]
        return parse_type(source.text[words[0].start : words[-1].end])

    def _read_table(self, statement: _Statement) -> None:
        statement.skip("IF", "NOT", "EXISTS")
        start = statement.position
        schema, name = _schema_and_name(statement.take_qualified("a table name"))
        try:
            check_schema_name(schema)
        except ConfigError as error:
            statement.position = start
            raise statement.error(error.problem, error.hint) from None
        if (schema, name) in self.tables:
            statement.position = start
            raise statement.error(f"table {schema}.{name} is declared twice", "Keep one of the declarations")
        if not statement.starts_with("("):
            raise statement.error(f"table {schema}.{name} has no list of columns")
        columns: dict[str, Column] = {}
        key: tuple[str, ...] = ()
        for item in _split_at_commas(statement.take_parenthesised()):
            key = self._read_item(_Statement(statement.source, item), columns) or key
        table = Table(schema, name, tuple(columns.values()), (), replica_identity_full=False)
        self.tables[schema, name] = _with_primary_key(table, key)

    def _read_item(self, item: _Statement, columns: dict[str, Column]) -> tuple[str, ...]:
        """Reads a column or a constraint; returns the primary key that it declares, if it does."""
        if item.starts_with("LIKE"):
            raise item.error("LIKE is not supported", "Write the columns out")
        first = item.take("a column or constraint")
        if first.upper in _TABLE_CONSTRAINTS:
            if first.upper == "CONSTRAINT":
                item.take("a constraint name")
            else:
                item.position -= 1
            return _names(item.take_parenthesised()) if item.skip("PRIMARY", "KEY") else ()
        words, constraints = _type_and_constraints(item.rest())
        if not words:
            raise item.error(f"column {first.name} has no type")
        if first.name in columns:
            item.position -= 1
            raise item.error(f"column {first.name} is declared twice", "Keep one of the declarations")
        implied = "serial" in words[0].name or _contains(constraints, "AS", "IDENTITY")
        not_null = implied or _contains(constraints, "NOT", "NULL")
        column_type = self._type(item.source, words)
        if _UNREADABLE_NAME.search(first.name):
            column_type = unreadable_type(column_type)
        if _is_computed(constraints):
            column_type = generated_type(column_type)
        columns[first.name] = Column(first.name, column_type, not not_null, _has_default(constraints))
        return (first.name,) if _contains(constraints, "PRIMARY", "KEY") else ()

    def _read_alteration(self, statement: _Statement) -> None:
        statement.skip("IF", "EXISTS")
        statement.skip("ONLY")
        start = statement.position
        key = _schema_and_name(statement.take_qualified("a table name"))
        if key not in self.tables:
            statement.position = start
            raise statement.error(
                f"table {'.'.join(key)} is not declared above", "Put its CREATE TABLE before this"
            )
        table = self.tables[key]
        if statement.skip("REPLICA", "IDENTITY"):
            is_full = statement.skip("FULL")
            index = statement.take("an index name").name if statement.skip("USING", "INDEX") else ""
            if index == f"{table.name}_pkey":  # PostgreSQL's name for the index of the primary key
                index = ""
            self.tables[key] = replace(table, replica_identity_full=is_full, identity_index=index)
        elif _contains(statement.rest(), "PRIMARY", "KEY"):
            while not statement.skip("PRIMARY", "KEY"):
                statement.take("PRIMARY KEY")
            self.tables[key] = _with_primary_key(table, _names(statement.take_parenthesised()))
        elif statement.skip("ALTER"):
            statement.skip("COLUMN")
            self._read_column_alteration(statement, key)
        else:
            _pass_over(statement)

    def _read_column_alteration(self, statement: _Statement, key: tuple[str, str]) -> None:
        name = statement.take("a column name").name
        if statement.skip("SET", "NOT", "NULL"):
            self.tables[key] = _with_not_null(self.tables[key], (name,))
        elif statement.skip("SET", "DEFAULT"):
            self.tables[key] = _changed(
                self.tables[key], lambda c: replace(c, has_default=c.has_default or c.name == name)
            )
        else:
            _pass_over(statement)


def _pass_over(statement: _Statement) -> None:
    if not statement.starts_with_any(_ALTERATIONS_PASSED_OVER):
        hint = f"Declare the table as it is now. {_SUPPORTED}"
        raise statement.error("this ALTER TABLE is not supported", hint)


def _with_primary_key(table: Table, names: tuple[str, ...]) -> Table:
    return replace(_with_not_null(table, names), primary_key=names)


def _with_not_null(table: Table, names: tuple[str, ...]) -> Table:
    return _changed(table, lambda c: replace(c, nullable=c.nullable and c.name not in names))


def _with_lost_columns(table: Table) -> Table:
    """Marks columns as unsupported if the table's records do not always contain their values."""
    is_full = table.replica_identity_full
    return _changed(
        table,
        lambda c: replace(
            c, type=type_in_table(c.type, is_nullable=c.nullable, replica_identity_full=is_full)
        ),
    )


def _changed(table: Table, change: Callable[[Column], Column]) -> Table:
    return replace(table, columns=tuple(map(change, table.columns)))


def _schema_and_name(parts: tuple[str, ...]) -> tuple[str, str]:
    return ("public", parts[0]) if len(parts) == 1 else (parts[-2], parts[-1])


def _names(words: Sequence[_Word]) -> tuple[str, ...]:
    return tuple(part[0].name for part in _split_at_commas(words) if part)


def _type_and_constraints(words: Sequence[_Word]) -> tuple[tuple[_Word, ...], tuple[_Word, ...]]:
    """Returns a column's type and what follows it."""
    depth = 0
    for index, word in enumerate(words):
        if depth == 0 and word.upper in _COLUMN_CONSTRAINTS:
            return tuple(words[:index]), tuple(words[index:])
        depth += (word.upper in {"(", "["}) - (word.upper in {")", "]"})
    return tuple(words), ()


def _has_default(constraints: Sequence[_Word]) -> bool:
    """Whether there is DEFAULT …, but neither GENERATED BY DEFAULT nor ON DELETE SET DEFAULT."""
    words = ["", *(word.upper for word in constraints)]
    return any(b == "DEFAULT" and a not in {"BY", "SET"} for a, b in pairwise(words))


def _is_computed(constraints: Sequence[_Word]) -> bool:
    """Whether there is GENERATED ALWAYS AS ( … ) that is not an identity."""
    return any(
        [word.upper for word in constraints[start : start + 4]] == ["GENERATED", "ALWAYS", "AS", "("]
        for start in range(len(constraints))
    )


def _contains(words: Sequence[_Word], first: str, second: str) -> bool:
    return any(a.upper == first and b.upper == second for a, b in pairwise(words))


def _statements(source: SourceText) -> Iterator[_Statement]:
    """Yields the statements of a text in order, without semicolons."""
    statement: list[_Word] = []
    for word in _words(source):
        if word.upper != ";":
            statement.append(word)
            continue
        if statement:
            yield _Statement(source, tuple(statement))
        statement = []
    if statement:
        yield _Statement(source, tuple(statement))


def _split_at_commas(words: Sequence[_Word]) -> Iterator[tuple[_Word, ...]]:
    """Yields the parts between the commas outside of parentheses and brackets."""
    depth = 0
    part: list[_Word] = []
    for word in words:
        depth += (word.upper in {"(", "["}) - (word.upper in {")", "]"})
        if word.upper == "," and depth == 0:
            yield tuple(part)
            part = []
        else:
            part.append(word)
    if part:
        yield tuple(part)


def _words(source: SourceText) -> Iterator[_Word]:
    # sqlglot takes a third of this package's import time, and Spark's workers never parse DDL.
    from sqlglot.dialects.postgres import Postgres
    from sqlglot.errors import TokenError
    from sqlglot.tokenizer_core import TokenType

    try:
        tokens = Postgres.Tokenizer().tokenize(source.text)
    except TokenError as error:
        end = len(source.text)
        raise source.error(end, end, "a string, quoted name or comment is not closed", "Close it.") from error
    for token in tokens:
        end = token.end + 1
        if token.token_type is TokenType.IDENTIFIER or "STRING" in token.token_type.name:
            yield _Word(token.text, "", token.start, end)
            continue
        offset = token.start
        for part in token.text.split():  # the tokenizer joins some keywords: DOUBLE PRECISION
            yield _Word(part, part.upper(), offset, end)
            offset += len(part) + 1
