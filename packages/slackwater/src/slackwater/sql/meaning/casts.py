# ruff: noqa: E501 - SQL on few lines
"""Casts of PostgreSQL, and the texts of its values."""

import re
from typing import Final

from slackwater.sql.duckdb_sql import literal
from slackwater.sql.frontend.syntax import Node, Raw
from slackwater.sql.meaning.rules import BUILDERS, Call, Operand, Rewriting, builder
from slackwater.sql.meaning.types import decimals, inferred, kind

FREE_SCALE: Final = 18
"""From this scale on, a number's own decimals are not known: it is a quotient, or a column without a scale."""
_SUBJECT: Final = "{0}"
_MIXED: Final = frozenset({"CASE", "OPERATOR_COALESCE", "CASE_EXPR"})
_MIXING: Final = frozenset({"greatest", "least", "nullif", "coalesce", "if", "ifnull"})
_ROUND: Final = (
    "How many decimals the number has is not known: write round(…, 2)::text, or cast it to numeric(p,s) first"
)
_TRUE: Final = "'t', 'tr', 'tru', 'true', 'y', 'ye', 'yes', 'on', '1'"
_FALSE: Final = "'f', 'fa', 'fal', 'fals', 'false', 'n', 'no', 'of', 'off', '0'"
MOMENT: Final = re.compile(
    r"\s*(\d{4,6}-\d\d?-\d\d?([ T]\d\d?:\d\d.*)?|-?infinity|epoch)\s*", re.IGNORECASE | re.DOTALL
)
MOMENT_HINT: Final = "Write dates as YYYY-MM-DD"
_FIXED_LENGTH: Final = re.compile(r'\b(?:bpchar|char(?:acter)?(?!\s+varying|\w))\b|"char"', re.IGNORECASE)
_OWN_TYPES: Final = re.compile(
    r"\b(?:oid|reg\w+|xid8?|cid|tid|money|bit|varbit|name|timetz|inet|cidr|point)\b", re.IGNORECASE
)
_ELEMENTS: Final = re.compile(r"\{[^{}\"\\]*\}")


def float_text(x: str, *, least_exponent: int) -> str:
    """Returns SQL for the text of a float: with an exponent from 10 to this power on."""
    digits = f"rtrim(replace(ltrim(CAST({x} AS VARCHAR), '-'), '.', ''), '0')"
    whole = f"length(CAST(trunc(abs(CAST({x} AS DOUBLE))) AS DECIMAL(38,0))::VARCHAR)"
    fraction = f"CASE WHEN length({digits}) > 1 THEN '.' || {digits}[2:] ELSE '' END"
    sign = f"CASE WHEN {x} < 0 THEN '-' ELSE '' END"
    scientific = f"{sign} || {digits}[1] || {fraction} || 'e+' || lpad(CAST({whole} - 1 AS VARCHAR), 2, '0')"
    return (
        f"CASE WHEN isnan({x}) THEN 'NaN' WHEN isinf({x}) THEN CASE WHEN {x} > 0 THEN 'Infinity' ELSE '-Infinity' END "
        f"WHEN abs({x}) >= 1e{least_exponent} AND abs({x}) < 1e16 THEN {scientific} "
        f"ELSE regexp_replace(CAST({x} AS VARCHAR), '\\.0$', '') END"
    )


def text(x: str, column_type: str, *, is_output: bool = False) -> str | None:
    """Returns SQL for a value's text; None if it is not known. Functions write booleans as ``t`` and ``f``."""
    match kind(column_type):
        case (
            "text"
            | "literal"
            | "int"
            | "bigint"
            | "date"
            | "time"
            | "timestamp"
            | "timestamptz"
            | "uuid"
            | "null"
        ):
            return f"CAST({x} AS VARCHAR)"
        case "numeric" if decimals(column_type) < FREE_SCALE:
            return f"CAST({x} AS VARCHAR)"
        case "real":
            return float_text(x, least_exponent=6)
        case "float8":
            return float_text(x, least_exponent=15)
        case "bool":
            return f"CASE WHEN {x} THEN '{'t' if is_output else 'true'}' WHEN NOT {x} THEN '{'f' if is_output else 'false'}' END"
        case "bytea":
            return f"'\\x' || lower(hex({x}))"
        case "array":
            return _array_text(x, column_type[:-2])
        case "interval":
            negative = "error('a negative interval as text is not supported')"
            plain = f"CAST({x} AS VARCHAR)"
            return (
                f"CASE WHEN contains({plain}, '-') THEN {negative} ELSE replace({plain}, 'month', 'mon') END"
            )
    return None


def _array_text(x: str, element: str) -> str | None:
    value = text("e", element, is_output=True)
    if value is None or element.endswith("]"):
        return None
    quoted = "'\"' || replace(replace(e, '\\', '\\\\'), '\"', '\\\"') || '\"'"
    needs = "e = '' OR regexp_matches(e, '[{}\",\\\\\\s]') OR upper(e) = 'NULL'"
    shown = f"CASE WHEN {needs} THEN {quoted} ELSE e END" if kind(element) in {"text", "literal"} else value
    if kind(element) in {"timestamp", "timestamptz", "interval"}:
        shown = f"'\"' || {value} || '\"'"
    shown = f"list_transform({x}, lambda e: coalesce({shown}, 'NULL'))"
    return f"'{{' || array_to_string({shown}, ',') || '}}'"


def operand_text(call: Call, operand: Operand, name: str, *, is_output: bool = True) -> str:
    """Returns a template for an operand's text; `name` is its placeholder.

    Raises:
        SqlTextError: Its text is not known.
    """
    found = text(name, operand.type, is_output=is_output)
    if operand.kind == "numeric" and decimals(operand.type) and any(map(_is_mixed, operand.node.walk())):
        found = None
    if found is None:
        raise call.refused(_ROUND if operand.kind == "numeric" else "Take its parts as text instead")
    return found


def _is_mixed(node: Node) -> bool:
    return node.kind in _MIXED or node.operator in _MIXED or node.function in _MIXING


def target_of(raw: Raw) -> tuple[str, tuple[int, ...]]:
    """Returns the type of a cast as DuckDB names it, and its parameters."""
    of_type = raw["type_expr"]
    children = of_type.get("children", ())
    if of_type["type_name"].lower() == "list":
        inner, parameters = target_of({"type_expr": children[0]})
        return f"{inner}[]", parameters
    parameters = tuple(int(each["literal"]["text"]) for each in children if each["class"] == "CONSTANT")
    name = of_type["type_name"].upper()
    found = inferred(f"CAST(NULL AS {name if name != 'CHAR' else 'VARCHAR'})")
    return found, parameters


@builder
def cast(call: Call) -> Rewriting | None:
    """A cast."""
    (operand,) = call.operands
    target, parameters = target_of(call.node.raw)
    written = str(call.node.raw["type_expr"]["type_name"]).upper()
    spelled = call.text.code[max(operand.node.end, call.node.start, 0) : max(call.node.end, 0)]
    if call.node.raw["try_cast"] or operand.kind == "unknown" or target == "UNKNOWN":
        return None
    if _FIXED_LENGTH.search(spelled):
        raise call.refused("A text of fixed length pads with blanks: cast to varchar(n) or text")
    if _OWN_TYPES.search(spelled):
        raise call.refused("Cast to one of the types that tables may have")
    if written in {"TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"}:
        raise call.refused(
            "Write date_trunc('second', …) or date_trunc('milliseconds', …), which do not round"
        )
    to = kind(target)
    if to == "jsonb":
        return BUILDERS["@json_cast"](call)
    function = _CASTS.get(to)
    return function(call, operand, target, parameters) if function is not None else None


def _to_text(call: Call, operand: Operand, target: str, parameters: tuple[int, ...]) -> Rewriting | None:
    if operand.kind == "jsonb" and not parameters:
        return None
    if operand.kind in {"json", "jsonb"}:
        raise call.refused(
            "The spaces in it are not known: declare the column as jsonb, or take its parts with ->>"
        )
    whole = operand_text(call, operand, _SUBJECT, is_output=False)
    return Rewriting(f"left({whole}, {parameters[0]})" if parameters else f"({whole})")


def _to_integer(call: Call, operand: Operand, target: str, parameters: tuple[int, ...]) -> Rewriting | None:
    if operand.kind in {"literal", "text"}:
        if operand.constant is not None and operand.kind == "literal":
            if not re.fullmatch(r"\s*[+-]?\d+\s*", operand.constant):
                raise call.refused("Write the number")
            return None
        problem = "error('invalid input syntax for an integer')"
        return Rewriting(
            f"CASE WHEN regexp_full_match({_SUBJECT}, '\\s*[+-]?[0-9]+\\s*') THEN CAST(trim({_SUBJECT}, E' \\t\\n\\r\\f\\v') AS {target}) "
            f"WHEN {_SUBJECT} IS NOT NULL THEN {problem} END"
        )
    if operand.kind in {"date", "time", "timestamp", "timestamptz", "interval"}:
        raise call.refused("Write extract(epoch FROM …)")
    return None


def _to_numeric(call: Call, operand: Operand, target: str, parameters: tuple[int, ...]) -> Rewriting | None:
    precision = parameters[0] if parameters else 38
    if precision > 38:
        raise call.refused("At most 38 digits are supported")
    scale = parameters[1] if len(parameters) > 1 else 0 if parameters else FREE_SCALE
    own = f"DECIMAL({precision},{scale})"
    match operand.kind:
        case "int" | "bigint":
            return Rewriting(f"CAST({_SUBJECT} AS {own if parameters else 'DECIMAL(19,0)'})")
        case "numeric":
            return Rewriting(f"CAST({_SUBJECT} AS {own})") if parameters else Rewriting(_SUBJECT)
        case "real" | "float8":
            digits = 6 if operand.kind == "real" else 15
            return Rewriting(f"CAST(printf('%.{digits}g', CAST({_SUBJECT} AS DOUBLE)) AS {own})")
        case "text" | "literal":
            if parameters:
                return Rewriting(f"CAST({_SUBJECT} AS {own})")
            long = f"regexp_matches({_SUBJECT}, '\\.[0-9]{{{FREE_SCALE + 1},}}|[eE]')"
            problem = "error('a number with more than 18 decimals needs numeric(p,s)')"
            return Rewriting(f"CASE WHEN {long} THEN {problem} ELSE CAST({_SUBJECT} AS {own}) END")
        case "null":
            return Rewriting(f"CAST({_SUBJECT} AS {own})")
    raise call.refused("Cast it to int first")


def _to_float(call: Call, operand: Operand, target: str, parameters: tuple[int, ...]) -> Rewriting | None:
    if operand.kind == "numeric":
        return Rewriting(f"CAST(CAST({_SUBJECT} AS VARCHAR) AS {target})")
    if operand.kind in {"bool", "date", "time", "timestamp", "timestamptz", "interval"}:
        raise call.refused("Write what number it stands for")
    return None


def _to_boolean(call: Call, operand: Operand, target: str, parameters: tuple[int, ...]) -> Rewriting | None:
    if operand.kind in {"text", "literal"}:
        word = f"lower(trim({_SUBJECT}, E' \\t\\n\\r\\f\\v'))"
        problem = "error('invalid input syntax for type boolean')"
        return Rewriting(
            f"CASE WHEN {word} IN ({_TRUE}) THEN true WHEN {word} IN ({_FALSE}) THEN false "
            f"WHEN {_SUBJECT} IS NOT NULL THEN {problem} END"
        )
    if operand.kind in {"numeric", "real", "float8", "bigint"}:
        raise call.refused("Write … <> 0")
    return None


def _to_bytes(call: Call, operand: Operand, target: str, parameters: tuple[int, ...]) -> Rewriting | None:
    if operand.kind == "bytea":
        return None
    raise call.refused("Write decode('…', 'hex')")


def _to_array(call: Call, operand: Operand, target: str, parameters: tuple[int, ...]) -> Rewriting | None:
    if operand.kind == "array":
        if text("e", operand.type[:-2]) == "CAST(e AS VARCHAR)" or operand.type == target:
            return None
        raise call.refused("Cast the elements before they are aggregated")
    constant = operand.constant
    if operand.kind == "literal" and constant is not None and _ELEMENTS.fullmatch(constant.strip()):
        inner = constant.strip()[1:-1]
        elements = [each.strip() for each in inner.split(",")] if inner.strip() else []
        shown = (
            "NULL" if each.upper() == "NULL" else "'" + each.replace("'", "''") + "'" for each in elements
        )
        return Rewriting(f"CAST([{', '.join(shown)}] AS {target})")
    if operand.kind == "null":
        return None
    raise call.refused("Write ARRAY[…], or string_to_array(…, ',')")


def _to_interval(call: Call, operand: Operand, target: str, parameters: tuple[int, ...]) -> Rewriting | None:
    if operand.kind == "literal" and operand.constant is not None:
        if not re.fullmatch(
            r"(\s*[+-]?\d+\s*(year|month|week|day|hour|minute|second)s?)+\s*|\s*\d+:\d\d(:\d\d(\.\d{1,6})?)?\s*",
            operand.constant,
        ):
            raise call.refused("Write whole numbers with units: interval '1 day 2 hours'")
        return None
    if operand.kind in {"interval", "null"}:
        return None
    raise call.refused("Multiply instead: a * interval '1 day'")


def _to_moment(call: Call, operand: Operand, target: str, parameters: tuple[int, ...]) -> Rewriting | None:
    if operand.kind == "literal" and not MOMENT.fullmatch(operand.constant or ""):
        raise call.refused(MOMENT_HINT)
    if operand.kind != "text":
        return None
    problem = "error('a date or time is read only as YYYY-MM-DD hh:mm:ss')"
    fits = f"regexp_full_match({_SUBJECT}, {literal(MOMENT.pattern)}, 'is')"
    return Rewriting(
        f"CASE WHEN {fits} THEN CAST({_SUBJECT} AS {target}) WHEN {_SUBJECT} IS NOT NULL THEN {problem} END"
    )


_CASTS: Final = {
    "date": _to_moment, "timestamp": _to_moment, "timestamptz": _to_moment,
    "text": _to_text, "int": _to_integer, "bigint": _to_integer, "numeric": _to_numeric, "real": _to_float,
    "float8": _to_float, "bool": _to_boolean, "bytea": _to_bytes, "array": _to_array, "interval": _to_interval,
}  # fmt: skip
