"""Which SQL of DuckDB has the meaning of an operator, function or cast of PostgreSQL."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final

from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend.syntax import Node
from slackwater.sql.frontend.text import ViewText
from slackwater.sql.meaning.code import Code
from slackwater.sql.meaning.types import decimals, fits, kind

_EXTRACT: Final = re.compile(r"extract\b", re.IGNORECASE)
_SPELLED: Final = {
    name: re.compile(rf"{name}\b", re.IGNORECASE) for name in ("regexp_full_match", "regexp_matches")
}
_OPERATORS: Final = {
    "LAMBDA": "->",
    "ARRAY_EXTRACT": "[]",
    "ARRAY_SLICE": "[:]",
    "COMPARE_IN": "IN",
    "OPERATOR_COALESCE": "coalesce",
}


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand, translated.

    Attributes:
        stub: SQL of a constant of its type.
        elements: The columns of a row.
    """

    code: Code
    type: str
    stub: str
    node: Node
    elements: tuple["Operand", ...] = ()

    @property
    def kind(self) -> str:
        """The kind of its type."""
        return kind(self.type)

    @property
    def constant(self) -> str | None:
        """The text of a constant; None for anything else."""
        value = self.node.raw.get("literal") if self.node.kind == "CONSTANT" else None
        return str(value["text"]) if value and "text" in value else None


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A template for an expression.

    Attributes:
        template: SQL with ``{0}`` for the first operand, and ``{self}`` for the whole as DuckDB reads it.
        parts: Other names in the template.
        probe: SQL of a constant of its type, if the template is not as good.
        known: Its type, if it is not what DuckDB infers.
    """

    template: str
    parts: Mapping[str, str | Code] = field(default_factory=dict)
    probe: str = ""
    known: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """An expression to be translated, with its operands, and itself as DuckDB reads it."""

    node: Node
    operands: Sequence[Operand]
    code: Code
    text: ViewText
    with_operand: Callable[[int, str], Code]
    """Returns itself with a template around an operand."""

    @property
    def name(self) -> str:
        """The name of its rule."""
        node = self.node
        start = self.text.code[max(node.start, 0) :]
        if node.kind == "CAST":
            return "cast"
        if node.function == "date_part" and _EXTRACT.match(start):
            return "extract"
        if node.function in _SPELLED and not _SPELLED[node.function].match(start):
            return {"regexp_full_match": "SIMILAR TO", "regexp_matches": "~"}[node.function]
        if node.kind == "COMPARISON":
            return node.operator
        return node.function or _OPERATORS.get(node.operator, node.operator)

    def error(self, problem: str, hint: str) -> SqlTextError:
        """Returns an error at its place."""
        return self.text.error(self.node.start, self.node.end, problem, hint)

    def refused(self, hint: str) -> SqlTextError:
        """Returns the error of something that does not have PostgreSQL's meaning here."""
        kinds = ", ".join(each.type.lower() for each in self.operands)
        return self.error(f"{self.name} of {kinds or 'this'} cannot have PostgreSQL's meaning", hint)


Builder = Callable[[Call], Rewriting | None]
BUILDERS: Final[dict[str, Builder]] = {}
"""By name, functions for what no template can say."""


def builder(function: Builder) -> Builder:
    """Registers a function that rules can name as ``@name``."""
    BUILDERS["@" + function.__name__] = function
    return function


@cache
def table() -> Mapping[str, Any]:
    """Returns the rules."""
    text = (resources.files("slackwater.sql.meaning") / "postgres.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _unverified() -> frozenset[str]:
    return frozenset(table()["unverified"].split())


def rewriting(call: Call) -> Rewriting | None:
    """Returns what replaces an expression; None if DuckDB's meaning is PostgreSQL's.

    Raises:
        SqlTextError: PostgreSQL's meaning cannot be had; the hint has the form that works.
    """
    from slackwater.sql.meaning import aggregates, casts, documents, functions, marked  # noqa: F401 - they register themselves

    if marked.concerns(call):
        return marked.rewriting(call)
    name = call.name
    kinds = tuple(each.kind for each in call.operands)
    rule = table()["rules"].get(name)
    if rule is None:
        if name in _unverified():
            hint = table()["hints"].get(
                name, 'Use another function, or set dialect = "duckdb" for DuckDB\'s meaning'
            )
            raise call.refused(hint)
        return None
    if "unknown" in kinds:
        return None
    for pattern, template in rule:
        if fits(pattern, kinds):
            return _instance(template, call)
    raise call.refused(table()["hints"].get(name, "Cast the operands to the types that you mean"))


def _with_texts(template: str, call: Call) -> str:
    from slackwater.sql.meaning.casts import operand_text

    def shown(found: re.Match[str]) -> str:
        number = int(found[2])
        if found[1] == "float":
            exact = call.operands[number].kind == "numeric"
            return f"CAST({'CAST(' if exact else ''}{{{number}}}{' AS VARCHAR)' if exact else ''} AS DOUBLE)"
        return operand_text(call, call.operands[number], f"{{{number}}}", is_output=found[1] == "out")

    return re.sub(r"\{(text|out|float):(\d)\}", shown, template)


def _instance(template: str, call: Call) -> Rewriting | None:
    if template == "same":
        return None
    if template.startswith("!"):
        raise call.refused(template[1:])
    if template.startswith("@"):
        return BUILDERS[template](call)
    if re.search(r"\{(text|out|float):", template):
        return Rewriting(_with_texts(template, call))
    return Rewriting(template, {f"s{n}": str(decimals(each.type)) for n, each in enumerate(call.operands)})
