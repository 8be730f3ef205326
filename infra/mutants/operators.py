"""Small changes to Python code: the usual operators of mutation testing."""

import ast
import copy
from collections.abc import Callable, Iterable, Iterator

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
    for function in _functions(tree):
        for statement in function.body:
            yield from _of_statement(statement)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The outermost functions; those inside belong to them."""
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.FunctionDef) and node.name not in _MESSAGES:
            yield node
        elif isinstance(node, ast.ClassDef):
            todo.extend(node.body)


def _of_statement(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Raise):
        yield node, "raise dropped", "pass"
    for part in _parts(node):
        yield from _of_statement(part)
    if isinstance(node, ast.stmt | ast.expr):
        for kinds, make in _OPERATORS:
            if isinstance(node, kinds):
                yield from make(node)


def _parts(node: ast.AST) -> Iterable[ast.AST]:
    """What may be changed inside of something."""
    if isinstance(node, ast.FunctionDef):
        return node.body
    if isinstance(node, ast.AnnAssign):
        return [] if node.value is None else [node.value]
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if is_text or isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return []
    return ast.iter_child_nodes(node)


def _compare(node: ast.Compare) -> Iterator[Change]:
    if len(node.ops) == 1:
        for other in _COMPARISONS[type(node.ops[0])]:
            changed = copy.copy(node)
            changed.ops = [other()]
            yield node, f"comparison is {other.__name__}", _text(changed)


def _bool(node: ast.BoolOp) -> Iterator[Change]:
    changed = copy.copy(node)
    changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield node, "and, or exchanged", _text(changed)
    for index in range(len(node.values)):
        rest = [v for i, v in enumerate(node.values) if i != index]
        shorter = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        yield node, f"operand {index + 1} left out", _text(shorter)


def _condition(node: ast.If | ast.While | ast.IfExp) -> Iterator[Change]:
    yield node.test, "condition negated", f"(not ({ast.unparse(node.test)}))"


def _comprehension(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> Iterator[Change]:
    for generator in node.generators:
        for condition in generator.ifs:
            yield condition, "filter left out", "True"


def _constant(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield node, "truth exchanged", str(not node.value)
    elif isinstance(node.value, int):
        yield node, "one more", f"({node.value + 1})"
        yield node, "one less", f"({node.value - 1})"


def _not(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Not):
        yield node, "not left out", _text(node.operand)


def _arithmetic(node: ast.BinOp) -> Iterator[Change]:
    other = _ARITHMETIC.get(type(node.op))
    if other is not None:
        changed = copy.copy(node)
        changed.op = other()
        yield node, f"operator is {other.__name__}", _text(changed)


def _call(node: ast.Call) -> Iterator[Change]:
    if isinstance(node.func, ast.Name) and node.func.id in _TWINS:
        yield node.func, f"{node.func.id} is {_TWINS[node.func.id]}", _TWINS[node.func.id]


def _dropped(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a text
    yield node, "statement dropped", "pass"


def _return(node: ast.Return) -> Iterator[Change]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield node, "returns nothing", "return None"


def _assignment(node: ast.Assign) -> Iterator[Change]:
    if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield node, "assignment dropped", "pass"


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


_OPERATORS: list[tuple[tuple[type[ast.AST], ...], Callable[..., Iterator[Change]]]] = [
    ((ast.Compare,), _compare),
    ((ast.BoolOp,), _bool),
    ((ast.If, ast.While, ast.IfExp), _condition),
    ((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), _comprehension),
    ((ast.Constant,), _constant),
    ((ast.UnaryOp,), _not),
    ((ast.BinOp,), _arithmetic),
    ((ast.Call,), _call),
    ((ast.Expr, ast.AugAssign, ast.Continue, ast.Break, ast.Delete), _dropped),
    ((ast.Return,), _return),
    ((ast.Assign,), _assignment),
]
