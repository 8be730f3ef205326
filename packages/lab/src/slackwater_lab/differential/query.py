"""The SQL of a view: written out, for the engine or for the reference, and made smaller."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sqlglot import exp, parse_one

WORD: Final = " TRANSACTIONALLY"
_DEPENDENT = re.compile(r"dependent\((.*?)\)", re.IGNORECASE)
"""A column that depends on the primary key in GROUP BY. The reference lacks that rule: it takes any value."""


@dataclass(frozen=True, slots=True)
class View:
    """A view of a pipeline."""

    name: str
    text: str
    """Its SQL with the word TRANSACTIONALLY; ``dependent(x)`` is a column that is not grouped by."""

    def sql(self) -> str:
        """The SQL that a user would write."""
        return _DEPENDENT.sub(r"\1", self.text)

    def reference_sql(self) -> str:
        """The same for the reference."""
        return _DEPENDENT.sub(r"any_value(\1)", self.text.replace(WORD, ""))


def transactional(query: str, named: str = "") -> str:
    """The text of a view that is this query, with named queries before it."""
    return named + query.replace("SELECT", f"SELECT{WORD}", 1)


def nested(query: str) -> str:
    """A query within another one."""
    # Text values may hold line breaks, which must stay as they are.
    return "(\n" + (query if "'" in query else "    " + query.replace("\n", "\n    ")) + "\n)"


def select(
    items: Sequence[str],
    sources: str,
    where: Sequence[str] = (),
    *,
    groups: Sequence[str] = (),
    having: Sequence[str] = (),
    qualify: Sequence[str] = (),
    is_distinct: bool = False,
) -> str:
    """A query, one clause per line; its columns are called c0, c1 and so on."""
    columns = ",\n    ".join(f"{item} AS c{number}" for number, item in enumerate(items))
    clauses = (
        ("WHERE ", " AND ", where),
        ("GROUP BY ", ", ", groups),
        ("HAVING ", " AND ", having),
        ("QUALIFY ", " AND ", qualify),
    )
    lines = [f"SELECT {'DISTINCT ' * is_distinct}{columns}", f"FROM {sources}"]
    return "\n".join(lines + [word + between.join(parts) for word, between, parts in clauses if parts])


def smaller_views(view: View) -> Iterator[View]:
    """Views with one thing left out or one thing simplified; they need not be valid."""
    root = parse_one(view.text.replace(WORD, ""), read="duckdb")
    for number, node in enumerate(root.walk()):
        if number and isinstance(node, exp.Query):
            yield _view(view.name, node.unnest())
        for argument in _simpler(node):
            copy = root.copy()
            twin = next(islice(copy.walk(), number, None))
            if argument is None:
                twin.pop()
            elif isinstance(twin, exp.Join):
                twin.set(argument, None)
            else:
                twin.replace(twin.args[argument].copy())
            yield _view(view.name, copy)


def _simpler(node: exp.Expr) -> Iterator[str | None]:
    """Ways to make a part smaller: by what is in one of its arguments, or by leaving it out (None)."""
    parent = node.parent
    if parent is not None and isinstance(parent.args.get(str(node.arg_key)), list):
        yield None
    if isinstance(
        node, exp.Where | exp.Having | exp.Group | exp.Distinct | exp.Qualify | exp.Limit | exp.Offset
    ):
        yield None
    if isinstance(node, exp.And | exp.Or | exp.SetOperation):
        yield from ("this", "expression")
    if isinstance(node, exp.Filter | exp.Not | exp.Paren):
        yield "this"
    if isinstance(node, exp.Join):
        yield from (each for each in ("side", "kind") if node.args.get(each))


def _view(name: str, query: exp.Expr) -> View:
    copy = query.copy()
    named = copy.args.get("with_")
    if named is not None:
        named.pop()
    return View(name, transactional(copy.sql("duckdb"), "" if named is None else f"{named.sql('duckdb')}\n"))
