# ruff: noqa: E501 - SQL on few lines
"""Values of json and jsonb: their parts with all digits, and documents that are built.

DuckDB reads numbers in JSON as floats. Therefore numbers are read as marked texts, and the marks are taken
off what is found.
"""

import json
import re
from typing import Any, Final

from slackwater.sql.duckdb_sql import literal
from slackwater.sql.meaning.casts import operand_text
from slackwater.sql.meaning.code import Code, renamed
from slackwater.sql.meaning.rules import Call, Operand, Rewriting, builder

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_MARK: Final = r"\u0001\u0002"
_MARKED: Final = (
    f"CAST(array_to_string(list_transform(regexp_extract_all(CAST({{0}} AS VARCHAR), '{_STRING}|-?[0-9][-+.0-9eE]*|[^\"0-9-]+'), "
    f"lambda t: CASE WHEN regexp_matches(t, '^[-0-9]') THEN '\"{_MARK}' || t || '\"' ELSE t END), '') AS JSON)"
)
"""A document whose numbers are marked texts."""
_PLAIN: Final = r"""regexp_replace(CAST({found} AS VARCHAR), '"\\u0001\\u0002([^"]*)"', '\1', 'g')"""
_SPACED: Final = (
    f"array_to_string(list_transform(regexp_extract_all({_PLAIN.format(found='v')}, '{_STRING}|[^\"]+'), "
    "lambda w: CASE WHEN left(w, 1) = '\"' THEN w ELSE replace(replace(w, ',', ', '), ':', ': ') END), '')"
)
"""The text of a document as jsonb has it."""
_TEXT: Final = (
    "list_transform([{found}], lambda v: CASE WHEN json_type(v) = 'VARCHAR' THEN "
    "CASE WHEN left(v ->> '$', 2) = chr(1) || chr(2) THEN substring(v ->> '$', 3) ELSE v ->> '$' END "
    "WHEN json_type(v) IN ('OBJECT', 'ARRAY') THEN {whole} WHEN json_type(v) <> 'NULL' THEN CAST(v AS VARCHAR) END)[1]"
)
_TYPES: Final = (
    "(CASE json_type({0}) WHEN 'VARCHAR' THEN 'string' WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array' "
    "WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null' ELSE CASE WHEN {0} IS NOT NULL THEN 'number' END END)"
)
_LOST: Final = "error('the spaces in it are not known: declare the column as jsonb')"
_JSON: Final = "CAST(NULL AS JSON)"


@builder
def json_part(call: Call) -> Rewriting:
    """``->``, ``->>``, ``#>``, ``#>>`` and the functions of the same meaning."""
    operator = call.text.code[max(call.operands[0].node.end, 0) : max(call.operands[1].node.start, 0)]
    if (
        call.name == "->"
        and call.operands[1].node.kind not in {"CONSTANT", "COLUMN_REF"}
        and "(" not in operator
        and call.operands[1].node.function != "-"
    ):
        raise call.refused(
            "Put it in parentheses, because -> binds less than other operators: (j -> 'a') || …"
        )
    is_path = "#" in operator or call.name.startswith("json")
    path = _path(call) if is_path else _step(call, call.operands[1])
    found = f"json_extract({_MARKED}, {path})"
    is_text = ">>" in operator or call.name.endswith("_text")
    if is_text:
        whole = _SPACED if call.operands[0].kind == "jsonb" else _LOST
        sql = _TEXT.replace("{found}", found).replace("{whole}", whole)
    else:
        plain = _PLAIN.replace("{found}", found)
        spaced = f"list_transform([{found}], lambda v: {_SPACED})[1]"
        sql = f"CAST({spaced if call.operands[0].kind == 'jsonb' else plain} AS JSON)"
    if call.operands[0].kind == "jsonb" and not is_path and call.operands[1].constant in {"0", "-1"}:
        scalar = "{0} ->> '$'" if is_text else "{0}"  # a scalar is an array of itself
        sql = f"(CASE WHEN json_type({{0}}) IN ('ARRAY', 'OBJECT') THEN {sql} ELSE {scalar} END)"
    known = "VARCHAR" if is_text else call.operands[0].type
    return Rewriting(sql, probe="CAST(NULL AS VARCHAR)" if is_text else _JSON, known=known)


def _step(call: Call, operand: Operand) -> str:
    if operand.kind in {"int", "bigint"}:
        if operand.constant is None and operand.node.function != "-":
            raise call.refused("Write the position as a constant")
        position = int(operand.constant or f"-{operand.node.arguments[0].raw['literal']['text']}")
        return f"'$[{position}]'" if position >= 0 else f"'$[#{position}]'"
    if operand.constant is not None:
        return literal(_member(call, operand.constant))
    problem = "error('a key with quotes or backslashes is not supported')"
    return f"'$.\"' || CASE WHEN regexp_matches({{1}}, '[\"\\\\]') THEN {problem} ELSE {{1}} END || '\"'"


def _member(call: Call, key: str) -> str:
    if re.search(r'["\\]', key):
        raise call.refused("Keys with quotes or backslashes are not supported")
    return f'$."{key}"'


def _path(call: Call) -> str:
    keys = [each.constant for each in call.operands[1:]]
    if call.name.startswith("json"):
        steps = keys
    else:
        text = (keys[0] or "").strip()
        if not re.fullmatch(r'\{[^{}"\\]*\}', text):
            raise call.refused("Write the path as a constant such as '{a,b}'")
        steps = [each.strip() for each in text[1:-1].split(",")] if text[1:-1] else []
    if any(each is None or re.fullmatch(r"-?\d+", each) for each in steps[:-1]) or None in steps:
        raise call.refused("Write positions and constant keys one by one: j -> 'a' -> 0 ->> 'b'")
    last = steps[-1:] and re.fullmatch(r"-?\d+", str(steps[-1]))
    if last:
        raise call.refused("Write positions and keys one by one: j -> 'a' -> 0 ->> 'b'")
    return literal("$" + "".join(_member(call, str(each))[1:] for each in steps))


@builder
def json_cast(call: Call) -> Rewriting | None:
    """A cast to json or jsonb."""
    (operand,) = call.operands
    target = call.text.code[max(operand.node.end, call.node.start, 0) : max(call.node.end, 0)]
    is_binary = "jsonb" in target.lower() or "jsonb" in call.text.code[call.node.start :][:5].lower()
    if operand.kind in {"json", "jsonb"}:
        if is_binary and operand.kind == "json":
            raise call.refused("Declare the column as jsonb")
        return Rewriting("{0}", probe=_JSON, known="JSON" if is_binary else "TEXT JSON")
    if operand.constant is None:
        raise call.refused("Only a constant or a column of type json or jsonb is JSON")
    try:
        document = json.loads(operand.constant, parse_float=_Digits, parse_int=_Digits)
    except ValueError:
        raise call.refused("Write valid JSON") from None
    text = _binary(document) if is_binary else operand.constant
    return Rewriting(
        f"CAST({literal(text)} AS JSON)", probe=_JSON, known="JSON" if is_binary else "TEXT JSON"
    )


class _Digits(str):
    """A number as it was written."""

    __slots__ = ()


def _binary(value: Any) -> str:
    """Returns the text of a document as jsonb has it."""
    if isinstance(value, _Digits):
        if "e" in value.lower():
            raise ValueError(value)
        return str(value)
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return (
            "{"
            + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {_binary(value[key])}" for key in keys)
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_binary, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@builder
def json_type(call: Call) -> Rewriting:
    """``json_typeof`` and ``jsonb_typeof``."""
    return Rewriting(_TYPES)


def json_text(call: Call, operand: Operand, name: str) -> str:
    """Returns SQL for a value's JSON text with all its digits; NULL for NULL."""
    match operand.kind:
        case "json" | "jsonb":
            return f"CAST({name} AS VARCHAR)"
        case "int" | "bigint" | "numeric" | "bool" | "float8" | "real":
            return operand_text(call, operand, name, is_output=False)
        case "text" | "literal" | "uuid" | "date" | "null":
            return f"CAST(to_json(CAST({name} AS VARCHAR)) AS VARCHAR)"
        case "timestamp":
            return f"'\"' || replace(CAST({name} AS VARCHAR), ' ', 'T') || '\"'"
        case "array" if not operand.type[:-2].endswith("]"):
            element = Operand((), operand.type[:-2], "", operand.node)
            shown = f"list_transform({name}, lambda e: coalesce({json_text(call, element, 'e')}, 'null'))"
            return f"'[' || array_to_string({shown}, ', ') || ']'"
    raise call.refused("Convert it to a text or number first")


@builder
def json_object(call: Call) -> Rewriting:
    """``json_build_object`` and ``jsonb_build_object`` with constant keys."""
    keys = [call.operands[number].constant for number in range(0, len(call.operands), 2)]
    if len(call.operands) % 2 or any(each is None for each in keys) or len(set(keys)) < len(keys):
        raise call.refused("Write different constants as keys, each followed by a value")
    is_binary = call.name.startswith("jsonb")
    order = list(range(len(keys)))
    if is_binary:
        order.sort(key=lambda number: (len(str(keys[number]).encode()), str(keys[number]).encode()))
    parts = []
    for place, number in enumerate(order):
        value = json_text(call, call.operands[2 * number + 1], f"{{{2 * number + 1}}}")
        key = literal(
            f"{', ' if place else ''}{json.dumps(keys[number], ensure_ascii=False)}{': ' if is_binary else ' : '}"
        )
        parts.append(f"{key} || coalesce({value}, 'null')")
    return _document(call, f"'{{' || {' || '.join(parts)} || '}}'" if parts else "'{}'")


@builder
def json_array(call: Call) -> Rewriting:
    """``json_build_array`` and ``jsonb_build_array``."""
    values = [
        f"coalesce({json_text(call, each, f'{{{n}}}')}, 'null')" for n, each in enumerate(call.operands)
    ]
    return _document(call, "'[' || " + " || ', ' || ".join(values or ["''"]) + " || ']'")


@builder
def as_json(call: Call) -> Rewriting:
    """``to_json`` and ``to_jsonb``."""
    return _document(call, json_text(call, call.operands[0], "{0}"))


def _document(call: Call, sql: str, parts: dict[str, str | Code] | None = None) -> Rewriting:
    known = "JSON" if "jsonb" in call.name else "TEXT JSON"
    return Rewriting(f"CAST({sql} AS JSON)", parts or {}, _JSON, known)


@builder
def json_list(call: Call) -> Rewriting:
    """The values of rows as a JSON array."""
    (operand,) = call.operands[:1]
    texts = call.with_operand(0, f"coalesce({json_text(call, operand, '{0}')}, 'null'), ', '")
    return _document(call, "'[' || {list} || ']'", {"list": renamed(texts, "string_agg")})
