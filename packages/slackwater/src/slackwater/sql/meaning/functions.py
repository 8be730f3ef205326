# ruff: noqa: E501 - SQL on few lines
"""Functions of PostgreSQL whose meaning depends on a constant argument: patterns, formats, fields."""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from slackwater.sql.duckdb_sql import literal
from slackwater.sql.meaning.casts import MOMENT, MOMENT_HINT, operand_text
from slackwater.sql.meaning.code import Code, renamed
from slackwater.sql.meaning.rules import Call, Operand, Rewriting, builder
from slackwater.sql.meaning.types import decimals

_FIELDS: Final = {
    "year", "month", "day", "hour", "minute", "dow", "isodow", "doy", "week", "isoyear", "quarter", "century",
    "decade", "millennium",
}  # fmt: skip
_FRACTIONS: Final = {
    "second": 6,
    "seconds": 6,
    "milliseconds": 3,
    "millisecond": 3,
    "microseconds": 0,
    "microsecond": 0,
}
_FORMATS: Final = {
    "YYYY": "%Y", "YY": "%y", "IYYY": "%G", "IW": "%V", "MM": "%m", "DDD": "%j", "DD": "%d", "HH24": "%H", "HH12": "%I",
    "HH": "%I", "MI": "%M", "SS": "%S", "MS": "%g", "US": "%f", "AM": "%p", "PM": "%p", "Mon": "%b", "FMMonth": "%B",
    "FMDay": "%A", "Dy": "%a", "FMDD": "%-d", "FMMM": "%-m", "FMHH24": "%-H", "FMHH12": "%-I", "FMYYYY": "%-Y",
}  # fmt: skip
_READ: Final = frozenset({"YYYY", "MM", "DD", "HH24", "MI", "SS"})
_FORMAT: Final = re.compile(
    "|".join([*sorted(_FORMATS, key=len, reverse=True), r'"[^"]*"', r"[^A-Za-z\"\\]", "(?P<other>.)"])
)
_NUMBER: Final = re.compile(r"FM(9*)(0+)(?:\.(0+))?")
_FORMAT_HINT: Final = f"Supported in formats are {', '.join(_FORMATS)}, signs, and text in double quotes"
_PATTERN_HINT: Final = "Write the pattern as a constant, without what only PostgreSQL knows"
_ONLY_POSTGRES: Final = re.compile(r"\\[mMyYAZwWdDsS0-9]|\(\?|\[\[[.=:<>]|[*+?}]\?|[*+?}][+]|\{,")
_SAFE: Final = re.compile(r"\\[dsw]")
_GROUP: Final = re.compile(r"\\.|\((?!\?)")


def _constant(call: Call, number: int) -> str | None:
    return call.operands[number].constant if len(call.operands) > number else None


def _regex(call: Call, number: int, *, finds: bool) -> str:
    """Returns a pattern for DuckDB. What it finds, and not only whether, must not depend on alternatives."""
    pattern = _constant(call, number)
    if pattern is None or _ONLY_POSTGRES.search(_SAFE.sub("", pattern)):
        raise call.refused(_PATTERN_HINT)
    if finds and "|" in pattern:
        starts = [branch.lstrip("(")[:1] for branch in pattern.split("|")]
        if len(set(starts)) < len(starts) or "(" in pattern or "" in starts:
            raise call.refused("PostgreSQL finds the longest alternative: write one pattern for each")
    return pattern


@builder
def matches(call: Call) -> Rewriting:
    """``~`` and its kin."""
    flags = "s" + (_constant(call, 2) or "")
    return Rewriting(
        f"regexp_matches({{text:0}}, {literal(_regex(call, 1, finds=False))}, '{flags}')".replace(
            "{text:0}", "{0}"
        )
    )


@builder
def similar_to(call: Call) -> Rewriting:
    """``SIMILAR TO``, whose patterns have the wildcards of LIKE."""
    pattern = _constant(call, 1)
    if pattern is None or re.search(r"\[[^\]]*[%_\\]", pattern):
        raise call.refused("Write the pattern as a constant")
    return Rewriting(f"regexp_full_match({{0}}, {literal(''.join(_similar(pattern)))}, 's')")


def _similar(pattern: str) -> Iterator[str]:
    for found in re.finditer(r"\\(.)|(.)", pattern, re.DOTALL):
        if found[1]:
            yield re.escape(found[1])
        else:
            yield {"%": ".*", "_": ".", ".": r"\.", "^": r"\^", "$": r"\$"}.get(found[2], found[2])


@builder
def like(call: Call) -> Rewriting | None:
    """``LIKE`` and ``ILIKE``, whose escape character is a backslash."""
    pattern = _constant(call, 1)
    if pattern is not None and "\\" not in pattern:
        return None
    negated, insensitive = call.name.startswith("!"), call.name.endswith("*")
    if pattern is not None and re.search(r"(?:^|[^\\])(?:\\\\)*\\$", pattern):
        raise call.refused("A pattern must not end with the escape character")
    if pattern is not None:
        plain = literal(re.sub(r"\\([^%_\\])", r"\1", pattern))
        sql = f"{{0}} {'ILIKE' if insensitive else 'LIKE'} {plain} ESCAPE '\\'"
    else:
        sql = f"{{0}} {'ILIKE' if insensitive else 'LIKE'} {{1}} ESCAPE '\\'"
    return Rewriting(f"(NOT ({sql}))" if negated else f"({sql})")


@builder
def regexp_replace(call: Call) -> Rewriting:
    """Replaces what a pattern finds."""
    replacement, flags = _constant(call, 2), _constant(call, 3) or ""
    if replacement is None or set(flags) - {"g", "i"} or (len(call.operands) > 3 and not _constant(call, 3)):
        raise call.refused("Write the replacement and the flags (g, i) as constants")
    new = literal(replacement.replace("\\&", "\\0"))
    return Rewriting(f"regexp_replace({{0}}, {literal(_regex(call, 1, finds=True))}, {new}, 's{flags}')")


@builder
def regexp_split(call: Call) -> None:
    """Parts between what a pattern finds."""
    _regex(call, 1, finds=True)


@builder
def regexp_found(call: Call) -> Rewriting:
    """The part that a pattern finds, or its first group."""
    pattern = _regex(call, 1, finds=True)
    groups = sum(each.group() == "(" for each in _GROUP.finditer(pattern))
    if groups and re.search(r"\)[?*{]", pattern):
        raise call.refused("A group that may be absent is not supported")
    found, p = f"regexp_extract({{0}}, {literal(pattern)}, ", literal(pattern)
    parts = ", ".join(f"{found}{number}, 's')" for number in range(1, groups + 1)) or f"{found}0, 's')"
    value = f"[{parts}]" if call.name == "regexp_match" else f"{found}{min(groups, 1)}, 's')"
    return Rewriting(f"CASE WHEN regexp_matches({{0}}, {p}, 's') THEN {value} END")


@builder
def extract(call: Call) -> Rewriting:
    """``extract``, which returns numeric, and ``date_part``, which returns a float."""
    sql = _extracted(call, (_constant(call, 0) or "").lower(), call.operands[1])
    return Rewriting(sql if call.name == "extract" else f"CAST(CAST({sql} AS VARCHAR) AS DOUBLE)")


def _extracted(call: Call, field: str, operand: Operand) -> str:
    if field in _FIELDS:
        return f"CAST(date_part('{field}', {{1}}) AS DECIMAL(18,0))"
    if field in _FRACTIONS:
        scale = _FRACTIONS[field]
        unit = f"CAST('{Decimal(1).scaleb(-scale)}' AS DECIMAL({scale + 1},{scale}))"
        return f"(CAST(date_part('microseconds', {{1}}) AS DECIMAL(18,0)) * {unit})"
    if field == "epoch" and operand.kind == "date":
        return "CAST(epoch_us(CAST({1} AS TIMESTAMP)) // 1000000 AS DECIMAL(18,0))"
    if field == "epoch" and operand.kind in {"timestamp", "timestamptz"}:
        return "(CAST(epoch_us({1}) AS DECIMAL(19,0)) * CAST('0.000001' AS DECIMAL(7,6)))"
    if field == "epoch" and operand.kind == "time":
        return "(CAST(date_part('hour', {1}) * 3600000000 + date_part('minute', {1}) * 60000000 + date_part('microseconds', {1}) AS DECIMAL(18,0)) * CAST('0.000001' AS DECIMAL(7,6)))"
    if field == "epoch" and operand.kind == "interval":
        months = "date_part('year', {1}) * 12 + date_part('month', {1})"
        days = f"(({months}) // 12 * 31557600 + ({months}) % 12 * 2592000 + date_part('day', {{1}}) * 86400)"
        micros = "(date_part('hour', {1}) * 3600000000 + date_part('minute', {1}) * 60000000 + date_part('microseconds', {1}))"
        return f"(CAST({days} * 1000000 + {micros} AS DECIMAL(19,0)) * CAST('0.000001' AS DECIMAL(7,6)))"
    raise call.refused(f"Supported fields are {', '.join(sorted(_FIELDS | _FRACTIONS.keys()))}, epoch")


def _strftime(call: Call, number: int, allowed: frozenset[str] | None = None) -> str:
    pattern = _constant(call, number)
    if pattern is None:
        raise call.refused("Write the format as a constant")
    parts = []
    for found in _FORMAT.finditer(pattern):
        part = found.group()
        if found["other"] or (allowed is not None and part in _FORMATS and part not in allowed):
            raise call.refused(_FORMAT_HINT)
        parts.append(_FORMATS.get(part) or part.strip('"').replace("%", "%%"))
    return literal("".join(parts))


@builder
def to_char(call: Call) -> Rewriting:
    """The text of a time or number in a format."""
    operand = call.operands[0]
    if operand.kind in {"date", "timestamp", "timestamptz"}:
        return Rewriting(f"strftime({{0}}, {_strftime(call, 1)})")
    found = _NUMBER.fullmatch(_constant(call, 1) or "")
    if found is None or operand.kind not in {"int", "bigint", "numeric"} or decimals(operand.type) > 18:
        raise call.refused("Supported for numbers are formats such as FM000 and FM999990.00")
    scale, least, most = len(found[3] or ""), len(found[2]), len(found[1]) + len(found[2])
    rounded = f"CAST(round({{0}}, {scale}) AS DECIMAL(38,{scale}))"
    text, width = f"CAST(abs({rounded}) AS VARCHAR)", scale + 1 if scale else 0
    padded = (
        f"CASE WHEN length({text}) < {least + width} THEN lpad({text}, {least + width}, '0') ELSE {text} END"
    )
    fits = f"length({text}) > {most + width}"
    problem = "error('the number has more digits than its format')"
    return Rewriting(
        f"CASE WHEN {fits} THEN {problem} ELSE CASE WHEN {rounded} < 0 THEN '-' ELSE '' END || {padded} END"
    )


@builder
def to_time(call: Call) -> Rewriting:
    """A date or time in a format, of which DuckDB accepts only what has it exactly."""
    target = "DATE" if call.name == "to_date" else "TIMESTAMPTZ"
    return Rewriting(f"CAST(strptime({{0}}, {_strftime(call, 1, _READ)}) AS {target})")


@builder
def concat(call: Call) -> Rewriting:
    """``concat`` and ``concat_ws``."""
    texts = [operand_text(call, each, f"{{{number}}}") for number, each in enumerate(call.operands)]
    return Rewriting(f"{call.name}({', '.join(texts)})" if texts else "''")


@builder
def format_text(call: Call) -> Rewriting:
    """``format`` with a constant that has nothing but ``%s`` and ``%%``."""
    pattern = _constant(call, 0)
    if pattern is None or re.search(r"%(?![s%])", pattern.replace("%%", "")):
        raise call.refused("Write the format as a constant with %s and %% only, or use ||")
    parts, used = [], 1
    for piece in re.split(r"(%%|%s)", pattern):
        if piece == "%s":
            if used >= len(call.operands):
                raise call.refused("There are more %s than values")
            parts.append(operand_text(call, call.operands[used], f"{{{used}}}"))
            used += 1
        elif piece:
            parts.append(literal("%" if piece == "%%" else piece))
    return Rewriting(f"concat({', '.join(parts)})" if parts else "''")


_ORDERED: Final = {
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}

_SIGNS: Final = {**_ORDERED, "COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "<>"}


@builder
def rows(call: Call) -> Rewriting | None:
    """Comparisons of rows, column by column, so that NULL is neither equal nor unequal to anything."""
    left, *others = (each.elements for each in call.operands)
    if not left and not any(others):
        return _compared(call)
    if any(len(each) != len(left) for each in others):
        raise call.refused("Compare rows with as many columns")
    parts: dict[str, str | Code] = {f"l{n}": each.code for n, each in enumerate(left)}
    for number, other in enumerate(others):
        parts |= {f"r{number}_{n}": each.code for n, each in enumerate(other)}
    columns = range(len(left))
    if call.name in {"OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}:
        sql = " AND ".join(f"{{l{n}}} IS {'NOT ' if 'NOT' in call.name else ''}NULL" for n in columns)
    elif call.name in _ORDERED:
        sql = _lexicographic(_ORDERED[call.name], len(left))
    elif call.name == "COMPARE_NOTEQUAL":
        sql = " OR ".join(f"{{l{n}}} <> {{r0_{n}}}" for n in columns)
    else:
        equal = (
            " AND ".join(f"{{l{n}}} = {{r{number}_{n}}}" for n in columns) for number in range(len(others))
        )
        sql = " OR ".join(f"({each})" for each in equal)
    return Rewriting(f"({sql})", parts, "CAST(NULL AS BOOLEAN)")


def _compared(call: Call) -> Rewriting | None:
    """Returns a comparison of single values: a real is compared as a float8, and a text is a date as it is."""
    kinds = {each.kind for each in call.operands}
    if kinds & {"date", "timestamp", "timestamptz"}:
        for each in call.operands:
            if each.kind == "literal" and not MOMENT.fullmatch(each.constant or ""):
                raise call.refused(MOMENT_HINT)
    if "real" not in kinds or not kinds & {"int", "bigint", "numeric", "float8"}:
        return None
    sign = _SIGNS.get(call.name, "")
    between = call.text.code[max(call.operands[0].node.end, 0) : max(call.operands[1].node.start, 0)]
    if not sign or len(call.operands) != 2 or not re.search(r"[<>=]", between):  # CASE and IN have none
        raise call.refused("Cast the real to float8")
    sides = [
        f"CAST({{{n}}} AS DOUBLE)" if each.kind == "real" else f"{{{n}}}"
        for n, each in enumerate(call.operands)
    ]
    return Rewriting(f"({sides[0]} {sign} {sides[1]})")


def _lexicographic(sign: str, columns: int) -> str:
    sql = f"{{l{columns - 1}}} {sign} {{r0_{columns - 1}}}"
    for n in reversed(range(columns - 1)):
        sql = f"{{l{n}}} {sign[0]} {{r0_{n}}} OR ({{l{n}}} = {{r0_{n}}} AND ({sql}))"
    return sql


@builder
def subscript(call: Call) -> Rewriting | None:
    """An element of an array, which has none at 0 and below."""
    constant = _constant(call, 1)
    if constant is not None and int(constant) > 0:
        return None
    return Rewriting("(CASE WHEN {1} > 0 THEN {0}[{1}] END)")


@builder
def slice(call: Call) -> Rewriting:
    """A part of an array, whose positions begin at 1."""
    first, last = (None if each.node.function == "list_value" else each.type for each in call.operands[1:])
    lower = "1" if first is None else "(CASE WHEN {1} < 1 THEN 1 ELSE {1} END)"
    upper = "len({0})" if last is None else "{2}"
    return Rewriting(
        f"(CASE WHEN {{0}} IS NOT NULL AND {upper} < {lower} THEN [] ELSE {{0}}[{lower}:{upper}] END)"
    )


@builder
def joined(call: Call) -> Rewriting:
    """``array_to_string``."""
    element = Operand((), call.operands[0].type[:-2], "", call.operands[0].node)
    shown = operand_text(call, element, "e")
    if len(call.operands) > 2:
        shown = f"coalesce({shown}, {{2}})"
    return Rewriting(f"array_to_string(list_transform({{0}}, lambda e: {shown}), {{1}})")


_ENCODED: Final = {
    "hex": "lower(hex({0}))",
    "base64": "regexp_replace(to_base64({0}), '(.{76,76})', E'\\\\1\\n', 'g')",
}
_DECODED: Final = {"hex": "unhex({0})", "base64": "from_base64({0})"}


@builder
def encode(call: Call) -> Rewriting:
    """Bytes as text."""
    return _of_format(call, _ENCODED)


@builder
def decode(call: Call) -> Rewriting:
    """Bytes from text."""
    return _of_format(call, _DECODED)


def _of_format(call: Call, templates: dict[str, str]) -> Rewriting:
    template = templates.get(_constant(call, 1) or "")
    if template is None:
        raise call.refused("Supported are 'hex' and 'base64'")
    return Rewriting(template)


@builder
def every(call: Call) -> Rewriting:
    """``bool_and`` by its other name."""
    return Rewriting("{call}", {"call": renamed(call.code, "bool_and")}, "CAST(NULL AS BOOLEAN)")
