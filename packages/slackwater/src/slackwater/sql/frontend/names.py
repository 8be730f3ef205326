"""The names that PostgreSQL gives to columns of a select list without AS."""

import re
from collections.abc import Sequence
from typing import Final

from slackwater.sql.frontend.syntax import Node, Query, Select, SetOperation
from slackwater.sql.frontend.text import ViewText

_CALL: Final = re.compile(r'(?:"?\w+"?\s*\.\s*)*(?P<quote>"?)(?P<name>\w+)"?\s*\(')
_SPELLED: Final = {
    "INTEGER": "int4", "BIGINT": "int8", "SMALLINT": "int2", "FLOAT": "float4", "DOUBLE": "float8",
    "DECIMAL": "numeric", "BOOLEAN": "bool", "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "TIME WITH TIME ZONE": "timetz",
}  # fmt: skip
_CONSTRUCTED: Final = {"struct_pack": "row", "list_value": "array", "timezone": "timezone"}
_UNNAMED: Final = "?column?"


def derived_name(text: ViewText, node: Node) -> str:
    """Returns the name that PostgreSQL gives to a column that is this expression; none for a star."""
    return "" if node.kind == "STAR" else _name(text, node)[0] or _UNNAMED


def end_of_column(text: ViewText, node: Node) -> int:
    """Returns the offset after a column of a select list, with the parentheses around it."""
    start, end = node.start, node.end
    while True:
        before = text.structure[:start].rstrip()
        after = len(text.structure) - len(text.structure[end:].lstrip())
        if not before.endswith("(") or not text.structure.startswith(")", after):
            return end
        start, end = len(before) - 1, after + 1


def first_items(query: Query) -> Sequence[Node]:
    """Returns the select list that names the columns of a query."""
    while isinstance(query, SetOperation):
        query = query.branches[0]
    return query.items if isinstance(query, Select) else ()


def _name(text: ViewText, node: Node) -> tuple[str, bool]:
    """Returns the name, and whether a cast or a CASE around the expression keeps it."""
    match node.kind:
        case "COLUMN_REF":
            return node.names[-1], True
        case "CASE":
            name, is_kept = _name(text, node.parts["else_expr"][0])
            return (name, True) if is_kept else ("case", False)
        case "CAST":
            name, is_kept = _name(text, node.children[0])
            return (name, True) if is_kept else (_type_name(node.raw["type_expr"]), False)
        case "CONSTANT":
            return ("bool" if node.raw["literal"].get("kind") == "BOOLEAN" else ""), False
        case "SUBQUERY":
            return _name_of_subquery(text, node)
        case "FUNCTION" | "WINDOW" | "OPERATOR":
            return _name_of_call(text, node)
    return "", False


def _name_of_call(text: ViewText, node: Node) -> tuple[str, bool]:
    if node.operator == "ARRAY_EXTRACT":
        return _name(text, node.children[0])
    if node.operator == "STRUCT_EXTRACT":
        return text.code[node.start : node.end].rpartition(".")[2].strip(' "'), True
    is_call = not node.raw.get("is_operator") and not node.operator.startswith(
        ("OPERATOR_NOT", "OPERATOR_IS")
    )
    called = _CALL.match(text.code, max(node.start, 0), max(node.end, 0)) if is_call else None
    if called is None:
        name = "array" if node.operator == "ARRAY_CONSTRUCTOR" else _CONSTRUCTED.get(node.function, "")
        return name, bool(name)
    name = called["name"] if called["quote"] else called["name"].lower()
    if name == "trim":
        name = "btrim" if node.function == "trim" else node.function
    return name, True


def _name_of_subquery(text: ViewText, node: Node) -> tuple[str, bool]:
    kind = node.raw["subquery_type"]
    items = first_items(node.query) if kind == "SCALAR" and node.query is not None else ()
    if items:
        return items[0].alias or derived_name(text, items[0]), True
    return ("exists", True) if kind == "EXISTS" else ("", False)


def _type_name(raw: object) -> str:
    """Returns PostgreSQL's own name of a type; an array has that of its elements."""
    name = raw["type_name"] if isinstance(raw, dict) else ""
    children = raw["children"] if isinstance(raw, dict) else ()
    if name.lower() == "list" and children:
        return _type_name(children[0])
    return _SPELLED.get(name, name.lower())
