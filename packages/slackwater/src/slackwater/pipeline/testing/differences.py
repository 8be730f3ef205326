"""Compares the expected documents of a view with the found ones, and describes the differences."""

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from slackwater.protocol import InputError
from slackwater.settings.errors import did_you_mean
from slackwater.sql.plan import PublishedView

PlainDocument = Mapping[str, object]
"""A document: values by the name of their column."""

MOST_SHOWN: Final = 20
"""The maximum number of different documents that are shown."""
_ABSENT: Final = object()


def differences(
    view: PublishedView, expected: Sequence[PlainDocument], found: Sequence[PlainDocument]
) -> list[str]:
    """Returns lines that describe the differences; empty if there are none. The order does not count."""
    _check_columns(view, expected)
    decimals = {column.name for column in view.outputs if "DECIMAL" in column.type}
    wanted = [(_comparable(row, decimals), row) for row in expected]
    there = [(_comparable(row, decimals), row) for row in found]
    missing, surplus = _without(wanted, there), _without(there, wanted)
    if not missing and not surplus:
        return []
    names = {column.name for column in view.outputs}
    key = view.key if set(view.key) <= names else ()
    by_key = _keyed(view.name, key, missing, decimals) if key else {}
    lines: list[list[str]] = []
    for of_document in surplus:
        other = by_key.pop(_key_of(key, of_document, decimals), None) if key else None
        if other is None:
            lines.append([f"  not expected: {_shown(of_document)}"])
        else:
            lines.append(
                [f"  {_shown_key(key, of_document)}:", *_columns(view, other, of_document, decimals)]
            )
    missed = list(by_key.values()) if key else missing
    lines += [[f"  missing: {_shown(each)}"] for each in missed]
    shown = [line for of_document in lines[:MOST_SHOWN] for line in of_document]
    if len(lines) > MOST_SHOWN:
        shown.append(f"  and {len(lines) - MOST_SHOWN} more")
    return shown


def _check_columns(view: PublishedView, expected: Sequence[PlainDocument]) -> None:
    names = [column.name for column in view.outputs]
    for each in expected:
        if not isinstance(each, Mapping):
            raise InputError(
                f"a document of view {view.name} must be a mapping of columns to values, not {each!r}"
            )
        for name in each:
            if name not in names:
                hint = did_you_mean(name, names) or f"it has {', '.join(names)}"
                raise InputError(f"view {view.name} has no column {name}", hint)


def _without(
    some: Sequence[tuple[Hashable, PlainDocument]], others: Sequence[tuple[Hashable, PlainDocument]]
) -> list[PlainDocument]:
    """Returns the documents without an equal among others; each of these is the equal of only one."""
    left = Counter(comparable for comparable, _ in others)
    rest = []
    for comparable, row in some:
        if left[comparable] > 0:
            left[comparable] -= 1
        else:
            rest.append(row)
    return rest


def _keyed(
    view: str, key: Sequence[str], rows: Sequence[PlainDocument], decimals: set[str]
) -> dict[Hashable, PlainDocument]:
    found: dict[Hashable, PlainDocument] = {}
    for row in rows:
        if found.setdefault(_key_of(key, row, decimals), row) is not row:
            raise InputError(f"view {view}: {_shown_key(key, row)} is expected twice")
    return found


def _key_of(key: Sequence[str], row: PlainDocument, decimals: set[str]) -> Hashable:
    return _comparable({name: row.get(name) for name in key}, decimals)


def _columns(
    view: PublishedView, expected: PlainDocument, found: PlainDocument, decimals: set[str]
) -> Iterator[str]:
    for column in view.outputs:
        name = column.name
        want, have = expected.get(name, _ABSENT), found.get(name, _ABSENT)
        if _comparable({name: want}, decimals) != _comparable({name: have}, decimals):
            yield f"    {name}: expected {_shown(want)}, got {_shown(have)}"


def _comparable(row: PlainDocument, decimals: set[str]) -> Hashable:
    return frozenset((name, _value(value, is_decimal=name in decimals)) for name, value in row.items())


def _value(value: object, *, is_decimal: bool) -> Hashable:
    match value:
        case bool() | None:
            return ("constant", value)
        case int() | float() | Decimal():
            return ("number", Decimal(str(value)))
        case str():
            number = _number(value) if is_decimal else None
            return ("text", value) if number is None else ("number", number)
        case Mapping():
            fields = ((name, _value(each, is_decimal=is_decimal)) for name, each in value.items())
            return ("struct", frozenset(fields))
        case list() | tuple():
            return ("list", tuple(_value(each, is_decimal=is_decimal) for each in value))
        case datetime() | date() | time() | UUID():
            return ("text", _as_text(value))
    return ("other", value if isinstance(value, Hashable) else repr(value))


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _as_text(value: object) -> str:
    """Returns a value in the form that documents have."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="microseconds") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, time):
        text = value.isoformat()
        return text.rstrip("0") if "." in text else text
    return str(value)


def _shown_key(key: Sequence[str], row: PlainDocument) -> str:
    return ", ".join(f"{name} = {_shown(row.get(name))}" for name in key)


def _shown(value: Any) -> str:
    """Writes a value as JSON, numbers with all their digits."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"{json.dumps(n)}: {_shown(each)}" for n, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_shown, value)) + "]"
        case Decimal():
            return str(value)
        case bool() | int() | float() | None:
            return json.dumps(value)
    return "nothing" if value is _ABSENT else json.dumps(_as_text(value), ensure_ascii=False)
