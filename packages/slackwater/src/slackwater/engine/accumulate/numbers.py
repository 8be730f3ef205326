"""The numbers of a group: how they are added, stored, and shown to SQL.

The numbers of a group are a list. It contains `n`; then, for each COUNT, the count, and for each SUM, the
number of values and the sum in units of its last decimal; then, for each multiset, the number of different
values.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

import msgspec
import pyarrow as pa

from slackwater.sql.plan import MULTISETS, AccumulatePart, Accumulator, AccumulatorKind
from slackwater.sql.stage_evaluation import accumulators_schema

Numbers = list[int]

_INT64: Final = range(-(2**63), 2**63)
_encode = msgspec.msgpack.Encoder().encode


class _Stored(msgspec.Struct, array_like=True):
    """The stored form of a group's numbers; numbers of more than 64 bits are text.

    It also contains the group's key if the entry's name contains only its digest.
    """

    numbers: list[int | str]
    key: bytes | None = None


_decode_stored = msgspec.msgpack.Decoder(_Stored).decode


Shown = tuple[Any, ...]
"""The values of a group at a point, as SQL sees them: the numbers, then the text of each MIN and MAX."""


class AccumulatorLayout:
    """Assigns each accumulator of a part its place in a group's numbers. Stateless after construction."""

    def __init__(self, accumulate: AccumulatePart) -> None:
        self._accumulators = accumulate.accumulators
        self._key = accumulate.key
        self._positions: dict[int, int] = {}
        self._scales: list[tuple[int, int]] = []
        self._counted: list[tuple[int, str]] = [(0, "count(*)")]
        width = 1
        for number, accumulator in enumerate(self._accumulators):
            if accumulator.kind in MULTISETS:
                continue
            self._positions[number] = width
            self._counted.append((width, accumulator.text))
            if accumulator.kind is AccumulatorKind.SUM:
                width += 1
                self._scales.append((width, accumulator.scale))
            width += 1
        self.added: Final = width
        """How many numbers a partial adds to; they come first in the list."""
        self.multisets: Final = tuple(sorted({a.multiset for a in self._accumulators if a.kind in MULTISETS}))
        """The numbers of the multisets, in the order of the numbers that count their values."""
        self.width: Final = width + len(self.multisets)
        self.schema: Final = accumulators_schema(self._key, self._accumulators)
        """The schema of ``ACCUMULATORS_TABLE``."""
        self.ends: Final = tuple(a for a in self._accumulators if _is_end(a))
        """The accumulators of MIN and MAX."""

    def empty(self) -> Numbers:
        """Returns the numbers of a group without rows."""
        return [0] * self.width

    def addition(self, values: list[Any]) -> Numbers:
        """Returns the numbers that a partial adds, read from its list of wire values."""
        for position, scale in self._scales:
            text = values[position]
            values[position] = unscaled(text, scale) if text else 0
        return values

    def encode(self, numbers: Numbers, key: bytes | None) -> bytes:
        """Returns the value of a group's entry.

        Args:
            numbers: The group's numbers.
            key: The group's packed key, if the entry's name does not contain it.
        """
        try:
            return _encode((numbers,) if key is None else (numbers, key))
        except OverflowError:
            stored = [number if number in _INT64 else str(number) for number in numbers]
            return _encode((stored,) if key is None else (stored, key))

    def decode(self, data: bytes) -> Numbers:
        """Inverse of :meth:`encode`."""
        numbers = _decode_stored(data).numbers
        return [int(number) for number in numbers] if str in map(type, numbers) else cast("Numbers", numbers)

    def impossible(self, numbers: Sequence[int]) -> tuple[str, int] | None:
        """Returns an impossible count, with the aggregate that it belongs to; None if there is none."""
        for position, text in self._counted:
            if numbers[position] < 0:
                return text, numbers[position]
        if not numbers[0] and any(numbers):
            return "aggregates other than count(*)", next(number for number in numbers if number)
        return None

    def table(
        self,
        points: Sequence[int],
        groups: Sequence[int],
        keys: Iterable[Sequence[Any]],
        shown: Sequence[Shown],
    ) -> pa.Table:
        """Returns the rows of ``ACCUMULATORS_TABLE``. All arguments have one item per row.

        Raises:
            ValueError: A number does not fit its column.
        """
        columns: list[Sequence[Any]] = [points, groups]
        columns += list(zip(*keys, strict=True)) or [()] * len(self._key)
        columns += self._columns(shown)
        schema = self.schema
        try:
            arrays = [pa.array(values, field.type) for field, values in zip(schema, columns, strict=True)]
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            msg = f"accumulators: values do not fit {schema}: {error}"
            raise ValueError(msg) from error
        return pa.Table.from_arrays(arrays, schema=schema)

    def _columns(self, shown: Sequence[Shown]) -> Iterator[Sequence[Any]]:
        columns = list(zip(*shown, strict=True)) or [()] * (self.width + len(self.ends))
        ends = iter(columns[self.width :])
        yield columns[0]
        for number, accumulator in enumerate(self._accumulators):
            if _is_end(accumulator):
                yield next(ends)
            elif accumulator.kind is AccumulatorKind.DISTINCT:
                yield columns[self.added + self.multisets.index(accumulator.multiset)]
            else:
                position = self._positions[number]
                yield columns[position]
                if accumulator.kind is AccumulatorKind.SUM:
                    scale = accumulator.scale
                    yield [decimal_text(sum_, scale) for sum_ in columns[position + 1]]


def _is_end(accumulator: Accumulator) -> bool:
    return accumulator.kind in {AccumulatorKind.MIN, AccumulatorKind.MAX}


def unscaled(text: str, scale: int) -> int:
    """Returns a decimal number in units of its last decimal.

    Raises:
        ValueError: The text is not a decimal number with at most `scale` decimals.
    """
    if scale and text[~scale:-scale] == ".":
        return int(text[:~scale] + text[-scale:])
    whole, _, decimals = text.partition(".")
    if len(decimals) > scale:
        msg = f"the sum {text!r} has more than {scale} decimals"
        raise ValueError(msg)
    return int(whole + decimals.ljust(scale, "0"))


def decimal_text(number: int, scale: int) -> str:
    """Inverse of :func:`unscaled`; it writes all decimals."""
    if not scale:
        return str(number)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"
