"""Random tables, values of all types, publications, connector properties and statements, all from a seed."""

import base64
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from random import Random
from typing import Any

Make = Callable[[Random], str]
"""Makes a literal of SQL."""
Read = Callable[[Any], object]
"""Brings a value of JSON into a form in which equal values are equal."""


@dataclass(frozen=True, slots=True)
class StrangeType:
    """A type with its values."""

    name: str
    """As CREATE TABLE has it; ``{enum}`` and ``{domain}`` stand for names of the schema."""
    make: Make
    read: Read
    is_key: bool = False
    """Whether a primary key may have it."""


def quote(text: str) -> str:
    """Returns a text as a literal of SQL."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _one_of(*literals: str) -> Make:
    return lambda random: random.choice(literals)


def _number(value: Any) -> object:
    return None if value is None else str(Decimal(str(value)).normalize() if _is_finite(value) else value)


def _is_finite(value: Any) -> bool:
    return str(value).lower() not in {"nan", "infinity", "-infinity", "inf", "-inf"}


def _float(value: Any) -> object:
    return None if value is None else repr(float(str(value)))


def _real(value: Any) -> object:
    return None if value is None else repr(struct.unpack("f", struct.pack("f", float(str(value))))[0])


def _text(value: Any) -> object:
    return value


def _time(value: Any) -> object:
    """Reads dates and times: PostgreSQL's JSON has another zone, and fewer digits, than a document."""
    if value is None:
        return None
    text = str(value).replace("T", " ").replace("+00:00", "Z").replace(" (BC)", " BC")
    zone = "Z" if "Z" in text else ""
    head, _, digits = text.removesuffix(" BC").removesuffix("Z").partition(".")
    if text.endswith(" BC"):  # the year before 1 is 0 in a document
        year, _, rest = head.partition("-")
        head = f"{1 - int(year)}-{rest}"
    return f"{head}.{digits.rstrip('0')}{zone}"


def _json(value: Any) -> object:
    return json.dumps(value, sort_keys=True)


def _bytes(value: Any) -> object:
    if value is None:
        return None
    text = str(value)
    return text if text.startswith("\\x") else "\\x" + base64.b64decode(text).hex()


def _array(read: Read) -> Read:
    """Reads an array; PostgreSQL's JSON has no -0, so that of an array is not told from 0."""
    return lambda value: None if value is None else [read(0 if each == 0 else each) for each in value]


def _large(random: Random) -> str:
    return f"(SELECT string_agg(md5(i::text || '{random.random()}'), '') FROM generate_series(1, 300) i)"  # noqa: S608 - our own


_TEXTS = _one_of(
    "''", "'x'", "'It''s'", quote('"\\ \n\t'), "'äöü€'", "'🙂'", "' '", "'__debezium_unavailable_value'"
)
_INTS = _one_of("0", "1", "-1", "7", "32767", "-32768")
_DATES = _one_of("'2024-02-29'", "'1970-01-01'", "'1969-12-31'", "'9999-12-31'", "'1582-10-25'")
_RARE_DATES = _one_of(
    "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'1000-01-01'", "'1500-02-28'", "'1582-10-15'"
)
_TIMESTAMPS = _one_of(
    "'2024-02-29 23:59:59.999999'", "'1970-01-01'", "'1969-12-31 23:59:59.5'", "'2000-01-01 00:00:00.001'"
)


def _mostly(common: Make, rare: Make) -> Make:
    return lambda random: common(random) if random.random() < 0.95 else rare(random)


def _array_of(make: Make, name: str) -> Make:
    def literal(random: Random) -> str:
        if random.random() < 0.05:
            one = f"(SELECT {make(random)}::{name} x) s"
            return f"(SELECT array_agg(x) FROM generate_series(1, 3000) g, {one})"  # noqa: S608 - our own
        return f"ARRAY[{', '.join(make(random) for _ in range(random.randrange(4)))}]::{name}[]"

    return literal


_SCALARS = (
    StrangeType("smallint", _INTS, _number, is_key=True),
    StrangeType("integer", _INTS, _number, is_key=True),
    StrangeType("bigint", _one_of("0", "9007199254740993", "-9223372036854775808"), _number, is_key=True),
    StrangeType("boolean", _one_of("true", "false"), _text),
    StrangeType("real", _mostly(_one_of("0.1", "-0.05", "1e30"), _one_of("'NaN'", "'Infinity'")), _real),
    StrangeType(
        "double precision", _mostly(_one_of("0.1", "1e300", "-0.0"), _one_of("'NaN'", "'-Infinity'")), _float
    ),
    StrangeType("numeric(12,3)", _one_of("0", "1.5", "-123456789.123"), _number),
    StrangeType(
        "numeric", _mostly(_one_of("0", "1.50", "1e15", "-0.00001"), _one_of("'NaN'", "1e40")), _number
    ),
    StrangeType(
        "text", lambda random: _large(random) if random.random() < 0.1 else _TEXTS(random), _text, True
    ),
    StrangeType("varchar(100)", _TEXTS, _text, is_key=True),
    StrangeType("char(8)", _one_of("'a'", "'abc'", "''"), _text),
    StrangeType("citext", _one_of("'a'", "'A'", "'Bc'"), _text),
    StrangeType("date", _mostly(_DATES, _RARE_DATES), _time),
    StrangeType("timestamp", _mostly(_TIMESTAMPS, _RARE_DATES), _time),
    StrangeType("timestamp(3)", _mostly(_TIMESTAMPS, _RARE_DATES), _time),
    StrangeType("timestamptz", _mostly(_TIMESTAMPS, _RARE_DATES), _time),
    StrangeType(
        "time", _mostly(_one_of("'00:00'", "'23:59:59.999999'", "'12:30:00.5'"), _one_of("'24:00'")), _time
    ),
    StrangeType("time(3)", _one_of("'00:00'", "'23:59:59.123'"), _time),
    StrangeType(
        "uuid", _one_of("'00000000-0000-0000-0000-000000000000'", "gen_random_uuid()"), _text, is_key=True
    ),
    StrangeType("json", _one_of("""'{"a": [1, null]}'""", "'1'", "'null'", "'\"x\"'", "'[]'"), _json),
    StrangeType("jsonb", _one_of("""'{"b": 1.10, "a": {}}'""", "'true'", "'null'", "'[1, \"x\"]'"), _json),
    StrangeType("bytea", _one_of("''", r"'\x00ff'", "decode(repeat('ab', 5000), 'hex')"), _bytes),
    StrangeType("{enum}", _one_of("'sad'", "'glad'"), _text),
    StrangeType("{domain}", _one_of("1", "99.99"), _number),
    StrangeType("inet", _one_of("'10.0.0.1'", "'10.1.0.0/16'", "'::1'"), _text),
    StrangeType("oid", _one_of("0", "4294967295"), _number),
    StrangeType("interval", _one_of("'1 month'", "'-1 day'"), _text),
    StrangeType("name", _one_of("'x'"), _text),
)
_NO_ELEMENTS = ("char", "citext", "time", "json", "bytea", "{domain}", "inet", "oid", "interval", "name")
TYPES = (
    *_SCALARS,
    *(
        StrangeType(f"{each.name}[]", _array_of(each.make, each.name), _array(each.read))
        for each in _SCALARS
        if not each.name.startswith(_NO_ELEMENTS) or each.name.startswith("timestamp")
    ),
)
"""All types that a column may have."""


_NAMES = ("a", "b", "Camel", "with space", "über", "select", "a-b", "x_y")
_TABLE_NAMES = ("t{}", "T{}", "odd name {}", "a.b.{}", "😀 %, {}", "größe-{}")
_IDENTITIES = ("DEFAULT", "DEFAULT", "FULL", "FULL", "NOTHING")


@dataclass(slots=True)
class StrangeColumn:
    """A column of a random table."""

    name: str
    type: StrangeType
    sql: str
    """Its type as CREATE TABLE has it."""
    default: str = ""
    is_required: bool = False

    @property
    def quoted(self) -> str:
        """Its name as SQL writes it."""
        return '"' + self.name.replace('"', '""') + '"'

    @property
    def definition(self) -> str:
        """What CREATE TABLE has of it."""
        default = f" DEFAULT {self.default}" if self.default else ""
        return f"{self.quoted} {self.sql}{default}{' NOT NULL' if self.is_required else ''}"

    def value(self, random: Random) -> str:
        """Returns a random literal."""
        if not self.is_required and random.random() < 0.2:
            return "NULL"
        if self.default and random.random() < 0.2:
            return "DEFAULT"
        return _literal(self.type, self.sql, random)


@dataclass(slots=True)
class StrangeTable:
    """A random table; its key is ``id``, which rises."""

    schema: str
    name: str
    columns: list[StrangeColumn]
    identity: str
    is_partitioned: bool
    next_id: int = 1
    ids: list[int] = field(default_factory=list)

    @property
    def quoted(self) -> str:
        """Its full name as SQL writes it."""
        return f'{self.schema}."{self.name}"'

    @property
    def full_name(self) -> str:
        """``schema.table``."""
        return f"{self.schema}.{self.name}"

    def statements(self) -> Iterator[str]:
        """Yields what makes it."""
        columns = ", ".join(["id int PRIMARY KEY", *(each.definition for each in self.columns)])
        partitioned = " PARTITION BY RANGE (id)" if self.is_partitioned else ""
        yield f"CREATE TABLE {self.quoted} ({columns}){partitioned}"
        if self.is_partitioned:
            for number, (low, high) in enumerate(((0, 5), (5, 20), (20, 10_000)), 1):
                yield self.partition(number, low, high)
        if self.identity != "DEFAULT":
            yield f"ALTER TABLE {self.quoted} REPLICA IDENTITY {self.identity}"
            if self.is_partitioned:
                for number in (1, 2, 3):
                    yield f'ALTER TABLE {self.schema}."{self.name}_{number}" REPLICA IDENTITY {self.identity}'

    def partition(self, number: int, low: int, high: int) -> str:
        """Returns what makes a partition."""
        part = f'{self.schema}."{self.name}_{number}"'
        return f"CREATE TABLE {part} PARTITION OF {self.quoted} FOR VALUES FROM ({low}) TO ({high})"

    def inserts(self, random: Random, count: int) -> Iterator[str]:
        """Yields statements that add rows."""
        for _ in range(count):
            self.ids.append(self.next_id)
            values = ", ".join([str(self.next_id), *(each.value(random) for each in self.columns)])
            names = ", ".join(["id", *(each.quoted for each in self.columns)])
            yield f"INSERT INTO {self.quoted} ({names}) VALUES ({values})"  # noqa: S608 - our own
            self.next_id += random.choice((1, 1, 3))

    def change(self, random: Random) -> str:
        """Returns a statement that changes or removes rows."""
        row = random.choice(self.ids) if self.ids else 0
        kind = random.random()
        if self.identity == "NOTHING":
            return next(self.inserts(random, 1))
        if kind < 0.5 and self.columns:
            column = random.choice(self.columns)
            return f"UPDATE {self.quoted} SET {column.quoted} = {column.value(random)} WHERE id = {row}"  # noqa: S608 - our own
        if kind < 0.65:
            self.next_id += 1
            self.ids.append(self.next_id)
            return f"UPDATE {self.quoted} SET id = {self.next_id} WHERE id = {row}"  # noqa: S608 - our own
        if kind < 0.7:
            return f"UPDATE {self.quoted} SET id = id + 1000 WHERE id < 1000"  # noqa: S608 - our own
        if kind < 0.75:
            return f"TRUNCATE {self.quoted}"
        if kind < 0.8 and self.columns:
            column = random.choice(self.columns)
            return f"UPDATE {self.quoted} SET {column.quoted} = {column.quoted}"  # noqa: S608 - our own
        return f"DELETE FROM {self.quoted} WHERE id = {row}"  # noqa: S608 - our own


class Knowledge(StrEnum):
    """Who knows a connector's configuration."""

    ASKED = "asked"
    """The sidecar, which asks Kafka Connect, and the run."""
    STATED = "stated"
    """The run, in whose settings it is stated."""
    HIDDEN = "hidden"
    """Nobody: values have to prove their form."""


@dataclass(slots=True)
class StrangeCase:
    """Everything that follows from a seed."""

    seed: int
    random: Random
    tables: list[StrangeTable]
    publication: str
    """The statement that makes it."""
    properties: dict[str, str]
    """Of the connector, beside those that it needs."""
    knowledge: "Knowledge"
    """Who knows the connector's configuration."""

    @property
    def schema(self) -> str:
        """The schema of the tables, which names source and publication, too."""
        return f"s{self.seed}"

    def transactions(self, count: int) -> Iterator[list[str]]:
        """Yields the statements of transactions that change rows."""
        for _ in range(count):
            table = self.random.choice(self.tables)
            size = self.random.choice((1, 1, 2, 5))
            yield [
                statement
                for _ in range(size)
                for statement in (
                    [table.change(self.random)]
                    if self.random.random() < 0.6
                    else table.inserts(self.random, self.random.choice((1, 3)))
                )
            ]

    def definitions(self) -> Iterator[list[str]]:
        """Yields the statements of transactions that change tables or what is captured of them."""
        for _ in range(self.random.choice((0, 0, 0, 1, 2))):
            table = self.random.choice(self.tables)
            choices = [*_table_ddl(table, self.random), *_publication_ddl(self, table)]
            if table.is_partitioned:
                choices += _partition_ddl(table)
            yield self.random.choice(choices)


def make_case(seed: int) -> StrangeCase:
    """Makes the case of a seed."""
    random = Random(seed)
    schema = f"s{seed}"
    tables = [_table(random, schema, number) for number in range(random.choice((1, 2, 3)))]
    listed = ", ".join(each.quoted for each in tables)
    options = "publish_via_partition_root = true"
    if random.random() < 0.03:
        options = random.choice(
            ("publish_via_partition_root = false", f"{options}, publish = 'insert, update'")
        )
    if random.random() < 0.02:
        listed = f"{listed} WHERE (id > 3)"
    mark = f"{schema}.mark"
    publication = f"CREATE PUBLICATION slackwater_{schema} FOR TABLE {mark}, {listed} WITH ({options})"
    properties = _properties(random)
    form = Random(f"form of {seed}")
    (knowledge,) = form.choices([*Knowledge], weights=(45, 45, 10))
    if knowledge is Knowledge.HIDDEN and not properties.keys().isdisjoint(_HIDDEN):
        knowledge = Knowledge.STATED
    if knowledge is Knowledge.HIDDEN and form.random() < 0.6:
        properties = dict([form.choice(_OTHER_FORMS)])
    if form.random() < 0.4:
        properties["value.converter.schemas.enable"] = "true"
    return StrangeCase(seed, random, tables, publication, properties, knowledge)


def _table(random: Random, schema: str, number: int) -> StrangeTable:
    names = random.sample(_NAMES, random.choice((1, 2, 4, 6)))
    columns = []
    for name in names:
        kind = random.choice(TYPES)
        written = kind.name.format(enum=f"{schema}.mood", domain=f"{schema}.price")
        default = _literal(kind, written, random) if random.random() < 0.3 else ""
        default = "" if "SELECT" in default else default
        columns.append(StrangeColumn(name, kind, written, default, random.random() < 0.2))
    is_partitioned = random.random() < 0.2
    name = random.choice(_TABLE_NAMES).format(number)
    identity = random.choice(_IDENTITIES)
    return StrangeTable(schema, name, columns, identity, is_partitioned)


def _literal(kind: StrangeType, written: str, random: Random) -> str:
    element = written.removesuffix("[]")
    return f"{kind.make(random).replace('{enum}', element)}::{written}"


_OTHER_FORMS = (
    *(("time.precision.mode", mode) for mode in ("connect", "adaptive_time_microseconds", "isostring")),
    *(("time.precision.mode", mode) for mode in ("microseconds", "nanoseconds")),
    *(("decimal.handling.mode", mode) for mode in ("precise", "double")),
    *(("binary.handling.mode", mode) for mode in ("base64", "base64-url-safe", "hex")),
)
_HIDDEN = ("skipped.operations",)
"""Properties whose effect no record shows: only the connector's configuration does."""


_PROPERTIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("time.precision.mode", ("connect", "adaptive_time_microseconds", "isostring")),
    ("decimal.handling.mode", ("precise", "double")),
    ("binary.handling.mode", ("base64", "hex")),
    ("skipped.operations", ("t", "u", "d")),
    ("snapshot.mode", ("no_data", "always", "when_needed")),
    ("value.converter.replace.null.with.default", ("true",)),
    ("unavailable.value.placeholder", ("gone",)),
    ("tombstones.on.delete", ("false",)),
    ("hstore.handling.mode", ("map",)),
    ("interval.handling.mode", ("string",)),
    ("skip.messages.without.change", ("true",)),
    ("snapshot.fetch.size", ("1",)),
    ("max.batch.size", ("3",)),
    ("provide.transaction.metadata", ("false",)),
)


def _properties(random: Random) -> dict[str, str]:
    if random.random() < 0.8:
        return {}
    name, values = random.choice(_PROPERTIES)
    return {name: random.choice(values)}


def _table_ddl(table: StrangeTable, random: Random) -> list[list[str]]:
    name = table.quoted
    bare, elsewhere = f'"{table.name}"', '"elsewhere of ' + table.name + '"'
    column = random.choice(table.columns)
    found = [
        [f"VACUUM FULL {name}"],
        [f"ANALYZE {name}"],
        [f"TRUNCATE {name}"],
        [f"ALTER TABLE {name} ADD new_column int"],
        [f"ALTER TABLE {name} ADD new_column int DEFAULT 5"],
        [f"ALTER TABLE {name} RENAME TO {elsewhere}"],
        [
            f"ALTER TABLE {name} RENAME TO {elsewhere}",
            f"DELETE FROM {table.schema}.{elsewhere}",  # noqa: S608 - our own
            f"ALTER TABLE {table.schema}.{elsewhere} RENAME TO {bare}",
        ],
        [f"ALTER TABLE {name} DROP COLUMN {column.quoted}"],
        [f"ALTER TABLE {name} DROP COLUMN {column.quoted}", f"ALTER TABLE {name} ADD {column.definition}"],
        [f"ALTER TABLE {name} ALTER {column.quoted} TYPE {column.sql} USING NULL"],
        [f"ALTER TABLE {name} ALTER {column.quoted} TYPE text USING 'x'"],
        [f"ALTER TABLE {name} REPLICA IDENTITY FULL"],
        [f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT"],
        [f"DROP TABLE {name}", *table.statements()],
        [f"ALTER TYPE {table.schema}.mood RENAME VALUE 'sad' TO 'blue'"],
        [f"ALTER TYPE {table.schema}.mood ADD VALUE 'so so'"],
        [
            f"ALTER PUBLICATION slackwater_{table.schema} DROP TABLE {name}",
            f"ALTER TABLE {name} SET UNLOGGED",
        ],
        [f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY"],
        ["SET session_replication_role = replica", f"DELETE FROM {name}", "RESET session_replication_role"],  # noqa: S608 - our own
    ]
    if not table.is_partitioned:
        found += [
            [f'CLUSTER {name} USING {table.schema}."{table.name}_pkey"'],
            [f"CREATE TABLE {table.schema}.child () INHERITS ({name})"],
            [f'ALTER TABLE {name} DROP CONSTRAINT "{table.name}_pkey", ADD PRIMARY KEY (id)'],
        ]
    return found


def _partition_ddl(table: StrangeTable) -> list[list[str]]:
    one, name = f'{table.schema}."{table.name}_1"', table.quoted
    two, four = f'{table.schema}."{table.name}_2"', f'{table.schema}."{table.name}_4"'
    attached = f"ALTER TABLE {name} ATTACH PARTITION {four} FOR VALUES FROM (20000) TO (30000)"
    copied = f"CREATE TABLE {four} (LIKE {name} INCLUDING ALL)"
    filled = f"INSERT INTO {four} SELECT (r).* FROM (SELECT r FROM {two} r LIMIT 0) s"  # noqa: S608 - our own
    return [
        [f"TRUNCATE {one}"],
        [f"DROP TABLE {one}"],
        [f"ALTER TABLE {name} DETACH PARTITION {two}"],
        [f"DELETE FROM {two}", f"ALTER TABLE {name} DETACH PARTITION {two}"],  # noqa: S608 - our own
        [copied, filled, attached],
        [table.partition(4, 20_000, 30_000)],
        [copied, f"INSERT INTO {four} (id) VALUES (20001)", attached],  # noqa: S608 - our own
        [f"TRUNCATE {one}, {two}"],
    ]


def _publication_ddl(case: StrangeCase, table: StrangeTable) -> list[list[str]]:
    publication = f"slackwater_{case.schema}"
    return [
        [f"ALTER PUBLICATION {publication} DROP TABLE {table.quoted}"],
        [
            f"ALTER PUBLICATION {publication} DROP TABLE {table.quoted}",
            f"DELETE FROM {table.quoted}",  # noqa: S608 - our own
            f"ALTER PUBLICATION {publication} ADD TABLE {table.quoted}",
        ],
        [f"ALTER PUBLICATION {publication} SET (publish = 'insert')"],
    ]
