"""Queries: a SELECT, or several put together by UNION, EXCEPT or INTERSECT."""

from dataclasses import replace

from slackwater_sql.document import identifier
from slackwater_sql.frontend.build import Build, Environment, Result
from slackwater_sql.frontend.dependencies import dependencies, never_null, without_dependents
from slackwater_sql.frontend.plain import plain
from slackwater_sql.frontend.refusals import refuse_clauses
from slackwater_sql.frontend.scope import Visible
from slackwater_sql.frontend.select import read_select
from slackwater_sql.frontend.syntax import Query, Refused, SetOperation
from slackwater_sql.logical import (
    Aggregate,
    Expression,
    Extend,
    Join,
    JoinKind,
    Relation,
    Span,
    Union,
)


def read_query(query: Query, environment: Environment) -> Result:
    """The tree of a query that stands by itself.

    Raises:
        ViewError: It is outside of what is supported.
    """
    if isinstance(query, Refused):
        problem = f"{query.what} is not supported"
        raise environment.error(query.start, query.start, problem, "Write SELECT … FROM …")
    if isinstance(query, SetOperation):
        return _set_operation(query, environment)
    return read_select(environment, query, None).computed(environment.build)


def _set_operation(query: SetOperation, environment: Environment) -> Result:
    refuse_clauses(environment, query)
    environment = environment.with_commons(query.with_)
    is_supported = query.operation == "UNION" or not query.keeps_duplicates
    if query.operation not in {"UNION", "EXCEPT", "INTERSECT"} or not is_supported:
        what = query.operation.replace("_", " ") + (" ALL" if query.keeps_duplicates else "")
        hint = "Supported are UNION, UNION ALL, EXCEPT and INTERSECT"
        raise environment.error(query.start, query.start, f"{what} is not supported", hint)
    branches = [read_query(branch, environment) for branch in query.branches]
    for branch, written in zip(branches, query.branches, strict=True):
        if len(branch.columns) != len(branches[0].columns):
            problem = (
                f"this SELECT has {len(branch.columns)} columns, the first one {len(branches[0].columns)}"
            )
            raise environment.error(written.start, written.start, problem, "Columns are matched by position")
    branches = _of_one_type(environment.build, branches)
    span = environment.place(query.start, query.start)
    if query.operation == "UNION":
        result = _union(environment.build, branches, span)
        return result if query.keeps_duplicates else _distinct(environment.build, result, span)
    result = branches[0]
    for other in branches[1:]:
        kind = JoinKind.ANTI if query.operation == "EXCEPT" else JoinKind.SEMI
        result = _matched(kind, _distinct(environment.build, result, span), other, span)
    return result


def _of_one_type(build: Build, branches: list[Result]) -> list[Result]:
    """Columns of one position with one type: DuckDB's choice for UNION."""
    ids = [tuple(column.id for column in branch.columns) for branch in branches]
    types = [build.types(branch.relation, each) for branch, each in zip(branches, ids, strict=True)]
    if all(each == types[0] for each in types):
        return branches
    selects = (
        f"SELECT {', '.join(map(identifier, each))} FROM (\n{plain(branch.relation)}\n)"  # noqa: S608
        for branch, each in zip(branches, ids, strict=True)
    )
    wanted = [str(each) for each in build.connection.sql("\nUNION ALL\n".join(selects)).types]
    return [_cast(build, branch, own, wanted) for branch, own in zip(branches, types, strict=True)]


def _cast(build: Build, branch: Result, types: tuple[str, ...], wanted: list[str]) -> Result:
    computed: dict[str, tuple[str, Expression]] = {}
    columns = []
    for column, span, own, target in zip(branch.columns, branch.spans, types, wanted, strict=True):
        if own == target:
            columns.append(column)
            continue
        sql = f"CAST({identifier(column.id)} AS {target})"
        if sql not in computed:
            computed[sql] = (build.new_id(), Expression(sql, (column.id,), span, column.name))
        columns.append(Visible(column.name, computed[sql][0]))
    if not computed:
        return branch
    return replace(branch, relation=Extend(branch.relation, tuple(computed.values())), columns=tuple(columns))


def _union(build: Build, branches: list[Result], span: Span) -> Result:
    names = [column.name for column in branches[0].columns]
    sources = tuple(
        (build.new_id(name), tuple(branch.columns[position].id for branch in branches))
        for position, name in enumerate(names)
    )
    longest = max(len(branch.relation.identity) for branch in branches)
    identity = build.union_identity(longest)
    relation = Union(tuple(branch.relation for branch in branches), sources, identity, span)
    columns = tuple(Visible(name, new) for name, (new, _) in zip(names, sources, strict=True))
    return Result(relation, columns, branches[0].spans)


def _distinct(build: Build, result: Result, span: Span) -> Result:
    ids = {column.id: build.new_id(column.name) for column in result.columns}
    groups = tuple((new, Expression(identifier(old), (old,), span)) for old, new in ids.items())
    kept = without_dependents(tuple(ids), dependencies(result.relation))
    relation = Aggregate(result.relation, groups, (), tuple(ids[each] for each in kept), span)
    columns = tuple(Visible(each.name, ids[each.id]) for each in result.columns)
    return Result(relation, columns, result.spans)


def _matched(kind: JoinKind, left: Result, right: Result, span: Span) -> Result:
    """Rows with, or without, an equal row on the right; NULL is equal to NULL."""
    safe = (never_null(left.relation), never_null(right.relation))

    def side(relation: Relation, column: str, *, is_safe: bool) -> Expression:
        sql = identifier(column) if is_safe else f"[{identifier(column)}]"
        return Expression(sql, (column,), span)

    pairs = []
    for one, other in zip(left.columns, right.columns, strict=True):
        is_safe = one.id in safe[0] and other.id in safe[1]
        pairs.append(
            (side(left.relation, one.id, is_safe=is_safe), side(right.relation, other.id, is_safe=is_safe))
        )
    return replace(left, relation=Join(kind, left.relation, right.relation, tuple(pairs), None, span))
