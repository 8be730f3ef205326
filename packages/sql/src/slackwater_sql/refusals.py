"""What a view may not hold, whatever its tables are."""

from slackwater_sql.errors import ViewError
from slackwater_sql.place import SourceText
from slackwater_sql.session import function_facts
from slackwater_sql.syntax import Expression, Relation, Select

_SHAPE = "Supported is one SELECT TRANSACTIONALLY … FROM … [JOIN …] [WHERE …] GROUP BY … [HAVING …]"
_CLAUSES = {
    "ORDER": "ORDER BY of the whole view",
    "LIMIT": "LIMIT",
    "LIMIT_PERCENT": "LIMIT",
    "DISTINCT": "SELECT DISTINCT",
    "WITH": "WITH",
    "QUALIFY": "QUALIFY",
    "SAMPLE": "USING SAMPLE",
}
_KINDS = {
    "SUBQUERY": ("a subquery is not supported", _SHAPE),
    "WINDOW": ("a window function is not supported", "Aggregate over the key, or sort in list(… ORDER BY …)"),
    "STAR": ("* is not supported", "Name the columns; count(*) is possible"),
    "PARAMETER": ("a parameter is not supported", "Write the value"),
    "POSITIONAL_REFERENCE": ("a position is not supported", "Name the column"),
    "DEFAULT": ("DEFAULT is not supported", "Write the value"),
}


def refuse_unsupported(source: SourceText, select: Select) -> None:
    """Refuse clauses, expressions and functions that no view may use.

    Raises:
        ViewError: With the place of the first of them.
    """
    for clause, offset in select.extras:
        at = max(offset, 0)
        raise ViewError(source.place(at, at), f"{_CLAUSES.get(clause, clause)} is not supported", _SHAPE)
    for expression in (*select.expressions(), *_conditions(select.source)):
        for node in expression.walk():
            _refuse(source, node)


def _refuse(source: SourceText, node: Expression) -> None:
    place = source.place(node.start, node.end)
    if node.kind in _KINDS:
        raise ViewError(place, *_KINDS[node.kind])
    if node.kind != "FUNCTION":
        return
    facts = function_facts()
    if facts.is_impure(node.function, node.parameters):
        hint = "A view must depend on nothing but the rows; take the value from a column"
        raise ViewError(place, f"{node.function} depends on more than the rows", hint)
    if node.function in facts.row_makers:
        hint = "A view has one row per key; keep the list, or join the table instead"
        raise ViewError(place, f"{node.function} makes several rows of one", hint)


def _conditions(relation: Relation) -> tuple[Expression, ...]:
    own = () if relation.condition is None else (relation.condition,)
    return own + tuple(condition for side in relation.inputs for condition in _conditions(side))
