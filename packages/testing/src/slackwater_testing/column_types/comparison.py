"""Values as text, from PostgreSQL and from DuckDB, in forms that are equal exactly if the values are."""

from decimal import Decimal, InvalidOperation
from struct import pack
from typing import Any

from slackwater_sql.column_type import ColumnType, TypeKind


def in_database(name: str, column: str) -> str:
    """Returns SQL of PostgreSQL for the text, or the array of texts, of a column of this type."""
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
    if kind == "bytea":
        return f"encode({column}, 'hex')"
    return f"host({column}) || '/' || masklen({column})" if kind == "inet" else _plain(kind, column)


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
    if column_type.name == "inet":
        return wanted in (got, f"{got}/32", f"{got}/128")
    return wanted == got
