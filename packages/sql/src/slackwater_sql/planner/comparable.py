"""One text for each value, where rows are brought together by the texts of values."""

from duckdb.sqltypes import DuckDBPyType

from slackwater_sql.document import literal

_FLOATS = frozenset({"float", "double"})
_WITHOUT_ONE_TEXT = frozenset({"interval", "time with time zone", "union"})
"""Equal values have several texts, or, of a union, values of two members one."""
_LISTS = frozenset({"list", "array"})
_NESTED = _LISTS | {"struct", "map", "tuple", "union"}


def may_have_one_text(of_type: DuckDBPyType) -> bool:
    """Whether :func:`with_one_text` gives equal values of a type equal texts."""
    kind = _kind(of_type)
    if kind in _LISTS | {"struct"}:
        return all(may_have_one_text(child) for _, child in _children(of_type))
    return not _holds(of_type, _WITHOUT_ONE_TEXT if kind in _FLOATS else _WITHOUT_ONE_TEXT | _FLOATS)


def with_one_text(sql: str, of_type: DuckDBPyType) -> str:
    """SQL of an equal value whose text is that of all equal ones: 0.0 and -0.0 are equal."""
    if _kind(of_type) in _NESTED and _holds(of_type, _FLOATS):
        return f"CAST({_positive(sql, of_type, 0)} AS {of_type})"
    return _positive(sql, of_type, 0)


def _positive(sql: str, of_type: DuckDBPyType, depth: int) -> str:
    if not _holds(of_type, _FLOATS):
        return sql
    if _kind(of_type) in _FLOATS:
        return f"({sql}) + 0.0"
    children = _children(of_type)
    if _kind(of_type) in _LISTS:
        element = f"e{depth}"
        return f"list_transform({sql}, lambda {element}: {_positive(element, children[0][1], depth + 1)})"
    fields = ", ".join(
        f"{literal(name)}: {_positive(f'struct_extract({sql}, {literal(name)})', child, depth)}"
        for name, child in children
    )
    return f"CASE WHEN ({sql}) IS NULL THEN NULL ELSE {{{fields}}} END"


def _holds(of_type: DuckDBPyType, kinds: frozenset[str]) -> bool:
    return _kind(of_type) in kinds or any(_holds(child, kinds) for _, child in _children(of_type))


def _children(of_type: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    if _kind(of_type) not in _NESTED:
        return []
    return [(name, child) for name, child in of_type.children if isinstance(child, DuckDBPyType)]


def _kind(of_type: DuckDBPyType) -> str:
    return of_type.id.strip('"')
