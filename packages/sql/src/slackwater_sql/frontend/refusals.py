"""What no view may hold, wherever it stands."""

from slackwater_sql.frontend.build import Environment
from slackwater_sql.frontend.syntax import Node, Select, SetOperation
from slackwater_sql.session import function_facts

_KINDS = {
    "STAR": ("* is not supported here", "Name the columns; count(*) is possible"),
    "PARAMETER": ("a parameter is not supported", "Write the value"),
    "POSITIONAL_REFERENCE": ("a position is not supported", "Name the column"),
    "DEFAULT": ("DEFAULT is not supported", "Write the value"),
}
_SCHEMAS = frozenset({"", "main", "pg_catalog"})
_CLAUSE_HINTS = {
    "ORDER BY": "Rows of a view have no order; sort in an aggregate: list(… ORDER BY …)",
    "LIMIT": "A view has all its rows; keep the first with QUALIFY row_number() OVER (PARTITION BY … ) = 1",
    "DISTINCT ON": "Keep one row with QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) = 1",
}


def refuse_node(environment: Environment, node: Node, clause: str) -> None:
    """Refuse expressions that no view may use.

    Raises:
        ViewError: This is one.
    """
    if node.kind in _KINDS:
        raise environment.error(node.start, node.end, *_KINDS[node.kind])
    if node.operator == "GROUPING_FUNCTION":
        raise environment.error(node.start, node.end, "GROUPING is not supported", "Write several views")
    if node.kind not in {"FUNCTION", "WINDOW"}:
        return
    if node.raw.get("schema", "") not in _SCHEMAS:
        hint = f"Write it as {node.function}(…)"
        raise environment.error(node.start, node.end, f"{node.function} stands behind its argument", hint)
    facts = function_facts()
    if facts.is_impure(node.function, len(node.arguments)):
        hint = "A view must depend on nothing but the rows; take the value from a column"
        raise environment.error(node.start, node.end, f"{node.function} depends on more than the rows", hint)
    if node.function in facts.row_makers:
        problem = f"{node.function} makes several rows of one"
        raise environment.error(node.start, node.end, problem, "Keep the list, or join the table instead")


def refuse_clauses(environment: Environment, query: Select | SetOperation) -> None:
    """Refuse clauses that no query of a view may have.

    Raises:
        ViewError: It has one.
    """
    for clause, start in query.refused:
        hint = _CLAUSE_HINTS.get(clause, "Supported are SELECT, FROM, WHERE, GROUP BY, HAVING and QUALIFY")
        raise environment.error(start, start, f"{clause} is not supported", hint)
