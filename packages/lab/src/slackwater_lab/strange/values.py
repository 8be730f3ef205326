"""Random values of PostgreSQL's types, and how a document's value is compared with the database's."""

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
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
    return lambda value: None if value is None else [0 if each == 0 else read(each) for each in value]


def _large(random: Random) -> str:
    return f"(SELECT string_agg(md5(i::text || '{random.random()}'), '') FROM generate_series(1, 300) i)"  # noqa: S608 - our own


_TEXTS = _one_of(
    "''", "'x'", "'It''s'", quote('"\\ \n\t'), "'äöü€'", "'🙂'", "' '", "'__debezium_unavailable_value'"
)
_INTS = _one_of("0", "1", "-1", "7", "32767", "-32768")
_DATES = _one_of(
    "'2024-02-29'", "'1970-01-01'", "'1969-12-31'", "'9999-12-31'", "'1582-10-15'", "'1000-01-01'"
)
_RARE_DATES = _one_of("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'1500-02-28'")
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
