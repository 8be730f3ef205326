"""Small changes to Python code: the usual operators of mutation testing."""

import ast
import copy
from collections.abc import Iterable, Iterator

Change = tuple[ast.expr | ast.stmt, str, str]
"""What is replaced, in words what was done, and the new text."""

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_MESSAGES = {"__str__", "__repr__"}


def changes(tree: ast.Module) -> Iterator[Change]:
    """Every change inside functions; texts for people, annotations and defaults stay as they are."""
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.FunctionDef) and node.name not in _MESSAGES:
            for statement in node.body:
                yield from _within(statement)
        elif isinstance(node, ast.ClassDef):
            todo.extend(node.body)


def _within(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Raise):
        yield node, "raise dropped", "pass"
    for part in _parts(node):
        yield from _within(part)
    yield from _of_expression(node)
    yield from _of_statement(node)


def _parts(node: ast.AST) -> Iterable[ast.AST]:
    """What may be changed inside of something."""
    match node:
        case ast.FunctionDef():
            return node.body
        case ast.AnnAssign(value=value):
            return [] if value is None else [value]
        case ast.Expr(value=ast.Constant()) | ast.Raise() | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return []
    return ast.iter_child_nodes(node)


def _of_expression(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARISONS[type(op)]:
                yield node, f"comparison is {other.__name__}", _with(node, ops=[other()])
        case ast.BoolOp(op=op, values=values):
            yield (
                node,
                "and, or exchanged",
                _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And()),
            )
            for index in range(len(values)):
                rest = [*values[:index], *values[index + 1 :]]
                yield node, f"operand {index + 1} left out", _with(node, values=rest)
        case ast.Constant(value=bool(value)):
            yield node, "truth exchanged", str(not value)
        case ast.Constant(value=int(value)):
            yield node, "one more", f"({value + 1})"
            yield node, "one less", f"({value - 1})"
        case ast.UnaryOp(op=ast.Not()):
            yield node, "not left out", _with(node.operand)
        case ast.BinOp(op=op) if kind := _ARITHMETIC.get(type(op)):
            yield node, f"operator is {kind.__name__}", _with(node, op=kind())
        case ast.Call(func=ast.Name(id=name)) if name in _TWINS:
            yield node.func, f"{name} is {_TWINS[name]}", _TWINS[name]


def _of_statement(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            yield node.test, "condition negated", f"(not ({ast.unparse(node.test)}))"
        case ast.comprehension():
            yield from ((condition, "filter left out", "True") for condition in node.ifs)
        case ast.Expr(value=ast.Constant()) | ast.Return(value=None | ast.Constant(value=None)):
            return  # a text, or nothing that could be left out
        case ast.Expr() | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Delete():
            yield node, "statement dropped", "pass"
        case ast.Return():
            yield node, "returns nothing", "return None"
        case ast.Assign(targets=targets):
            if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
                yield node, "assignment dropped", "pass"


def _with(node: ast.expr, **parts: object) -> str:
    """Returns the text of an expression that has other parts."""
    changed = copy.copy(node)
    vars(changed).update(parts)
    return f"({ast.unparse(changed)})"
