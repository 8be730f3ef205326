"""Documents of Python functions as JSON, exactly as views write theirs.

| Spark type | Python value | JSON |
|---|---|---|
| BOOLEAN, integers, STRING | bool, int, str | as they are |
| FLOAT, DOUBLE | float or int | number; not-a-number and infinities as text |
| DECIMAL | Decimal or int | text with all decimals of its scale |
| DATE | date | ``"2026-11-20"`` |
| TIMESTAMP_NTZ | datetime without time zone | ``"2026-11-20T10:11:12.123456"`` |
| TIMESTAMP | datetime with time zone | ``"2026-11-20T10:11:12.123456Z"`` |
| BINARY | bytes | base64 text |
| ARRAY | list or tuple | array |
| STRUCT | mapping | object, fields in the order of the type |
| MAP with STRING keys | mapping | object, sorted by key |
"""

import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

Encode = Callable[[Any], Any]
"""Converts a value to a JSON value; raises ValueFault."""

_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_SHOWN_CHARACTERS: Final = 80


class ValueFault(Exception):
    """A value that its type cannot represent.

    Attributes:
        path: The names of fields and the positions in arrays that lead to the value, from the outside.
        problem: What was expected and what was found.
    """

    def __init__(self, problem: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(problem, path)
        self.path = path
        self.problem = problem

    def below(self, name: str) -> "ValueFault":
        """Returns the same fault for the enclosing value."""
        return ValueFault(self.problem, (name, *self.path))


class DocumentEncoder:
    """Converts documents of one type to JSON.

    Args:
        schema: The fields of the documents.
    """

    def __init__(self, schema: StructType) -> None:
        self._encode = encoder(schema)

    def __call__(self, document: Mapping[str, Any]) -> bytes:
        """Returns UTF-8 JSON without spaces. Equal documents give equal bytes.

        Raises:
            ValueFault: A value does not have the declared type.
        """
        return msgspec.json.encode(self._encode(document))


def encoder(data_type: DataType) -> Encode:
    """Returns the function that converts values of this type to JSON values.

    Raises:
        ValueError: Documents cannot contain values of this type.
    """
    if type(data_type) in _BITS:
        return _integer(_BITS[type(data_type)])
    if isinstance(data_type, DecimalType):
        return _decimal(data_type.precision, data_type.scale)
    if isinstance(data_type, ArrayType):
        return _array(encoder(data_type.elementType), can_be_null=data_type.containsNull)
    if isinstance(data_type, StructType):
        return _struct(data_type.fields)
    if isinstance(data_type, MapType) and isinstance(data_type.keyType, StringType):
        return _map(encoder(data_type.valueType), can_be_null=data_type.valueContainsNull)
    simple = _SIMPLE.get(type(data_type))
    if simple is None:
        msg = f"documents cannot contain values of type {data_type.simpleString()}"
        raise ValueError(msg)
    return simple


def _fault(expected: str, value: object) -> ValueFault:
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[: _SHOWN_CHARACTERS - 1] + "…"
    return ValueFault(f"expected {expected}, got {shown} ({type(value).__name__})")


def _integer(bits: int) -> Encode:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def encode(value: Any) -> Any:
        if type(value) is not int or not low <= value <= high:
            raise _fault(f"an integer of {bits} bits", value)
        return value

    return encode


def _decimal(precision: int, scale: int) -> Encode:
    unit = Decimal(1).scaleb(-scale)
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    expected = f"a Decimal of at most {precision - scale} digits before and {scale} after the point"

    def encode(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
            raise _fault(expected, value)
        try:
            exact = Decimal(value).quantize(unit, context=context)
        except (Inexact, InvalidOperation):
            raise _fault(expected, value) from None
        if not exact.is_finite():
            raise _fault(expected, value)
        return f"{exact:f}" if exact else f"{abs(exact):f}"

    return encode


def _array(element: Encode, *, can_be_null: bool) -> Encode:
    def encode(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _fault("a list", value)
        return [_checked(element, each, can_be_null, f"[{n}]") for n, each in enumerate(value)]

    return encode


def _struct(fields: list[StructField]) -> Encode:
    encoders = [(field.name, encoder(field.dataType), field.nullable) for field in fields]
    names = frozenset(field.name for field in fields)

    def encode(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _fault("a dict", value)
        if value.keys() != names:
            missing, surplus = sorted(names - value.keys()), sorted(map(str, value.keys() - names))
            said = [f"missing fields: {', '.join(missing)}"] if missing else []
            said += [f"unknown fields: {', '.join(surplus)}"] if surplus else []
            raise ValueFault("; ".join(said))
        return {name: _checked(each, value[name], can_be_null, name) for name, each, can_be_null in encoders}

    return encode


def _map(of_value: Encode, *, can_be_null: bool) -> Encode:
    def encode(value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _fault("a dict with text keys", value)
        return {key: _checked(of_value, value[key], can_be_null, key) for key in sorted(value)}

    return encode


def _checked(encode: Encode, value: Any, can_be_null: bool, name: str) -> Any:
    try:
        if value is None:
            if not can_be_null:
                raise _fault("a value (NOT NULL)", value)
            return None
        return encode(value)
    except ValueFault as fault:
        raise fault.below(name) from None


def _exactly(expected: str, *types: type) -> Encode:
    def encode(value: Any) -> Any:
        if type(value) not in types:
            raise _fault(expected, value)
        return value

    return encode


def _float(value: Any) -> Any:
    if type(value) not in (int, float):
        raise _fault("a float", value)
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _date(value: Any) -> str:
    if type(value) is not date:
        raise _fault("a date", value)
    return value.isoformat()


def _naive(value: Any) -> str:
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise _fault("a datetime without time zone", value)
    return value.isoformat(timespec="microseconds")


def _aware(value: Any) -> str:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _fault("a datetime with time zone", value)
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _binary(value: Any) -> str:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _fault("bytes", value)
    return b64encode(value).decode()


_SIMPLE: Final[dict[type[DataType], Encode]] = {
    BooleanType: _exactly("True or False", bool),
    StringType: _exactly("text", str),
    FloatType: _float,
    DoubleType: _float,
    DateType: _date,
    TimestampNTZType: _naive,
    TimestampType: _aware,
    BinaryType: _binary,
}
