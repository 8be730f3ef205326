"""Declared tables, which are what a pipeline knows about its source's schema, and the types of their columns.

A type says how a value is converted from Debezium's JSON to DuckDB, and passed between stages. The package of
a database (:mod:`slackwater.sql.postgres`) creates the types of its tables. What is special about that
database is data in them.

Debezium is expected to write schemaless JSON with `decimal.handling.mode=string`,
`time.precision.mode=adaptive` and `binary.handling.mode=bytes` (base64). Values written in other modes are
reported as contradicting the declared types.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import pyarrow as pa
from msgspec import Meta

MAX_DECIMAL_DIGITS = 38
"""DuckDB's widest DECIMAL."""

UNCONSTRAINED_SCALE = 18
"""Decimals kept for `numeric` without precision. A value with more of them is refused."""

MILLISECOND_DIGITS = 3
"""Debezium writes times of at most this precision in milliseconds, more precise ones in microseconds."""

BY_BYTES = frozenset({"c", "posix", "ucs_basic", "c.utf8", "c.utf-8"})
"""Collations, in lower case, that order texts by their bytes."""

_DAY_US = 86_400_000_000


class TypeKind(StrEnum):
    """Families of types that are treated alike."""

    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    BOOLEAN = "boolean"
    REAL = "real"
    DOUBLE = "double precision"
    NUMERIC = "numeric"
    TEXT = "text"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamp with time zone"
    TIME = "time"
    UUID = "uuid"
    JSON = "json"
    BYTEA = "bytea"
    BIT = "bit"
    INTERVAL = "interval"
    ARRAY = "array"
    CARRIED = "carried"
    UNSUPPORTED = "unsupported"


INTEGER_KINDS = frozenset({TypeKind.SMALLINT, TypeKind.INTEGER, TypeKind.BIGINT})
TIME_KINDS = frozenset({TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIME})
FLOAT_KINDS = frozenset({TypeKind.REAL, TypeKind.DOUBLE})
ELEMENT_KINDS = frozenset(
    set(TypeKind) - {TypeKind.ARRAY, TypeKind.BIT, TypeKind.CARRIED, TypeKind.INTERVAL, TypeKind.UNSUPPORTED}
)

_CAST = frozenset(
    {
        TypeKind.NUMERIC, TypeKind.UUID, TypeKind.JSON, TypeKind.CARRIED, TypeKind.BIT, TypeKind.INTERVAL,
    }
)  # fmt: skip
"""Values that DuckDB reads from their texts."""

_WIDER = (TypeKind.SMALLINT, TypeKind.INTEGER, TypeKind.BIGINT)
_LENGTH = re.compile(r"character varying\(([0-9]+)\)")
_NESTED_JSON = re.compile(r"\bJSON(?=[\[\],)]|$)")

_FLOAT = float | Literal["NaN", "Infinity", "-Infinity"]
_FLOAT_WORDS = 'a number, "NaN", "Infinity" or "-Infinity"'
_DURATION = (
    r"\AP(-?[0-9]+Y)?(-?[0-9]+M)?(-?[0-9]+D)?(T(-?[0-9]+H)?(-?[0-9]+M)?(-?[0-9]+(\.[0-9]{1,6})?S)?)?\Z"
)
_ZONED = r"\A(-?infinity|[+-]?[0-9]{4,6}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?Z)\Z"


class _Form(NamedTuple):
    """The values of a kind of types: in words, in JSON, and as they are passed to DuckDB."""

    words: str = ""
    wire: Any = str
    arrow: pa.DataType = pa.string()
    duckdb: str = ""
    """The DuckDB type, where its name is another one."""


def _integers(bits: int) -> Any:
    return Annotated[int, Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


_FORMS: dict[TypeKind, _Form] = {
    TypeKind.SMALLINT: _Form("an integer of 16 bits", _integers(16), pa.int16()),
    TypeKind.INTEGER: _Form("an integer of 32 bits", _integers(32), pa.int32()),
    TypeKind.BIGINT: _Form("an integer of 64 bits", _integers(64), pa.int64()),
    TypeKind.BOOLEAN: _Form("true or false", bool, pa.bool_()),
    TypeKind.REAL: _Form(_FLOAT_WORDS, _FLOAT, pa.float32(), "FLOAT"),
    TypeKind.DOUBLE: _Form(_FLOAT_WORDS, _FLOAT, pa.float64(), "DOUBLE"),
    TypeKind.NUMERIC: _Form(),
    TypeKind.TEXT: _Form("a string", duckdb="VARCHAR"),
    TypeKind.DATE: _Form(
        "days since 1970-01-01 as an integer (time.precision.mode=adaptive)", _integers(32), pa.int32()
    ),
    TypeKind.TIMESTAMP: _Form(wire=_integers(64), arrow=pa.int64()),
    TypeKind.TIMESTAMPTZ: _Form("an ISO 8601 string in UTC", Annotated[str, Meta(pattern=_ZONED)]),
    TypeKind.TIME: _Form(arrow=pa.time64("us")),
    TypeKind.UUID: _Form("a string of 36 characters", Annotated[str, Meta(min_length=36, max_length=36)]),
    TypeKind.JSON: _Form("a string that holds JSON"),
    TypeKind.BYTEA: _Form("a base64 string", duckdb="BLOB"),
    TypeKind.BIT: _Form("bytes as a base64 string, the lowest bits first"),
    TypeKind.INTERVAL: _Form(
        "an ISO 8601 duration (interval.handling.mode=string)", Annotated[str, Meta(pattern=_DURATION)]
    ),
    TypeKind.CARRIED: _Form("DuckDB's text of the value"),
    TypeKind.UNSUPPORTED: _Form(),
}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type, with everything that is needed to transport its values.

    Attributes:
        name: The type's canonical name in its database, or in DuckDB for values between stages.
        precision: Digits of a numeric, or fractional digits of seconds; None if not given.
        scale: Digits after the point of a numeric.
        hint: For an unsupported type: the types that are supported.
        is_one_text: Whether values that are equal in the database have the same text.
        may_be_unavailable: Whether updates that do not change the value may omit it.
        infinities: The numbers that represent -infinity and infinity, if the type has them.
        is_lost: Whether records contain no values, or wrong ones, so not even their text can be shown.
        labels: The labels of an enum, in their order.
        collation: The collation of texts; empty if they are ordered by their bytes.
        texts: If only some texts are values: a regular expression, and the texts in words.
        is_form_known: Whether the connector's configuration is known to give values this form. Otherwise a
            value that could mean something else in another form is refused.
    """

    kind: TypeKind
    name: str
    precision: int | None = None
    scale: int | None = None
    element: "ColumnType | None" = None
    reason: str = ""
    hint: str = ""
    is_one_text: bool = True
    may_be_unavailable: bool = False
    infinities: tuple[int, int] | None = None
    is_lost: bool = False
    texts: tuple[str, str] | None = None
    labels: tuple[str, ...] = field(default=(), compare=False)
    collation: str = field(default="", compare=False)
    is_form_known: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def is_supported(self) -> bool:
        """Whether views may use columns of this type."""
        return self.kind is not TypeKind.UNSUPPORTED

    @property
    def is_key_safe(self) -> bool:
        """Whether values that are equal in SQL are equal on the wire, and documents contain the wire form."""
        return self.kind in INTEGER_KINDS | {TypeKind.UUID, TypeKind.BOOLEAN, TypeKind.CARRIED} or (
            self.kind is TypeKind.TEXT and self.is_one_text
        )

    def includes(self, other: "ColumnType") -> bool:
        """Returns whether values of another type are values of this one, in the same form on the wire."""
        if self.kind in INTEGER_KINDS and other.kind in INTEGER_KINDS:
            return _WIDER.index(other.kind) <= _WIDER.index(self.kind)
        if self.kind is other.kind is TypeKind.NUMERIC and other.precision is not None:
            return self.precision is None or (self.decimals == other.decimals and self.digits >= other.digits)
        was, now = (_LENGTH.fullmatch(each.name) for each in (other, self))
        if was and (now or self.name == TypeKind.TEXT):
            return now is None or int(was[1]) <= int(now[1])
        return self == other

    @property
    def wire_family(self) -> str:
        """Key-safe types of one family have equal wire values exactly if the values are equal in SQL."""
        if self.kind is TypeKind.CARRIED:
            return self.name
        return "integer" if self.kind in INTEGER_KINDS else self.kind.value

    @property
    def is_millisecond(self) -> bool:
        """Whether Debezium writes this type's values in milliseconds, and not in microseconds."""
        return self.precision is not None and self.precision <= MILLISECOND_DIGITS

    @property
    def wire(self) -> Any:
        """The msgspec type of the JSON value that Debezium writes, except NULL."""
        return _wire(self)

    @property
    def arrow(self) -> pa.DataType:
        """The type in which values are passed to DuckDB; it accepts wire values unchanged."""
        if self.element is not None:
            return pa.list_(self.element.arrow)
        if self.kind is TypeKind.TIME and self.is_millisecond:
            return pa.time32("ms")
        return _FORMS[self.kind].arrow

    @property
    def duckdb(self) -> str:
        """The DuckDB type that views see."""
        if self.element is not None:
            return f"{self.element.duckdb}[]"
        if self.kind is TypeKind.CARRIED:
            return self.name
        if self.kind is TypeKind.NUMERIC:
            return f"DECIMAL({self.digits},{self.decimals})"
        return _FORMS[self.kind].duckdb or self.kind.value.upper()

    @property
    def digits(self) -> int:
        """Digits of a numeric in DuckDB."""
        return MAX_DECIMAL_DIGITS if self.precision is None else self.precision

    @property
    def decimals(self) -> int:
        """Digits after the point of a numeric in DuckDB."""
        return UNCONSTRAINED_SCALE if self.precision is None else self.scale or 0

    @property
    def expected(self) -> str:
        """The JSON value in words, for error messages."""
        if self.kind is TypeKind.NUMERIC:
            before = self.digits - self.decimals
            return (
                f"a decimal number as a string (decimal.handling.mode=string) with at most {before} digits "
                f"before and {self.decimals} after the point"
            )
        if self.kind in TIME_KINDS - {TypeKind.DATE}:
            unit = "milliseconds" if self.is_millisecond else "microseconds"
            return f"{unit} as an integer (time.precision.mode=adaptive)"
        if self.element is not None:
            return f"an array, each element null or {self.element.expected}"
        if self.kind is TypeKind.BIT and self.precision == 1:
            return _FORMS[TypeKind.BOOLEAN].words
        return _FORMS[self.kind].words if self.texts is None else self.texts[1]

    def duckdb_expression(self, column: str) -> str:
        """Returns SQL that converts the transport value in `column` exactly into this type's DuckDB value."""
        if self.element is not None:
            return self._array_expression(column, self.element)
        if self.kind is TypeKind.BYTEA:
            return f"from_base64({column})"
        if self.kind is TypeKind.TIMESTAMPTZ:
            # Years after 9999 are written as +10000, which DuckDB cannot read.
            return f"CAST(ltrim({column}, '+') AS TIMESTAMPTZ)"
        if self.kind is TypeKind.DATE:
            return self._with_infinities(column, f"DATE '1970-01-01' + {column}")
        if self.kind is TypeKind.TIMESTAMP:
            make = "epoch_ms" if self.is_millisecond else "make_timestamp"
            return self._with_infinities(column, f"{make}({column})")
        if self.kind is TypeKind.CARRIED and self.text_form != self.duckdb:
            return f"CAST(CAST({column} AS {self.text_form}) AS {self.duckdb})"
        if self.kind in _CAST:
            return f"CAST({column} AS {self.duckdb})"
        return column

    @property
    def text_form(self) -> str:
        """The DuckDB type whose text a carried value is. JSON in lists and structs has no text of its own."""
        return _NESTED_JSON.sub("VARCHAR", self.duckdb) if self.duckdb != "JSON" else self.duckdb

    def wire_expression(self, expression: str) -> str:
        """Returns SQL for the wire form of a value between stages; the inverse of `duckdb_expression`."""
        if self.kind is not TypeKind.CARRIED:
            return expression
        if self.text_form != self.duckdb:
            expression = f"CAST({expression} AS {self.text_form})"
        return f"CAST({expression} AS VARCHAR)"

    def _with_infinities(self, column: str, finite: str) -> str:
        if self.infinities is None:
            return finite
        minus, plus = self.infinities
        return (
            f"CASE {column} WHEN {plus} THEN CAST('infinity' AS {self.duckdb}) "
            f"WHEN {minus} THEN CAST('-infinity' AS {self.duckdb}) ELSE {finite} END"
        )

    def _array_expression(self, column: str, element: "ColumnType") -> str:
        if element.kind in _CAST:
            return f"CAST({column} AS {self.duckdb})"
        converted = element.duckdb_expression("x")
        return column if converted == "x" else f"list_transform({column}, lambda x: {converted})"


def carried(duckdb_type: str) -> ColumnType:
    """Returns the type in which stages pass on values of a DuckDB type: a JSON type if exact, else text.

    The texts are DuckDB's, so equal values of a type have equal texts, except for the floats 0.0 and -0.0.
    """
    return _NATIVE.get(duckdb_type) or ColumnType(TypeKind.CARRIED, duckdb_type)


_EXACT_IN_JSON = INTEGER_KINDS | {TypeKind.BOOLEAN, TypeKind.TEXT, TypeKind.UUID}
_NATIVE = {each.duckdb: each for each in (ColumnType(kind, kind.value) for kind in _EXACT_IN_JSON)}
_NATIVE["TINYINT"] = _NATIVE["SMALLINT"]


@lru_cache(maxsize=1024)
def _wire(column_type: ColumnType) -> Any:
    if column_type.element is not None:
        return list[column_type.element.wire | None]  # type: ignore[name-defined]
    if column_type.kind is TypeKind.NUMERIC:
        return Annotated[str, Meta(pattern=_numeric_pattern(column_type.digits, column_type.decimals))]
    if column_type.kind is TypeKind.TIME:
        return Annotated[int, Meta(ge=0, le=_DAY_US // 1000 if column_type.is_millisecond else _DAY_US)]
    if column_type.kind is TypeKind.BIT and column_type.precision == 1:
        return bool
    if column_type.texts is not None:
        return Annotated[str, Meta(pattern=column_type.texts[0])]
    return _FORMS[column_type.kind].wire


def _numeric_pattern(digits: int, decimals: int) -> str:
    fraction = rf"(\.[0-9]{{1,{decimals}}})?" if decimals else ""
    return rf"\A-?[0-9]{{1,{max(1, digits - decimals)}}}{fraction}\Z"


@dataclass(frozen=True, slots=True)
class Column:
    """A declared column.

    Attributes:
        name: Its name as in the database (unquoted names are lower case).
        has_default: Whether it has a DEFAULT, which a connector may write for NULL or an unknown value.
        was_added: Whether it was added later (ALTER TABLE … ADD COLUMN), so that earlier records lack it.
        absent: For such a column the wire value of rows that existed before: its DEFAULT then, or None.
    """

    name: str
    type: ColumnType
    nullable: bool
    has_default: bool = False
    was_added: bool = False
    absent: bool | int | str | None = None

    def __str__(self) -> str:
        absent = "" if self.absent is None else f" ADDED WITH {self.absent!r}"
        return f"{self.type}{'' if self.nullable else ' NOT NULL'}{absent}"


@dataclass(frozen=True, slots=True)
class Table:
    """A declared table.

    Attributes:
        columns: Its columns in declaration order.
        primary_key: Names of its primary key's columns in key order; empty if it has none.
        replica_identity_full: Whether updates and deletes contain the whole old row.
        identity_index: The index whose columns they contain instead (USING INDEX); may be empty.
        left_out: Names of declared columns without a DEFAULT that a plan does not need.
        children: Full names of the declared tables that inherit from it.
    """

    schema: str
    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    replica_identity_full: bool
    identity_index: str = ""
    left_out: tuple[str, ...] = ()
    children: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """`schema.table`, as Debezium's `data_collection` and `source` block name it."""
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column | None:
        """Returns the column of exactly this name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class Catalog:
    """All declared tables of a pipeline.

    Attributes:
        tables: The tables; no two have the same schema and name.
        passed_over: The kinds of statements in the schema files that say nothing about rows.
    """

    tables: tuple[Table, ...]
    passed_over: tuple[str, ...] = ()

    @cached_property
    def _by_name(self) -> dict[str, list[Table]]:
        by_name: dict[str, list[Table]] = {}
        for table in self.tables:
            by_name.setdefault(table.name.lower(), []).append(table)
        return by_name

    def find(self, schema: str, name: str) -> tuple[Table, ...]:
        """Returns the tables that this name in a view can refer to.

        Case is ignored, as in DuckDB, unless there are tables of exactly this name.
        """
        named = self._by_name.get(name.lower(), [])
        found = [table for table in named if not schema or table.schema.lower() == schema.lower()]
        exact = [table for table in found if table.name == name and schema in ("", table.schema)]
        return tuple(exact or found)

    def similar_names(self, schema: str, name: str) -> tuple[str, ...]:
        """Returns full names of declared tables with similar names, most similar first."""
        names = {table.name.lower(): table.full_name for table in self.tables}
        full_names = {table.full_name.lower(): table.full_name for table in self.tables}
        wanted = f"{schema}.{name}" if schema else name
        return similar(wanted, full_names if schema else names)


def similar(name: str, candidates: dict[str, str] | Iterable[str]) -> tuple[str, ...]:
    """Returns the candidates most similar to `name`, best first; for a mapping, its values."""
    shown = candidates if isinstance(candidates, dict) else {text.lower(): text for text in candidates}
    return tuple(shown[match] for match in difflib.get_close_matches(name.lower(), shown, n=3, cutoff=0.5))
