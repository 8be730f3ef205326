"""Values of types that DuckDB has no equal of: char(n), citext, enums, and types that are only carried.

While a view is translated, a column of such a type has as its type an ENUM of DuckDB whose first label says
which one it is. What has an operand of it is replaced or refused; nothing keeps DuckDB's meaning by accident.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slackwater.sql.catalog import BY_BYTES, ColumnType, TypeKind
from slackwater.sql.duckdb_sql import literal
from slackwater.sql.frontend.syntax import Node
from slackwater.sql.frontend.text import ViewText
from slackwater.sql.meaning.rules import Call, Operand, Rewriting
from slackwater.sql.meaning.types import declared

_MARKED: Final = re.compile(r"ENUM\('pg:(\w+):((?:[^']|'')*)'(?:, (.*))?\)", re.DOTALL)
_LABEL: Final = re.compile(r"'((?:[^']|'')*)'")
_INSIDE: Final = "'pg:"
_CARRIED: Final = frozenset(
    {
        "inet", "cidr", "macaddr", "macaddr8", "xml", "ltree", "tsvector", "int4range", "int8range",
        "numrange",
        "daterange", "tsrange", "tstzrange", '"char"', "hstore",
    }
)  # fmt: skip
_OPERATORS: Final = {
    "COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "<>", "COMPARE_LESSTHAN": "<", "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=", "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM", "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}  # fmt: skip
_ORDERED: Final = frozenset({"<", ">", "<=", ">=", "BETWEEN"})
_PASSED: Final = frozenset(
    {
        "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "count", "lag", "lead", "first_value", "last_value",
        "nth_value", "array_agg", "coalesce",
    }
)  # fmt: skip
"""What returns a value as it is, or says only whether there is one."""
_OF_TEXT: Final = frozenset(
    {"upper", "lower", "length", "char_length", "left", "right", "substr", "substring", "||"}
)
_AS_TEXT: Final = "Cast it to text first: x::text"
_STRINGS: Final = frozenset({"text", "literal", "null"})


@dataclass(frozen=True, slots=True)
class Special:
    """A type that DuckDB has no equal of.

    Attributes:
        tag: ``char``, ``citext``, ``enum``, ``carried``, ``collated``, or ``nested`` if it is inside a type.
        name: The type's name.
        labels: Those of an enum, in their order.
    """

    tag: str
    name: str = ""
    labels: tuple[str, ...] = ()

    @property
    def is_key(self) -> bool:
        """Whether values are equal exactly if their texts are, and so form groups."""
        return self.tag in {"char", "enum", "collated"} or (
            self.tag == "carried" and self.name not in {"numrange", "hstore"}
        )

    @property
    def text(self) -> str:
        """A template for the value as text."""
        return "rtrim({0}, ' ')" if self.tag == "char" else "CAST({0} AS VARCHAR)"

    @property
    def order(self) -> str:
        """A template for a value that is ordered as this is; empty if there is none."""
        if self.tag == "enum":
            labels = ", ".join(map(literal, self.labels))
            place = f"CAST(list_position([{labels}], {{0}}) AS VARCHAR)"
            unknown = "'label ' || {0} || ', which the schema files do not declare'"  # error() has no order
            return f"CAST(CASE WHEN {{0}} IN ({labels}) THEN {place} ELSE {unknown} END AS INTEGER)"
        return {"char": "rtrim({0}, ' ')", "citext": "lower({0})"}.get(self.tag, "")


def marked_type(of: ColumnType) -> str:
    """Returns the type that a column has while a view is translated."""
    if of.element is not None:
        return f"{marked_type(of.element)}[]"
    label = ""
    if of.collation and (of.name == "citext" or of.name.startswith("character(")):
        label = f"nested:{of.name}"
    elif of.name.startswith("character("):
        label = f"char:{of.name}"
    elif of.labels:
        return f"ENUM({', '.join(map(literal, (f'pg:enum:{of.name}', *of.labels)))})"
    elif of.name in _CARRIED or of.kind is TypeKind.BIT:
        label = f"carried:{of.name}"
    elif of.name == "citext":
        label = "citext:"
    elif of.collation:
        label = f"collated:{of.collation}"
    return f"ENUM({literal(f'pg:{label}')})" if label else declared(of)


def special(of: str) -> Special | None:
    """Returns what a type is that DuckDB has no equal of; None for any other."""
    found = _MARKED.fullmatch(of)
    if found is None:
        return Special("nested") if _INSIDE in of else None
    labels = tuple(each.replace("''", "'") for each in _LABEL.findall(found[3] or ""))
    return Special(found[1], found[2].replace("''", "'"), labels)


def concerns(call: Call) -> bool:
    """Returns whether an expression has an operand of such a type, or compares documents."""
    is_compared = call.name in _OPERATORS or call.name in {"IN", "BETWEEN"}
    return any(special(each.type) for each in call.operands) or (
        is_compared and any(each.kind in {"json", "jsonb"} for each in call.operands)
    )


def key_problem(of: str) -> str:
    """Returns what to write instead where values of a type form groups; empty if they can."""
    found = special(of)
    if of in {"JSON", "TEXT JSON"}:
        return "Cast it to text: PostgreSQL compares numbers in jsonb by their values"
    if found is None or found.is_key:
        return ""
    return "Take lower(x::text) of citext" if found.tag == "citext" else "Cast it to text: x::text"


def order_template(of: str, node: Node, text: ViewText) -> str:
    """Returns a template for what is ordered instead of an expression; empty for the expression itself.

    Raises:
        SqlTextError: The order is not known.
    """
    found = special(of)
    if found is None:
        return ""
    if not found.order or node.kind != "COLUMN_REF":
        hint = _collated(found) if found.tag == "collated" else _AS_TEXT
        raise text.error(
            max(node.start, 0), max(node.end, 0), "the order of these values is not known here", hint
        )
    return found.order


def without_collation(node: Node, types: Sequence[str]) -> str:
    """Returns the type of an expression with COLLATE of bytes, given that below it; empty for any other."""
    if node.kind != "COLLATE" or str(node.raw.get("collation", "")).lower() not in BY_BYTES:
        return ""
    (of,) = types
    found = special(of)
    return "VARCHAR" if found is None or found.tag == "collated" else of


def rewriting(call: Call) -> Rewriting | None:
    """Returns what replaces an expression with an operand of such a type; None if it can stay.

    Raises:
        SqlTextError: PostgreSQL's meaning cannot be had.
    """
    name, kinds = call.name, [special(each.type) for each in call.operands]
    if not any(kinds):
        raise call.refused("Cast both sides to text: jsonb compares numbers by their values")
    values = [each for each, kind in zip(call.operands, kinds, strict=True) if kind is not None]
    if name in _OPERATORS or name in {"IN", "BETWEEN"} or call.node.kind == "BETWEEN":
        return _comparison(call, _OPERATORS.get(name, "IN" if name == "IN" else "BETWEEN"))
    if name == "cast":
        return _cast(call, values[0])
    if _passes(call, kinds, values):
        return None
    found = kinds[0]
    if name in {"min", "max"} and found is not None and found.tag == "enum" and len(kinds) == 1:
        labels = ", ".join(map(literal, found.labels))
        inside = call.with_operand(0, found.order)
        return Rewriting("([" + labels + "])[{inner}]", {"inner": inside}, f"CAST(NULL AS {values[0].type})")
    if name in _OF_TEXT and all(kind is None or kind.tag in {"char", "citext", "collated"} for kind in kinds):
        return _text_call(call, name)
    if found is not None and found.tag == "collated":
        raise call.refused(_collated(found))
    raise call.refused(key_problem(values[0].type) or _AS_TEXT)


def _passes(call: Call, kinds: Sequence[Special | None], values: Sequence[Operand]) -> bool:
    """Returns whether an expression returns values as they are, or says only whether there are any."""
    is_alone = len({each.type for each in values}) == 1
    if call.node.kind.startswith("CASE"):
        others = {each.kind for each, kind in zip(call.operands, kinds, strict=True) if kind is None}
        if not is_alone or not others <= {"bool", "null"}:
            raise call.refused(_AS_TEXT)
        return True
    if call.name not in _PASSED or not is_alone or (call.name == "coalesce" and None in kinds):
        return False
    if call.name == "count" and call.node.raw.get("distinct") and (hint := key_problem(values[0].type)):
        raise call.refused(hint)
    return True


def _comparison(call: Call, operator: str) -> Rewriting:
    forms = [_compared(call, each, number, operator) for number, each in enumerate(call.operands)]
    if operator == "IN":
        return Rewriting(f"({forms[0]} IN ({', '.join(forms[1:])}))")
    if operator == "BETWEEN":
        return Rewriting(f"({forms[0]} BETWEEN {forms[1]} AND {forms[2]})")
    return Rewriting(f"({forms[0]} {operator} {forms[1]})")


def _compared(call: Call, operand: Operand, number: int, operator: str) -> str:
    """Returns a template for one side of a comparison."""
    kinds = [special(each.type) for each in call.operands]
    first = next(kind for kind in kinds if kind is not None)
    others = {each.kind for each, kind in zip(call.operands, kinds, strict=True) if kind is None}
    known = {kind for kind in kinds if kind is not None}
    is_alike = len(known) == 1 or {kind.tag for kind in known} == {"char"}
    hole = f"{{{number}}}"
    if first.tag == "collated" and operator not in _ORDERED:
        return hole
    if first.tag == "collated" or not is_alike or not others <= _STRINGS or (first.tag == "nested"):
        raise call.refused(
            _collated(first) if first.tag == "collated" else "Cast both sides to text: x::text"
        )
    if operand.kind == "null":
        return hole
    if first.tag == "carried":
        if operator in _ORDERED or others - {"null"} or not first.is_key:
            raise call.refused(
                "Only columns of the same type can be compared, and only whether they are equal"
            )
        return hole
    if first.tag == "enum":
        if others - {"literal", "null"}:
            raise call.refused("Compare an enum with its labels, or cast it to text: x::text")
        if operand.kind == "literal" and operand.constant not in first.labels:
            raise call.refused(f"The labels are {', '.join(first.labels)}")
        return first.order.replace("{0}", hole) if operator in _ORDERED else hole
    if "text" in others:  # then PostgreSQL compares both as text
        kind = special(operand.type)
        return kind.text.replace("{0}", hole) if kind is not None else hole
    return first.order.replace("{0}", hole)


def _collated(of: Special) -> str:
    return f'The order of the collation {of.name} is not known here: order by bytes, with x COLLATE "C"'


def _cast(call: Call, operand: Operand) -> Rewriting | None:
    from slackwater.sql.meaning.casts import target_of

    found = special(operand.type)
    target, _ = target_of(call.node.raw)
    is_plain = str(call.node.raw["type_expr"]["type_name"]).upper() in {"VARCHAR", "TEXT"}
    if found is None or target != "VARCHAR" or not is_plain or call.node.raw["type_expr"].get("children"):
        raise call.refused("Cast it to text first: x::text::…")
    if found.tag == "nested" or (found.tag == "carried" and found.name in {"inet", "cidr", "hstore"}):
        raise call.refused("Its text is not the one that PostgreSQL writes")
    kept = operand.type if found.tag == "collated" else "VARCHAR"
    return Rewriting(found.text, probe=f"CAST(NULL AS {kept})")


def _text_call(call: Call, name: str) -> Rewriting:
    if any(special(each.type) is None and each.kind in {"other", "array", "json"} for each in call.operands):
        raise call.refused(_AS_TEXT)
    as_text = []
    for number, each in enumerate(call.operands):
        found = special(each.type)
        as_text.append(found.text.replace("{0}", f"{{{number}}}") if found is not None else f"{{{number}}}")
    collated = [each.type for each in call.operands if (of := special(each.type)) and of.tag == "collated"]
    probe = f"CAST(NULL AS {collated[0]})" if collated and not name.endswith("length") else ""
    if name == "||" and {each.kind for each in call.operands if special(each.type) is None} <= _STRINGS:
        return Rewriting(f"({' || '.join(as_text)})", probe=probe)
    if len(call.operands) == 1:
        return Rewriting(f"{name}({as_text[0]})", probe=probe)
    raise call.refused(_AS_TEXT)
