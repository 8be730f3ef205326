"""Rows as JSON, compiled for each table.

A row in memory is a list of values in the order of the columns. One function per table turns it into the
text that Debezium writes in ``before`` and ``after``: generated code, since a loop over columns is slow.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

from slackwater_bench.workloads.workload import Value
from slackwater_sql.catalog import Column, Table
from slackwater_sql.column_type import TypeKind

Row = list[Any]
Image = Callable[[Row], str]
Coerce = Callable[[Any], Any]

_CONTROL = re.compile(r"\\u00[0-9a-f]{2}")


class UnsupportedTableError(Exception):
    """A workload's table is not one the generator can make.

    Attributes:
        table: Its full name.
        reason: What is not supported.
    """

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(table, reason)
        self.table = table
        self.reason = reason

    def __str__(self) -> str:
        return f"table {self.table}: {self.reason}; write it otherwise in the workload's schema.sql"


def json_text(text: str) -> str:
    """A JSON string as Jackson writes it: hexadecimal digits of control characters in upper case."""
    encoded = encode_basestring(text)
    if "\\u00" in encoded:
        encoded = _CONTROL.sub(lambda match: "\\u" + match.group()[2:].upper(), encoded)
    return encoded


@dataclass(frozen=True, slots=True)
class TableImages:
    """How rows of a table are kept and rendered."""

    index: Mapping[str, int]
    """Position of each column in a row."""
    coerce: Mapping[str, Coerce]
    """Brings a value to the type of its column; columns that take values as they are are missing."""
    full: Image
    """All columns."""
    key: Image
    """What is logged of an old row without ``REPLICA IDENTITY FULL``: other columns are null, or Debezium's
    substitute where the column cannot be."""

    def row(self, values: Mapping[str, Value]) -> Row:
        """A new row; columns that are not named are NULL."""
        row = [values.get(name) for name in self.index]
        for name, coerce in self.coerce.items():
            position = self.index[name]
            if row[position] is not None:
                row[position] = coerce(row[position])
        return row


def table_images(table: Table) -> TableImages:
    """Compiles a table.

    Raises:
        UnsupportedTableError: its key is not ``id bigint``, or a column's type has no rendering here.
    """
    if table.primary_key != ("id",) or _column(table, "id").type.kind is not TypeKind.BIGINT:
        raise UnsupportedTableError(table.full_name, "expected the primary key to be id bigint")
    coerce = {c.name: _rounding(c.type.scale or 0) for c in table.columns if c.type.kind is TypeKind.NUMERIC}
    key_parts = [_key_part(table, column) for column in table.columns]
    return TableImages(
        index={column.name: number for number, column in enumerate(table.columns)},
        coerce=coerce,
        full=_compiled([_part(table, number) for number in range(len(table.columns))]),
        key=_compiled(key_parts),
    )


def _column(table: Table, name: str) -> Column:
    column = table.column(name)
    if column is None:
        raise UnsupportedTableError(table.full_name, f"it has no column {name}")
    return column


def _rounding(scale: int) -> Coerce:
    unit = Decimal(1).scaleb(-scale)
    return lambda value: value if value.same_quantum(unit) else value.quantize(unit)


def _compiled(parts: list[str]) -> Image:
    """A function with one f-string; names and types come from a schema file of ours, not from input."""
    code = "def image(r): return f'''{{" + ",".join(parts) + "}}'''"
    names: dict[str, Any] = {"text": json_text}
    exec(code, names)  # noqa: S102 - see above
    image: Image = names["image"]
    return image


def _part(table: Table, number: int) -> str:
    """A piece of an f-string."""
    column, at = table.columns[number], f"r[{number}]"
    match column.type.kind:
        case TypeKind.SMALLINT | TypeKind.INTEGER | TypeKind.BIGINT:
            value, plain = at, f"{{{at}}}"
        case TypeKind.BOOLEAN:
            value = f"('true' if {at} else 'false')"
            plain = f"{{{value}}}"
        case TypeKind.TEXT:
            value, plain = f"text({at})", f"{{text({at})}}"
        case TypeKind.NUMERIC | TypeKind.TIMESTAMPTZ:
            value, plain = f"""'"' + str({at}) + '"'""", f'"{{{at}!s}}"'
        case _:
            raise UnsupportedTableError(table.full_name, f"column {column.name} has the type {column.type}")
    return f'"{column.name}":' + (f"{{'null' if {at} is None else {value}}}" if column.nullable else plain)


def _key_part(table: Table, column: Column) -> str:
    if column.name in table.primary_key:
        return _part(table, table.columns.index(column))
    if column.nullable:
        return f'"{column.name}":null'
    match column.type.kind:
        case TypeKind.BOOLEAN:
            substitute = "false"
        case TypeKind.TEXT:
            substitute = '""'
        case TypeKind.NUMERIC:
            substitute = '"' + str(Decimal(0).scaleb(-(column.type.scale or 0))) + '"'
        case TypeKind.TIMESTAMPTZ:
            substitute = '"1970-01-01T00:00:00Z"'
        case _:
            substitute = "0"
    return f'"{column.name}":{substitute}'
