"""Addresses of reviewed mutants: a function, and a small piece of syntax in it.

A change is one of

- ``drop STATEMENT``: the statement becomes ``pass``,
- ``without EXPRESSION``: one part of an ``and`` or ``or``, one filter of a comprehension, one element or one
  argument is left out,
- ``not EXPRESSION``: a condition is negated,
- ``later STATEMENT``: the statement changes places with the one behind it,
- ``text OLD => NEW``: a part of a string, of SQL for example, becomes another one,
- ``OLD => NEW``: an expression or a statement becomes another one.

``...`` fits every expression, all arguments of a call and every body of a statement. What is written has to
fit exactly one place of the function; ``@2`` at the end chooses the second of several.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from textwrap import indent
from typing import TypeVar

Node = TypeVar("Node", ast.expr, ast.stmt)
Replacement = tuple[ast.expr | ast.stmt, str]
"""What is replaced, and the new text."""
Span = tuple[int, int]
"""The first and the last line."""


class PatternError(Exception):
    """A change does not fit the code."""


def changed(text: str, function: str, change: str) -> tuple[str, Span]:
    """The text of a module with one change in a function (``Class.method``; empty: the whole module).

    Raises:
        PatternError: the function is not there, or the pattern does not fit exactly one place.
    """
    scope = _scope(_tree(text), function)
    place = re.fullmatch(r"(?s)(.+?)(?: @(\d+))?", change)
    assert place is not None  # noqa: S101 - everything but the empty text fits
    found = list(_replacements(scope, place[1]))
    number = int(place[2] or 1)
    if number > len(found) or (place[2] is None and len(found) > 1):
        raise PatternError(f"{function}: {change!r} fits {len(found)} places")
    node, new = found[number - 1]
    end = node.end_lineno or node.lineno
    return spliced(text, node, new), (node.lineno, end)


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def _scope(tree: ast.Module, function: str) -> ast.AST:
    scope: ast.AST = tree
    for name in filter(None, function.split(".")):
        inner = [
            node
            for node in ast.iter_child_nodes(scope)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name
        ]
        if not inner:
            raise PatternError(f"there is no {function}")
        scope = inner[-1]
    return scope


def _replacements(scope: ast.AST, change: str) -> Iterator[Replacement]:
    word, _, rest = change.partition(" ")
    old, arrow, new = change.partition(" => ")
    if word == "text" and arrow:
        yield from _texts(scope, old.removeprefix("text "), new)
    elif word in _FORMS and not arrow:
        yield from _FORMS[word](scope, rest)
    elif not arrow:
        raise PatternError(f"{change!r} is no change")
    elif isinstance(_parsed(old), ast.expr) and isinstance(_parsed(new), ast.expr):
        yield from ((node, f"({new})") for node in _fitting(scope, old, ast.expr))
    else:
        yield from ((node, new) for node in _fitting(scope, old, ast.stmt))


def _later(scope: ast.AST, pattern: str) -> Iterator[Replacement]:
    for statements in _blocks(scope):
        for first, second in pairwise(statements):
            if first in _fitting(ast.Module([first], []), pattern, ast.stmt):
                both = ast.Module([second, first], [])
                place = ast.Pass(lineno=first.lineno, col_offset=first.col_offset)
                place.end_lineno, place.end_col_offset = second.end_lineno, second.end_col_offset
                yield place, indent(ast.unparse(both), " " * first.col_offset).lstrip()


def _texts(scope: ast.AST, old: str, new: str) -> Iterator[Replacement]:
    for node in _nodes(scope):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and old in node.value:
            yield node, repr(node.value.replace(old, new))


def _without(scope: ast.AST, pattern: str) -> Iterator[Replacement]:
    part = _parsed(pattern)
    return (found for node in _nodes(scope) for found in _shorter(node, part))


def _fitting(scope: ast.AST, pattern: str, kind: type[Node]) -> Iterator[Node]:
    """The expressions or statements that a pattern fits; a call alone is both."""
    wanted = _parsed(pattern)
    for node in _nodes(scope):
        alone = node.value if isinstance(node, ast.Expr) and isinstance(wanted, ast.expr) else node
        if isinstance(node, kind) and _fits(wanted, alone):
            yield node


def _shorter(node: ast.expr | ast.stmt, part: ast.AST) -> Iterator[Replacement]:
    for field, owner in _lists(node):
        values = getattr(owner, field)
        for index, value in enumerate(values):
            if _fits(part, value.value if isinstance(value, ast.keyword) else value):
                rest = [*values[:index], *values[index + 1 :]]
                if isinstance(node, ast.expr):
                    setattr(owner, field, rest)
                    new = ast.unparse(node)
                    setattr(owner, field, values)
                    yield node, f"({new})"


def _lists(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.BoolOp):
        yield "values", node
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        yield from (("ifs", generator) for generator in node.generators)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        yield "elts", node
    elif isinstance(node, ast.Call):
        yield from (("args", node), ("keywords", node))


def _blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(scope):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield block


def _nodes(scope: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """In the order of the text, the outer before the inner."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.expr | ast.stmt):
            yield child
        yield from _nodes(child)


def _parsed(text: str) -> ast.AST:
    wrapped = text if not re.match(r"(return|continue|break)\b", text) else f"while x:\n  {text}"
    try:
        (statement,) = ast.parse(wrapped).body
    except (SyntaxError, ValueError) as error:
        raise PatternError(f"{text!r} is no Python: {error}") from error
    if wrapped is not text and isinstance(statement, ast.While):
        return statement.body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


def _fits(pattern: object, node: object) -> bool:
    if _is_any(pattern):
        return isinstance(node, ast.expr)
    if isinstance(pattern, list):
        alone = pattern[0] if len(pattern) == 1 else None
        if _is_any(alone.value if isinstance(alone, ast.Expr) else alone):
            return True
        return isinstance(node, list) and len(pattern) == len(node) and all(map(_fits, pattern, node))
    if not isinstance(pattern, ast.AST):
        return pattern == node
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Call) and len(pattern.args) == 1 and _is_any(pattern.args[0]):
        return _fits(pattern.func, node.func)  # type: ignore[attr-defined] # of the same type
    if isinstance(pattern, ast.Expr):
        return _fits(pattern.value, node.value)  # type: ignore[attr-defined] # of the same type
    fields = [name for name in pattern._fields if name not in ("ctx", "kind", "type_comment")]
    return all(_fits(getattr(pattern, name), getattr(node, name)) for name in fields)


def _is_any(pattern: object) -> bool:
    return isinstance(pattern, ast.Constant) and pattern.value is ...


def spliced(text: str, node: ast.expr | ast.stmt, new: str) -> str:
    """Returns a module's text with another text in place of a node."""
    lines = text.splitlines(keepends=True)
    start = sum(len(line.encode()) for line in lines[: node.lineno - 1]) + node.col_offset
    end_line = node.end_lineno or node.lineno
    end = sum(len(line.encode()) for line in lines[: end_line - 1]) + (node.end_col_offset or 0)
    data = text.encode()
    return (data[:start] + new.encode() + data[end:]).decode()


_FORMS: dict[str, Callable[[ast.AST, str], Iterator[Replacement]]] = {
    "drop": lambda scope, old: ((node, "pass") for node in _fitting(scope, old, ast.stmt)),
    "not": lambda scope, old: (
        (node, f"(not ({ast.unparse(node)}))") for node in _fitting(scope, old, ast.expr)
    ),
    "later": _later,
    "without": _without,
}
