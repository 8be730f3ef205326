"""The reference page of types, written by ``python -m slackwater_lab.column_types``.

It says what each type of PostgreSQL becomes behind a real connector, compared value by value with the
database: for each step and replica identity exact, or the words of a refusal.
"""

import json
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from struct import pack
from typing import Any, Final

import duckdb
import msgspec
import psycopg
import pyarrow as pa
from confluent_kafka import TopicPartition

from slackwater.dev import DevStack, DevStackSettings
from slackwater.sql.catalog import ColumnType, Table, TypeKind
from slackwater.sql.errors import RowContradictsSchemaError
from slackwater.sql.postgres import parse_catalog, pull_schema
from slackwater.sql.row_codec import RowCodec, WireRow
from slackwater_lab.topics import open_consumer

SCHEMA: Final = "ty"
TYPES: Final = """
CREATE TYPE ty.mood AS ENUM ('sad', 'ok');
CREATE TYPE ty.address AS (street text, number int);
CREATE TYPE ty.floats AS RANGE (subtype = float8);
CREATE DOMAIN ty.year AS int CHECK (VALUE > 1900);
CREATE DOMAIN ty.tags AS text[];
CREATE DOMAIN ty.document AS hstore;
"""
PREPARATION: Final = f"""
CREATE EXTENSION IF NOT EXISTS citext;
CREATE EXTENSION IF NOT EXISTS hstore;
CREATE EXTENSION IF NOT EXISTS ltree;
CREATE SCHEMA ty;
{TYPES}
SET search_path = ty, public;
"""
_BASES: Final = {"tags": "text[]", "document": "hstore"}
"""The base types of domains whose values are compared as those of another type."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A type and its values.

    Attributes:
        type: The type, as in CREATE TABLE.
        values: SQL expressions; the first one is ordinary, and the column's DEFAULT in one column.
        large: A value that is stored out of line; empty if the type has none.
    """

    type: str
    values: tuple[str, ...]
    large: str = ""


def _samples() -> Iterator[Sample]:
    declared = tomllib.loads((resources.files("slackwater_lab") / "column_types.toml").read_text())
    for name, fields in declared.items():
        yield Sample(name, tuple(fields["values"]), fields.get("large", ""))
    for name, fields in declared.items():
        if fields.get("element"):
            yield _array(name, fields["values"])


def _array(of: str, values: Sequence[str]) -> Sample:
    written = (
        *(f"ARRAY[{value}]::{of}[]" for value in values),
        f"'{{}}'::{of}[]",
        f"ARRAY[{values[0]}, NULL]::{of}[]",
        f"ARRAY[NULL]::{of}[]",
        f"ARRAY[[{values[0]}], [{values[0]}]]::{of}[]",
    )
    large = f"(SELECT array_agg({values[0]}::{of}) FROM generate_series(1, 3000))"
    return Sample(f"{of}[]", written, large)


SAMPLES: Final = tuple(_samples())

IDENTITIES: Final = ("default", "full", "index")
STEPS: Final = ("snapshot", "insert", "update", "key change", "out of line", "NULL with DEFAULT")
EXACT, WRONG = "exact", "WRONG"
OVERRIDES: Final = {"value.converter.schemas.enable": "true"}
"""Properties of the connector."""

_LARGE, _INSERTED, _MOVED, _LAST = 500, 1000, 5000, 9999
"""Where ids begin: of rows with a large value, of rows that are inserted while the connector streams, of rows
whose key was changed; and the id of the last row."""

Values = Mapping[tuple[str, str, int], tuple[Any, Any]]
"""By table, op and id: what the database has in both columns, as text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a value.

    Attributes:
        type: The type.
        identity: The table's replica identity.
        step: What happened to the row.
        result: ``exact``, ``WRONG`` with the values, or the words of the refusal.
        value: The value, shortened; empty if all are meant.
    """

    type: str
    identity: str
    step: str
    result: str
    value: str = ""


def run_trial(stack: DevStack) -> list[Outcome]:
    """Returns what became of every value, given a started stack without a connector. Blocks for a minute.

    The connector has to write schemas (:data:`OVERRIDES`): they must say of every type that its form is read.
    """
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as database:
        database.execute("SET timezone = 'UTC'; SET extra_float_digits = 1")
        database.execute(PREPARATION.encode())
        tables = [_make(database, n, sample, i) for n, sample in enumerate(SAMPLES) for i in IDENTITIES]
        values = dict(_values(database, tables, "r"))
        stack.start_connector([name for name, _, _ in tables])
        stack.wait_until_streaming()
        for name, sample, _ in tables:
            _change(database, name, sample)
        values.update(_values(database, tables, "streamed"))
        records = _read(stack, [name for name, _, _ in tables])
        declared = parse_catalog({"": pull_schema(database, [name for name, _, _ in tables])})
    by_name = {table.full_name: table for table in declared.tables}
    return [
        outcome
        for name, sample, identity in tables
        for outcome in _Judge(by_name[name], sample, identity, values).judge(records[name])
    ]


def _make(
    database: psycopg.Connection, number: int, sample: Sample, identity: str
) -> tuple[str, Sample, str]:
    name, of = f"{SCHEMA}.t{number}_{identity}", sample.type
    rows = [f"({n}, {value}, NULL, 0, {n})" for n, value in enumerate((*sample.values, "NULL"), 1)]
    rows.append(f"({_LARGE + 2}, {sample.values[0]}, NULL, 0, {_LARGE + 2})")
    if sample.large:
        rows += [f"({n}, {sample.large}, NULL, 0, {n})" for n in (_LARGE, _LARGE + 1)]
    columns = f"id int PRIMARY KEY, v {of}, n {of} DEFAULT {sample.values[0]}, w int, k int NOT NULL"
    unique = f"t{number}_{identity}_k"
    statements = [
        f"CREATE TABLE {name} ({columns})",
        *([f"ALTER TABLE {name} ALTER v SET STORAGE EXTERNAL"] if sample.large else []),
        f"CREATE UNIQUE INDEX {unique} ON {name} (k)",
        *([f"ALTER TABLE {name} REPLICA IDENTITY FULL"] if identity == "full" else []),
        *([f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {unique}"] if identity == "index" else []),
        *(f"INSERT INTO {name} VALUES {row}" for row in rows),
    ]
    for statement in statements:
        database.execute(statement.encode())
    return name, sample, identity


def _change(database: psycopg.Connection, name: str, sample: Sample) -> None:
    """Inserts, updates, leaves large values alone, and changes keys; each row is changed once."""
    values = sample.values
    statements = [
        *(f"INSERT INTO {name} VALUES ({n}, {v}, NULL, 0, {n})" for n, v in enumerate(values, _INSERTED + 1)),
        *(
            f"UPDATE {name} SET v = {values[n % len(values)]}, w = 1 WHERE id = {n}"
            for n in range(1, len(values) + 1)
        ),
        f"UPDATE {name} SET w = 1 WHERE id = {_LARGE}",
        f"UPDATE {name} SET id = id + {_MOVED} WHERE id IN ({_LARGE + 1}, {_LARGE + 2})",
        f"INSERT INTO {name} VALUES ({_LAST}, NULL, NULL, 0, {_LAST})",
    ]
    for statement in statements:
        database.execute(statement.encode())


def _values(
    database: psycopg.Connection, tables: Sequence[tuple[str, Sample, str]], op: str
) -> Iterator[tuple[tuple[str, str, int], tuple[Any, Any]]]:
    for name, sample, _ in tables:
        shown = ", ".join(in_database(sample.type, column) for column in ("v", "n"))
        for number, v, n in database.execute(f"SELECT id, {shown} FROM {name}".encode()):
            yield (name, op, number), (v, n)


def _read(stack: DevStack, names: Sequence[str]) -> Mapping[str, list[Mapping[str, msgspec.Raw]]]:
    """Returns the records of each table up to its last row."""
    prefix = stack.settings.prefix
    consumer = open_consumer(stack.kafka.bootstrap, fetch_max_bytes=4_000_000)
    consumer.assign([TopicPartition(f"{prefix}.{name}", 0, 0) for name in names])
    decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    found: dict[str, list[Mapping[str, msgspec.Raw]]] = defaultdict(list)
    unfinished = set(names)
    while unfinished:
        if not (messages := consumer.consume(500, 1.0)):
            stack.wait_until_streaming()  # fails if the connector has stopped
        for message in messages:
            if message.error() is None and (value := message.value()) is not None:
                name = str(message.topic()).removeprefix(f"{prefix}.")
                envelope = decode(value)
                record = decode(envelope["payload"]) | {"schema": envelope["schema"]}
                found[name].append(record)
                if bytes(record["op"]) == b'"c"' and _id(record) == _LAST:
                    unfinished.discard(name)
    consumer.close()
    return found


def _id(record: Mapping[str, msgspec.Raw]) -> int:
    return int(msgspec.json.decode(record["after"], type=dict[str, Any])["id"])


class _Judge:
    """Compares what the records of a table become with what the database has."""

    def __init__(self, table: Table, sample: Sample, identity: str, values: Values) -> None:
        self._table, self._sample, self._identity, self._values = table, sample, identity, values
        self._column = next(column for column in table.columns if column.name == "v")
        self._rows: dict[int, WireRow] = {}

    def judge(self, records: Sequence[Mapping[str, msgspec.Raw]]) -> Iterator[Outcome]:
        if not self._column.type.is_supported:
            for step in STEPS:
                yield self._outcome(step, self._column.type.reason)
            return
        plain = RowCodec(self._table, ["v", "n"])
        for record in records:
            op, after = msgspec.json.decode(record["op"], type=str), record["after"]
            if op != "d" and (number := _id(record)) != _LAST:
                codec = plain.of_schema(bytes(record["schema"]))
                yield from self._judge_row(codec, op, number, bytes(after))

    def _judge_row(self, codec: RowCodec, op: str, number: int, after: bytes) -> Iterator[Outcome]:
        step = _step(op, number)
        key = (self._table.full_name, "r" if op == "r" else "streamed", number)
        wanted = self._values[key]
        shown = _shown(wanted[0]) if step in ("snapshot", "insert", "update") else ""
        try:
            row = codec.decode(after, is_snapshot=op == "r")
        except RowContradictsSchemaError as error:
            yield self._outcome(step, f"{error.expected}. {error.hint}", shown)
            return
        if codec.has_unavailable(row):
            row = codec.merge(row, self._rows.get(number) or self._rows[number - _MOVED])
        self._rows[number] = row
        v, n = self._meant(row)
        yield self._outcome(step, self._verdict(wanted[0], v), shown)
        yield self._outcome(STEPS[-1], self._verdict(wanted[1], n))

    def _outcome(self, step: str, result: str, value: str = "") -> Outcome:
        return Outcome(self._sample.type, self._identity, step, result, value)

    def _verdict(self, wanted: Any, got: Any) -> str:
        return (
            EXACT
            if is_same(self._column.type, wanted, got)
            else f"{WRONG}: {_shown(got)} for {_shown(wanted)}"
        )

    def _meant(self, row: WireRow) -> tuple[Any, ...]:
        """Returns what views see, as text."""
        of = self._column.type
        arrow = pa.table({name: pa.array([value], of.arrow) for name, value in zip("vn", row, strict=True)})
        shown = ", ".join(in_duckdb(of, f"({of.duckdb_expression(column)})") for column in "vn")
        connection = _in_memory()
        connection.register("given", arrow)
        (found,) = connection.execute(f"SELECT {shown} FROM given").fetchall()
        return tuple(found)


@cache
def _in_memory() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _step(op: str, number: int) -> str:
    if op == "r":
        return "snapshot"
    if number > _MOVED:
        return "key change"
    if op == "c":
        return "insert"
    return "out of line" if number == _LARGE else "update"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def in_database(name: str, column: str) -> str:
    """Returns SQL of PostgreSQL for the text, or the array of texts, of a column of this type."""
    name = _BASES.get(name, name)
    if name.endswith("[]"):
        element = in_database(name.removesuffix("[]"), "e")
        return (
            f"CASE WHEN {column} IS NULL THEN NULL WHEN array_ndims({column}) > 1 THEN ARRAY['inner arrays'] "
            f"WHEN array_ndims({column}) IS NULL THEN '{{}}'::text[] ELSE (SELECT array_agg({element} "
            f"ORDER BY o) FROM unnest({column}) WITH ORDINALITY u(e, o))::text[] END"
        )
    kind = name.partition("(")[0]
    if kind == "date":
        days = f"({column} - DATE '1970-01-01')::text"
        return f"CASE WHEN isfinite({column}) THEN {days} ELSE {column}::text END"
    microseconds = f"(extract(epoch FROM {column}) * 1000000)::numeric(30,0)::text"
    if kind in {"timestamp", "timestamptz"}:
        return f"CASE WHEN isfinite({column}) THEN {microseconds} ELSE {column}::text END"
    if kind == "time":
        return microseconds
    if kind == "hstore":
        return f"hstore_to_json({column})::text"
    if kind == "interval":
        parts = _interval(column, "extract({0} FROM {1})::bigint", "extract(second FROM {1}) * 1000000")
        return f"CASE WHEN {column} IS NOT NULL THEN concat_ws(' ', {parts}) END"
    if kind == "bytea":
        return f"encode({column}, 'hex')"
    return f"host({column}) || '/' || masklen({column})" if kind == "inet" else _plain(kind, column)


def _interval(value: str, part: str, microseconds: str) -> str:
    """Returns SQL for the months, days and microseconds of an interval."""
    year, month, day, hour, minute = (
        part.format(each, value) for each in ("year", "month", "day", "hour", "minute")
    )
    of_day = f"({hour} * 60 + {minute}) * 60000000 + {microseconds.format('', value)}"
    return f"{year} * 12 + {month}, {day}, CAST({of_day} AS bigint)"


def _plain(kind: str, column: str) -> str:
    return f"rpad({column}::text, 5)" if kind == "char" else f"{column}::text"


def in_duckdb(column_type: ColumnType, value: str) -> str:
    """Returns SQL of DuckDB for the text, or the list of texts, of a value of a column of this type."""
    if column_type.element is not None:
        return f"list_transform({value}, lambda y: {in_duckdb(column_type.element, 'y')})"
    kind = column_type.kind
    if kind is TypeKind.DATE:
        days = f"CAST({value} - DATE '1970-01-01' AS VARCHAR)"
        return f"CASE WHEN isfinite({value}) THEN {days} ELSE CAST({value} AS VARCHAR) END"
    if kind in {TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ}:
        microseconds = f"CAST(epoch_us({value}) AS VARCHAR)"
        return f"CASE WHEN isfinite({value}) THEN {microseconds} ELSE CAST({value} AS VARCHAR) END"
    if kind is TypeKind.INTERVAL:
        parts = _interval(value, "datepart('{0}', {1})", "datepart('microsecond', {1})")
        return f"CASE WHEN {value} IS NOT NULL THEN concat_ws(' ', {parts}) END"
    if kind is TypeKind.TIME:
        return f"CAST(epoch_us({value}) AS VARCHAR)"
    return f"lower(hex({value}))" if kind is TypeKind.BYTEA else f"CAST({value} AS VARCHAR)"


def is_same(column_type: ColumnType, wanted: Any, got: Any) -> bool:
    """Returns whether two texts, or lists of texts, are of the same value."""
    if isinstance(wanted, list) and isinstance(got, list):
        element = column_type.element or column_type
        return len(wanted) == len(got) and all(map(is_same, [element] * len(got), wanted, got))
    if not isinstance(wanted, str) or not isinstance(got, str):
        return wanted is None and got is None
    if column_type.kind is TypeKind.NUMERIC:
        try:
            return Decimal(wanted) == Decimal(got)
        except InvalidOperation:
            return False
    if column_type.kind is TypeKind.REAL:
        return pack("f", float(wanted)) == pack("f", float(got))
    if column_type.kind is TypeKind.DOUBLE:
        return repr(float(wanted)) == repr(float(got))
    if column_type.name == "hstore":
        return bool(json.loads(wanted) == json.loads(got))
    if column_type.name == "inet":
        return wanted in (got, f"{got}/32", f"{got}/128")
    return wanted == got


PAGE: Final = Path("docs/reference/column-types.md")
REFUSED: Final = "refused"
HEADER: Final = """\
<!-- Written by `make column-types` from a real connector; do not edit. -->
# Column types

What the types of PostgreSQL become behind Debezium's connector. A test with a real database and a real
connector (`make column-types`) wrote this page: it compares every value with the database.

- *exact*: views have exactly the values of the database.
- *exact, except*: some values are refused. The run ends, with the column, the value and the words that the
  number stands for, before anything is shown.
- *refused*: a view that uses the column is rejected, with these words. Other views of the table are not
  affected.

*Out of line* is an update that leaves a large value unchanged (TOAST); *NULL with DEFAULT* is NULL in a
column that has a DEFAULT. The connector is configured as `slackwater connector print` does it
([connector.md](../connector.md)). Arrays were also tried empty, with NULLs and with two dimensions, dates and
times also infinite, before Christ and beyond the year 9999.

"""


def page(outcomes: Sequence[Outcome]) -> str:
    """Returns the page."""
    notes: dict[str, int] = {}
    names = dict.fromkeys(outcome.type for outcome in outcomes)
    rows = [row for name in names for row in _rows([o for o in outcomes if o.type == name], notes)]
    head = f"| type | replica identity | {' | '.join(STEPS)} |\n|{'---|' * (2 + len(STEPS))}\n"
    words = "".join(f"{number}. {text}\n" for text, number in notes.items())
    return f"{HEADER}{head}{''.join(rows)}\n## Refusals\n\n{words}"


def _rows(outcomes: Sequence[Outcome], notes: dict[str, int]) -> Iterator[str]:
    cells = {i: _cells([o for o in outcomes if o.identity == i], notes) for i in IDENTITIES}
    for found, identities in groupby(sorted(IDENTITIES, key=lambda i: cells[i]), key=lambda i: cells[i]):
        alike = set(identities)
        named = [identity for identity in IDENTITIES if identity in alike]
        shown = "all" if len(named) == len(IDENTITIES) else ", ".join(named)
        yield f"| `{outcomes[0].type}` | {shown} | {' | '.join(found)} |\n"


def _cells(outcomes: Sequence[Outcome], notes: dict[str, int]) -> tuple[str, ...]:
    return tuple(_cell([o for o in outcomes if o.step == step], notes) for step in STEPS)


def _cell(outcomes: Sequence[Outcome], notes: dict[str, int]) -> str:
    if not outcomes:
        return ""
    words = dict.fromkeys(outcome.result for outcome in outcomes if outcome.result != EXACT)
    numbers = ", ".join(f"[{notes.setdefault(text, len(notes) + 1)}]" for text in words)
    if all(outcome.result != EXACT for outcome in outcomes):
        return f"{REFUSED} {numbers}"
    return f"{EXACT}, except {numbers}" if numbers else EXACT


def main() -> int:
    """Runs the trial and writes the page; the exit code is 1 if a value is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        settings = DevStackSettings(
            folder=Path(folder),
            keep_data=False,
            partitions=1,
            kafka_heap="512m",
            connector_overrides=OVERRIDES,
        )
        with DevStack(settings) as stack:
            outcomes = run_trial(stack)
    wrong = [outcome for outcome in outcomes if outcome.result.startswith(WRONG)]
    for outcome in wrong:
        sys.stdout.write(f"{outcome}\n")
    PAGE.write_text(page(outcomes), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
