# ruff: noqa: E501, S608 - SQL on few lines
"""The reference page "From PostgreSQL", written by ``python -m slackwater_lab.from_postgres``.

Expressions, aggregates and whole views are evaluated by a real PostgreSQL, and by a pipeline in its dialect, and
compared: equal, refused with words, or different, which must not be.
"""

import json
import re
import sys
import tempfile
import tomllib
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from itertools import groupby
from pathlib import Path
from struct import pack
from typing import Any, Final

import psycopg

from slackwater.dev import PostgresServer
from slackwater.pipeline.definition import pipeline_definition
from slackwater.pipeline.testing.view_test import ViewTest
from slackwater.protocol import InputError
from slackwater.sql.catalog import Catalog
from slackwater.sql.errors import EvaluationError, SqlTextError
from slackwater.sql.meaning import Dialect
from slackwater.sql.postgres import parse_catalog

PAGE: Final = Path("docs/reference/from-postgresql.md")
EQUAL: Final = "equal"
REFUSED: Final = "refused: "
PARTLY: Final = "equal, except refused: "
DIFFERENT: Final = "different: "
NO_SQL: Final = "no PostgreSQL: "
_WORDS: Final = re.compile(r"^.*?(?:: |` )(?=\S)")
_FRACTION: Final = re.compile(r"\.?0+(?=$|[+Z])")
_FORMS: Final = {
    "expressions": "SELECT id, {} FROM t",
    "aggregates": "SELECT g, {} FROM t GROUP BY g",
    "views": "",
}
_SELECT: Final = re.compile(r"^((?:WITH\b.*?\)\s*)?)SELECT\b", re.DOTALL | re.IGNORECASE)
_AREAS: Final = {
    "ch": "char(n)", "ci": "citext", "en": "enum", "tx": "text", "vc": "varchar(n)",
    "co": "text with a collation",
}  # fmt: skip
_AT_ONCE: Final = 16
_DATABASE: Final = "from_postgres"
HEADER: Final = """\
<!-- Written by `make from-postgresql` from a real PostgreSQL; do not edit. -->
# From PostgreSQL

A pipeline with `dialect = "postgres"` evaluates the SQL of its views as PostgreSQL does, in a session with
the time zone UTC, or refuses it. A test (`make from-postgresql`) evaluates {count} expressions and views on rows
with NULLs and extremes with a real PostgreSQL, and compares every value; none is different. Values are equal, not
always their text: quotients and averages of exact numbers have all 24 decimals.

| area | tried | equal | refused |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Something to evaluate.

    Attributes:
        area: Where it belongs on the page.
        text: The expression, or the whole SELECT.
        form: The SELECT with ``{}`` for the expression; empty if it is one itself.
    """

    area: str
    text: str
    form: str = ""

    @property
    def select(self) -> str:
        """The SELECT, without TRANSACTIONALLY."""
        return self.form.format(f"({self.text}) AS v") if self.form else self.text


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case: one of the constants, perhaps with words."""

    case: Case
    result: str


@dataclass(frozen=True, slots=True)
class Trial:
    """The declared tables, rows and cases."""

    ddl: str
    preparation: str
    rows: Mapping[str, Sequence[str]]
    cases: Sequence[Case]


def trial() -> Trial:
    """Reads what is declared."""
    text = (resources.files("slackwater_lab") / "from_postgres.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)
    return Trial(found["ddl"], found.get("preparation", ""), found["rows"], tuple(_cases(found)))


def _cases(found: Mapping[str, Any]) -> Iterator[Case]:
    templates = found["generated"]["views"].strip().splitlines()
    for column, constant in (each.split() for each in found["generated"]["columns"]):
        for each in templates:
            yield Case(f"views, {_AREAS[column]}", each.replace("{c}", column).replace("{l}", constant))
    for kind, form in _FORMS.items():
        for area, texts in found[kind].items():
            separator = "\n" if form else ";"
            yield from (
                Case(area, " ".join(each.split()), form) for each in texts.split(separator) if each.strip()
            )


def run(server: PostgresServer, declared: Trial) -> list[Outcome]:
    """Evaluates all cases in a database of their own, whose collation is that of views."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {_DATABASE}")
        connection.execute(f"CREATE DATABASE {_DATABASE} LOCALE 'C.UTF-8' TEMPLATE template0")
    with psycopg.connect(server.dsn(_DATABASE), autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute("SET datestyle = 'ISO, YMD'")
        connection.execute(declared.preparation + declared.ddl)
        rows = {}
        for table, values in declared.rows.items():
            for each in values:
                connection.execute(f"INSERT INTO {table} VALUES ({each})")
            rows[table] = _plain_rows(connection, table)
        trial = _Running(connection, parse_catalog({"schema.sql": declared.ddl}), rows)
        by_form = groupby(declared.cases, key=lambda case: (case.area, case.form))
        return [each for _, cases in by_form for each in trial.outcomes(list(cases))]


def _plain_rows(connection: psycopg.Connection[Any], table: str) -> list[dict[str, Any]]:
    """Returns rows as a test of a pipeline has them."""
    columns = connection.execute(f"SELECT * FROM {table} LIMIT 0").description or ()
    names = [each.name for each in columns]
    types = connection.execute(
        "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        [table],
    ).fetchall()
    kinds = [kind for (kind,) in types]
    shown = ", ".join(_shown(f'"{name}"', kind) for name, kind in zip(names, kinds, strict=True))
    found = connection.execute(f"SELECT {shown} FROM {table} ORDER BY 1").fetchall()
    return [dict(zip(names, map(_plain, row, kinds), strict=True)) for row in found]


def _shown(column: str, kind: str) -> str:
    if kind == "character":  # whose text has no blanks at its end
        return f"CASE WHEN {column} IS NOT NULL THEN format('%s', {column}) END"
    return f"to_jsonb({column})::text" if kind.endswith("[]") else f"{column}::text"


def _plain(value: str | None, kind: str) -> Any:
    if value is None:
        return None
    if kind.endswith("[]"):
        return json.loads(value)
    if kind == "boolean":
        return value == "true"
    if kind in {"smallint", "integer", "bigint"}:
        return int(value)
    if kind in {"real", "double precision"}:
        return float(value)
    return bytes.fromhex(value[2:]) if kind == "bytea" else value


@dataclass(frozen=True, slots=True)
class _Running:
    """A trial whose rows are in the database."""

    connection: psycopg.Connection[Any]
    catalog: Catalog
    rows: Mapping[str, Any]

    def outcomes(self, cases: Sequence[Case]) -> list[Outcome]:
        """Returns what becomes of cases of one form: many in one view, unless one of them fails."""
        if len(cases) > _AT_ONCE or (len(cases) > 1 and not cases[0].form):
            middle = len(cases) // 2
            return [*self.outcomes(cases[:middle]), *self.outcomes(cases[middle:])]
        try:
            test = self._test(cases)
            got = _documents(test, self.rows)
        except InputError as error:
            if len(cases) > 1:
                middle = len(cases) // 2
                return [*self.outcomes(cases[:middle]), *self.outcomes(cases[middle:])]
            if not isinstance(error, EvaluationError):
                return [Outcome(cases[0], REFUSED + _words(error))]
            return [Outcome(cases[0], self._by_row(test, cases[0]))]
        return [Outcome(case, self._compared(test, case, number, got)) for number, case in enumerate(cases)]

    def _test(self, cases: Sequence[Case]) -> ViewTest:
        """Returns a view with a column for each case."""
        select = cases[0].text
        if cases[0].form:
            columns = ", ".join(f"({case.text}) AS v{number}" for number, case in enumerate(cases))
            select = cases[0].form.format(columns)
        text = re.sub(_SELECT, r"\1SELECT TRANSACTIONALLY", select, count=1)
        views = {"v": text}
        return ViewTest(
            pipeline_definition(
                name="p", source="s", catalog=self.catalog, views=views, dialect=Dialect.POSTGRES
            )
        )

    def _compared(self, test: ViewTest, case: Case, number: int, got: list[dict[str, Any]]) -> str:
        wanted = _wanted(self.connection, case.select)
        if case.form:
            got = [dict(list(row.items())[:1]) | {"v": row[f"v{number}"]} for row in got]
        if not isinstance(wanted, str):
            return _compared(wanted, got)
        return f"{NO_SQL}{wanted}" if not case.form else self._by_row(self._test([case]), case)

    def _by_row(self, test: ViewTest, case: Case) -> str:
        """Compares with one row of the first table at a time, because an error of one hides the others."""
        table = next(iter(self.rows))
        refused, words, unlike = 0, "", ""
        for row in self.rows[table]:
            limited = re.sub(r"\bFROM t\b", f"FROM (SELECT * FROM t WHERE id = {row['id']}) t", case.select)
            wanted = _wanted(self.connection, limited)
            try:
                got: Any = _documents(test, {**self.rows, table: [row]})
                got = [{"k": next(iter(each.values())), "v": list(each.values())[-1]} for each in got]
            except EvaluationError as failed:
                got, words = None, words or ("" if isinstance(wanted, str) else str(failed).splitlines()[0])
            if isinstance(wanted, str):
                if re.search("does not exist|syntax error", wanted):
                    return NO_SQL + wanted
                unlike = unlike or ("" if got is None else f"error {wanted!r} for row {row['id']}, got {got}")
            elif got is None:
                refused += 1
            elif (found := _compared(wanted, got)) != EQUAL:
                return found
        if unlike:
            return DIFFERENT + unlike
        return f"{PARTLY}{words}" if refused else EQUAL


def _words(error: InputError) -> str:
    return f"{error.problem}. {error.hint}" if isinstance(error, SqlTextError) else str(error)


Rows = list[tuple[Any, ...]]
Table = tuple[tuple[str, ...], Rows]
"""The types of columns, as PostgreSQL names them, and rows."""


def _wanted(connection: psycopg.Connection[Any], select: str) -> Table | str:
    """Returns PostgreSQL's rows, with values as JSON; or its error."""
    try:
        cursor = connection.execute(f"SELECT * FROM ({select}) x LIMIT 0")
        names = [each.name for each in cursor.description or ()]
        shown = ", ".join(
            f'pg_typeof("{n}")::text, CASE WHEN pg_typeof("{n}")::text LIKE \'%[]\' OR pg_typeof("{n}")::text LIKE \'json%\' '
            f'THEN to_jsonb("{n}")::text WHEN pg_typeof("{n}")::text = \'character\' AND "{n}" IS NOT NULL THEN format(\'%s\', "{n}") ELSE "{n}"::text END'
            for n in names
        )
        found = connection.execute(f"SELECT {shown} FROM ({select}) x").fetchall()
        types = connection.execute(
            f"SELECT {', '.join(f'pg_typeof(x.{n})::text' for n in names)} FROM (SELECT) e LEFT JOIN ({select}) x ON false"
        ).fetchone()
    except psycopg.Error as error:
        return str(error).splitlines()[0]
    return tuple(types or ()), [row[1::2] for row in found]


def _documents(test: ViewTest, rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    test.reset()
    for table, values in rows.items():
        test.insert(table, *values)
    return test.commit().documents("v")


def _compared(wanted: Table, got: list[dict[str, Any]]) -> str:
    types, rows = wanted
    one = sorted(
        repr([_of_postgres(kind, each) for kind, each in zip(types, row, strict=True)]) for row in rows
    )
    other = sorted(
        repr([_of_document(kind, each) for kind, each in zip(types, row.values(), strict=True)])
        for row in got
    )
    if one == other:
        return EQUAL
    pairs = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), (one, other))
    return f"{DIFFERENT}{pairs[0]}, got {pairs[1]}"


def _of_postgres(kind: str, value: str | None) -> Any:
    if value is None:
        return None
    if kind.endswith("[]"):
        return _elements(kind[:-2], json.loads(value, parse_float=Decimal, parse_int=Decimal))
    if kind.startswith("json"):
        return _json(json.loads(value, parse_float=Decimal, parse_int=Decimal))
    if kind == "boolean":
        return value in ("t", "true")
    if kind == "bytea":
        return value
    return _scalar(kind, value)


def _of_document(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind.endswith("[]"):
        return _elements(kind[:-2], value)
    if kind.startswith("json"):
        return _json(value)
    if kind == "boolean":
        return value
    if kind == "bytea" and isinstance(value, str):
        return "\\x" + b64decode(value).hex()
    return _scalar(kind, value)


def _elements(kind: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_elements(kind, each) for each in value]
    return value if value is None or isinstance(value, bool) else _scalar(kind, value)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return [_json(each) for each in value]
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return repr(float(value))  # the tests of pipelines read numbers as floats
    return value


def _number(text: str) -> str:
    value = Decimal(text)
    return str(value) if not value.is_finite() else f"{value.normalize():f}" if value else "0"


def _scalar(kind: str, value: Any) -> Any:
    text = str(value)
    if kind in {"smallint", "integer", "bigint", "numeric", "oid"}:
        return _number(text)
    if kind == "double precision":
        return repr(float(text))
    if kind == "real":
        return pack("f", float(text)).hex()
    if kind.startswith(("timestamp", "time")):
        plain = text.replace("T", " ").replace("Z", "+00")
        return re.sub(r"\.(\d*?)0+(?=$|\+)", lambda found: f".{found[1]}" if found[1] else "", plain)
    if kind == "interval":
        return (
            re.sub(r"months?", "mons", re.sub(r"\bmon\b", "mons", text))
            .replace("+", "")
            .replace("years", "year")
            .replace("days", "day")
        )
    return value if isinstance(value, str) else f"not text: {value!r}"


def page(outcomes: Sequence[Outcome]) -> str:
    """Returns the page."""
    rows = []
    for area, found in groupby(outcomes, key=lambda each: each.case.area):
        each = list(found)
        equal = sum(one.result == EQUAL or one.result.startswith(PARTLY) for one in each)
        refused = [one.case.text for one in each if one.result.startswith(REFUSED)]
        shown = ", ".join(f"`{text.replace('|', chr(92) + '|')}`" for text in refused[:6])
        more = f" and {len(refused) - 6} more" if len(refused) > 6 else ""
        rows.append(f"| {area} | {len(each)} | {equal} | {shown}{more} |\n")
    return HEADER.format(count=len(outcomes)) + "".join(rows)


def main() -> int:
    """Runs the trial and writes the page; the exit code is 1 if a value is different."""
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresServer(Path(folder))
        server.start()
        try:
            outcomes = run(server, trial())
        finally:
            server.stop()
    wrong = [each for each in outcomes if each.result.startswith(DIFFERENT)]
    for each in wrong:
        sys.stdout.write(f"{each.case.text}: {each.result}\n")
    PAGE.write_text(page(outcomes), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
