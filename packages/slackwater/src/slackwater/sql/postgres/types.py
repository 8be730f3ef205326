"""PostgreSQL's types: their names as people, `pg_dump` and `format_type` write them, and their peculiarities.

The peculiarities are those of the values that the connector writes: texts that are equal although they
differ, numbers that represent infinity, and large values that updates omit.
"""

import re
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from typing import Final

from slackwater.sql.catalog import (
    BY_BYTES,
    ELEMENT_KINDS,
    INTEGER_KINDS,
    MAX_DECIMAL_DIGITS,
    MILLISECOND_DIGITS,
    ColumnType,
    TypeKind,
)

_SUPPORTED = (
    "Supported are smallint, integer, bigint, serial, boolean, real, double precision, numeric, text, "
    "varchar, char, date, time, timestamp, timestamptz, interval, uuid, json, jsonb, hstore, bytea, bit, "
    "inet, ranges, ltree, tsvector, enums and domains of the schema files, and one-dimensional arrays of "
    "most of these"
)

_SIMPLE = {
    TypeKind.SMALLINT: ("smallint", "int2", "smallserial", "serial2"),
    TypeKind.INTEGER: ("integer", "int", "int4", "serial", "serial4"),
    TypeKind.BIGINT: ("bigint", "int8", "bigserial", "serial8", "oid"),
    TypeKind.BOOLEAN: ("boolean", "bool"),
    TypeKind.REAL: ("real", "float4"),
    TypeKind.DOUBLE: ("double precision", "float8"),
    TypeKind.TEXT: (
        "text", "citext", "xml", "inet", "cidr", "macaddr", "macaddr8", "ltree", "tsvector", "int4range",
        "int8range", "numrange", "daterange", "tsrange", "tstzrange", '"char"',
    ),
    TypeKind.DATE: ("date",),
    TypeKind.UUID: ("uuid",),
    TypeKind.JSON: ("json", "jsonb", "hstore"),
    TypeKind.BYTEA: ("bytea",),
}  # fmt: skip
"""The names of types without arguments."""
_KINDS = {name: kind for kind, names in _SIMPLE.items() for name in names}
_HAVE_OWN_NAME = frozenset({TypeKind.TEXT, TypeKind.JSON})
"""Types of these kinds differ; the other names of a kind mean the same as the first one, except oid."""

_TEXTS = {
    **dict.fromkeys(("varchar", "character varying", "char varying"), "character varying"),
    **dict.fromkeys(("char", "character", "bpchar"), "character"),
}
_TIMES = {
    "timestamp": (TypeKind.TIMESTAMP, "timestamp", "without time zone"),
    "timestamp without time zone": (TypeKind.TIMESTAMP, "timestamp", "without time zone"),
    "timestamp with time zone": (TypeKind.TIMESTAMPTZ, "timestamp", "with time zone"),
    "timestamptz": (TypeKind.TIMESTAMPTZ, "timestamp", "with time zone"),
    "time": (TypeKind.TIME, "time", "without time zone"),
    "time without time zone": (TypeKind.TIME, "time", "without time zone"),
}
_TOASTABLE = frozenset({TypeKind.TEXT, TypeKind.JSON, TypeKind.BYTEA, TypeKind.ARRAY})
"""Values that PostgreSQL may store out of line (TOAST); its connector omits them from updates."""

# What Debezium 3.7 writes for -infinity and infinity, as observed.
_INFINITIES = {
    TypeKind.DATE: (-2_147_472_691, 2_146_033_979),
    TypeKind.TIMESTAMP: (-(2**63), 2**63 - 1),
}
_INFINITE_MILLISECONDS = (-9_223_372_036_832_400_000, 9_223_372_036_825_200_000)

_NOT_SENT = "Debezium does not send it"
_GEOMETRIC = "geometric types are not supported. Keep the coordinates in columns of type double precision"
_REASONS = {
    "name": "Debezium writes null for its values when they change. Give the column the type text",
    "money": "Debezium reads it as the database shows it, which depends on lc_monetary. Give the column the "
    "type numeric",
    **dict.fromkeys(
        ("timetz", "time with time zone"), "Debezium writes it in UTC, and its offset from UTC is lost"
    ),
    **dict.fromkeys(("varbit", "bit varying"), "Debezium does not write how many bits its values have"),
    **dict.fromkeys(("point", "line", "lseg", "box", "path", "polygon", "circle"), _GEOMETRIC),
    **dict.fromkeys(
        (
            "int4multirange", "int8multirange", "nummultirange", "datemultirange", "tsmultirange",
            "tstzmultirange", "tsquery", "jsonpath", "pg_lsn", "xid", "xid8", "cid", "tid", "txid_snapshot",
            "pg_snapshot", "regclass", "regtype", "regproc", "regrole", "regnamespace", "lquery",
            "ltxtquery", "cube",
        ),
        _NOT_SENT,
    ),
}  # fmt: skip
_EXTENSION_TYPES = frozenset({"citext", "hstore", "ltree", "lquery", "ltxtquery", "cube"})
"""Types that any schema may have; all others with a schema are of the schema files, or of pg_catalog."""

_MARKED_ELEMENTS = frozenset({"integer", "bigint", "date", "text", "uuid", "json", "jsonb", "bytea"})
"""An update that leaves a large array of these unchanged contains a placeholder; for other arrays, NULL."""

_LOST_ELEMENTS = {
    "time": "Debezium writes 24:00 as 00:00 in arrays, and no microseconds",
    "bit": "Debezium writes NULL for arrays of bit",
    **dict.fromkeys(("xml", "name", "money", "interval", "point"), _NOT_SENT),
}
_NULL_WITH_NULL = frozenset({"ltree", "tsvector"})
"""For an array of these with NULL in it, Debezium writes NULL, as for an array of an enum."""

_ALWAYS_INLINE_BITS = 128
"""No value of at most 24 bytes is stored out of line, and a bit string has 8 beside its bits."""

_LARGE_IS_NULL = (
    "if an update leaves a large value unchanged, Debezium writes NULL. Run ALTER TABLE … REPLICA IDENTITY "
    "FULL, and declare the table again"
)
_UTC_BOUND = r'(-?infinity|"[^"]+\+00( BC)?")?'
_UTC_RANGE = (
    rf"\A(empty|[\[(]{_UTC_BOUND},{_UTC_BOUND}[\])]|__debezium_unavailable_value)\Z",
    "a range of timestamps in UTC (Kafka Connect runs with TZ=UTC)",
)
_SHAPE = re.compile(
    r"\A(?P<name>[^\[\]()]*?)\s*(?:\((?P<arguments>[^()]*)\))?\s*(?P<rest>[^\[\]()]*?)"
    r"\s*(?P<array>\barray\b(?:\s*\[\s*\d*\s*\])?|(?:\[\s*\d*\s*\]\s*)*)\Z"
)
_ALMOST_EQUAL = 0.8
_FLOAT_DIGITS = 24  # float(1..24) is real, float(25..53) is double precision


def parse_type(text: str) -> ColumnType:
    """Returns the type that `text` names; an unknown type is not an error, but has the kind `UNSUPPORTED`.

    Case and spacing do not matter.
    """
    written = " ".join(text.split())
    match = _SHAPE.match(written.lower().replace('"', ""))
    if match is None:
        return _unsupported(written, "its name cannot be parsed")
    name = _without_schema(" ".join(f"{match['name']} {match['rest']}".split()))
    name = '"char"' if name == "char" and '"' in written else name
    arguments = tuple(part.strip() for part in (match["arguments"] or "").split(",") if part.strip())
    element = _scalar_type(name, arguments)
    return array_of(element) if match["array"].strip() else element


def _without_schema(name: str) -> str:
    schema, _, bare = name.rpartition(".")
    return bare if schema == "pg_catalog" or bare in _EXTENSION_TYPES else name


def domain_type(of: ColumnType) -> ColumnType:
    """Returns the type of a domain. An update that leaves a large array of one unchanged contains NULL."""
    return of if of.element is None else replace(of, may_be_unavailable=False)


def unsent_type(name: str, what: str) -> ColumnType:
    """Returns the type of columns that records do not contain, given what it is."""
    return _lost(name, f"it is {what}, which Debezium does not send")


def enum_type(name: str, labels: tuple[str, ...]) -> ColumnType:
    """Returns the type of an enum: Debezium writes its values as strings, which are never out of line."""
    return replace(_type(TypeKind.TEXT, name), may_be_unavailable=False, labels=labels)


def with_collation(of: ColumnType, collation: str) -> ColumnType:
    """Returns a type of text with the collation of a column, unless that orders by bytes."""
    is_other = of.kind is TypeKind.TEXT and collation.lower() not in BY_BYTES | {"default"}
    return replace(of, collation=collation) if is_other else of


def unreadable_type(of: ColumnType) -> ColumnType:
    """Returns the type of a column whose name records contain only in escaped form."""
    return _unsupported(
        of.name, "a column whose name contains a quote, backslash or control character cannot be read"
    )


GENERATED: Final = " GENERATED"
"""The end of the name of such a type."""


def generated_type(of: ColumnType) -> ColumnType:
    """Returns the type of a column that the database computes: connectors do not see its values."""
    reason = (
        "it is a generated column, which PostgreSQL does not write to its log, so connectors do not send it. "
        "Compute it in the view"
    )
    return _lost(f"{of.name}{GENERATED}", reason)


def array_of(element: ColumnType) -> ColumnType:
    """Returns the type of one-dimensional arrays of `element`."""
    name = f"{element.name}[]"
    if (reason := _LOST_ELEMENTS.get(element.name.partition("(")[0].partition(" ")[0])) is not None:
        return _lost(name, reason)
    if element.is_lost:
        return replace(element, name=name)
    if element.kind not in ELEMENT_KINDS:
        return _unsupported(name, element.reason or f"arrays of {element.name} are not supported")
    return _type(TypeKind.ARRAY, name, element=element)


def type_in_table(of: ColumnType, *, is_nullable: bool, replica_identity_full: bool) -> ColumnType:
    """Returns the type of a column, which is unsupported if tables like this one lose its values."""
    if of.element is None:
        is_large = of.kind is TypeKind.BIT and (of.precision or 0) > _ALWAYS_INLINE_BITS
        return _lost(of.name, _LARGE_IS_NULL) if is_large and not replica_identity_full else of
    element = of.element.name
    is_marked = of.may_be_unavailable and (element in _MARKED_ELEMENTS or element.startswith("character"))
    if not replica_identity_full and not is_marked:
        return _lost(of.name, _LARGE_IS_NULL.replace("value", "array"))
    if is_nullable and (
        of.element.kind is TypeKind.NUMERIC or _is_enum(of.element) or element in _NULL_WITH_NULL
    ):
        what = "NaN or an infinity" if of.element.kind is TypeKind.NUMERIC else "NULL"
        return _lost(
            of.name,
            f"Debezium writes NULL for an array that contains {what}. Make the column NOT NULL, so that such "
            "an array is found and refused",
        )
    return of


def _is_enum(of: ColumnType) -> bool:
    return of.kind is TypeKind.TEXT and of.name not in _KINDS and not of.name.startswith("character")


def _scalar_type(name: str, arguments: tuple[str, ...]) -> ColumnType:
    if name in _KINDS and not arguments:
        kind = _KINDS[name]
        return _type(kind, name if kind in _HAVE_OWN_NAME or name == "oid" else _SIMPLE[kind][0])
    if name in {"numeric", "decimal", "dec"}:
        return _numeric(arguments)
    if name in _TEXTS:
        length = arguments or (("1",) if name in {"char", "character"} else ())
        return _type(TypeKind.TEXT, _with_arguments(_TEXTS[name], length))
    if name in _TIMES:
        return _time(name, arguments)
    if name == "bit":
        bits = int(arguments[0]) if arguments else 1
        return _type(TypeKind.BIT, f"bit({bits})", precision=bits)
    if name.partition(" ")[0] == "interval":
        return _type(TypeKind.INTERVAL, _with_arguments(name, arguments))
    if name == "float":
        is_real = bool(arguments) and int(arguments[0]) <= _FLOAT_DIGITS
        return _type(TypeKind.REAL, "real") if is_real else _type(TypeKind.DOUBLE, "double precision")
    shown, reason = _with_arguments(name, arguments), _REASONS.get(name)
    if reason is not None:
        return _unsupported(shown, reason) if reason is _GEOMETRIC else _lost(shown, reason)
    unknown = "it is neither a supported built-in type nor an enum or domain created in these files"
    likely = get_close_matches(name, [*_KINDS, *_TEXTS, *_TIMES, "numeric"], 1, _ALMOST_EQUAL)
    return _unsupported(shown, f"{unknown} (did you mean {likely[0]}?)" if likely else unknown)


def _numeric(arguments: tuple[str, ...]) -> ColumnType:
    if not arguments:
        return _type(TypeKind.NUMERIC, "numeric")
    precision = int(arguments[0])
    scale = int("".join(arguments[1].split())) if len(arguments) > 1 else 0
    name = f"numeric({precision},{scale})"
    if scale < 0:
        return _unsupported(name, "its scale is negative, and Debezium writes thousands of decimals")
    if scale > MAX_DECIMAL_DIGITS:
        return _unsupported(name, f"more than {MAX_DECIMAL_DIGITS} digits cannot be computed exactly")
    digits = min(max(precision, scale), MAX_DECIMAL_DIGITS)  # values with more digits are refused one by one
    return _type(TypeKind.NUMERIC, name, precision=digits, scale=scale)


def _time(name: str, arguments: tuple[str, ...]) -> ColumnType:
    kind, first, rest = _TIMES[name]
    precision = int(arguments[0]) if arguments else None
    return _type(kind, f"{_with_arguments(first, arguments)} {rest}", precision=precision)


def _with_arguments(name: str, arguments: tuple[str, ...]) -> str:
    return f"{name}({','.join(arguments)})" if arguments else name


def _unsupported(name: str, reason: str) -> ColumnType:
    return ColumnType(TypeKind.UNSUPPORTED, name, reason=reason, hint=_SUPPORTED)


def _lost(name: str, reason: str) -> ColumnType:
    return ColumnType(TypeKind.UNSUPPORTED, name, reason=reason, hint=_SUPPORTED, is_lost=True)


def _type(
    kind: TypeKind,
    name: str,
    *,
    precision: int | None = None,
    scale: int | None = None,
    element: ColumnType | None = None,
) -> ColumnType:
    """Returns a supported type with PostgreSQL's peculiarities."""
    infinities = _INFINITIES.get(kind)
    if kind is TypeKind.TIMESTAMP and precision is not None and precision <= MILLISECOND_DIGITS:
        infinities = _INFINITE_MILLISECONDS
    return ColumnType(
        kind,
        name,
        precision,
        scale,
        element,
        is_one_text=name not in {"citext", "numrange"} and not name.startswith("character("),
        may_be_unavailable=kind in _TOASTABLE,
        infinities=infinities,
        texts=_UTC_RANGE if name == "tstzrange" else None,
    )


def wire_constant(text: str, of: ColumnType, *, is_string: bool) -> bool | int | str | None:
    """Returns the wire value of a constant of a type; None if values of the type have several forms."""
    if of.kind in INTEGER_KINDS:
        return int(text)
    if of.kind is TypeKind.BOOLEAN:
        return {"true": True, "false": False}.get(text.lower())
    if of.kind is TypeKind.NUMERIC and of.scale is not None:
        value = Decimal(text).quantize(Decimal(1).scaleb(-of.scale))
        return f"{value:f}" if value == Decimal(text) else None
    length = re.fullmatch(r"text|character varying(\(([0-9]+)\))?", of.name)
    return text if is_string and length and len(text) <= int(length[2] or len(text)) else None
