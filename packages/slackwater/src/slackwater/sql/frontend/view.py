"""The text of a view as a tree of relations. The SQL is DuckDB's, from its functions to its rules for names.

In addition to DuckDB's rules, columns outside of aggregates may depend on GROUP BY as in PostgreSQL. Results
never depend on the order in which rows happen to arrive: where a function's result would, its rows are
ordered by their identity, and `any_value` is the smallest value.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import duckdb
from duckdb.sqltypes import DuckDBPyType

from slackwater.sql.catalog import Catalog
from slackwater.sql.duckdb_sql import identifier, unwritable_type
from slackwater.sql.errors import Mistakes, SqlTextError
from slackwater.sql.frontend.context import BindContext, BoundQuery, Environment, NamedColumn
from slackwater.sql.frontend.copies import ID, created, renamed
from slackwater.sql.frontend.names import derived_name, first_items
from slackwater.sql.frontend.row_sets import is_computed, row_columns
from slackwater.sql.frontend.select import bind_select, bind_subquery
from slackwater.sql.frontend.syntax import Query, Refused, SetOperation, parse
from slackwater.sql.frontend.text import Splice, ViewText, original_offset, spliced
from slackwater.sql.frontend.top_n import limited, with_top_n
from slackwater.sql.limits import DEFAULT_LIMITS, bounded, scratch_database
from slackwater.sql.logical import (
    MAX_STEPS,
    Aggregate,
    Expire,
    Expression,
    Extend,
    Filter,
    Join,
    JoinKind,
    Leaf,
    LogicalView,
    OneRow,
    Relation,
    Scan,
    Span,
    TooManyStepsError,
    TopN,
    Union,
    Unnest,
    Window,
    dependencies,
    limited_steps,
    never_null,
    without_dependents,
)
from slackwater.sql.rendering import AT, render_over_tables

_NO_VIEWS: Mapping[str, ViewText] = {}
_LESS = "Constant expressions are computed when the view is planned: simplify them"
_RECIPES = {
    "WITH RECURSIVE": "For a tree of known depth, write one branch of UNION ALL per level, each joining the "
    "table once more; for any depth, let the table have a column with the path from the root",
}
_SMALLER = (
    "Move parts of it into other pipelines, or name what is used often in a subquery instead of an alias"
)
_UNORDERED = "ORDER BY has no effect without LIMIT: the rows of a view have no order"
_WORD = re.compile(r"\w+|\S")


def read_view(text: ViewText, catalog: Catalog, views: Mapping[str, ViewText] = _NO_VIEWS) -> LogicalView:
    """Returns the tree of a view. FROM can name the tables of the catalog and other views of the pipeline.

    Raises:
        SqlTextError: The SQL is not supported. The error names the place, and what is supported.
    """
    name = text.name.lower()
    with scratch_database() as connection, planning(connection, text):
        connection.execute("CREATE SCHEMA __slackwater_views")
        lower = {other.lower(): each for other, each in views.items()}
        context = BindContext(connection, catalog, lower, _bind_query, _bind_other_view, bind_subquery)
        context.reserve(text)
        environment = Environment(context, text, name, None, {}, [], (name,))
        query = parse(connection, text)
        result = _bind_query(query, environment)
        _check_names(environment, query, result)
        # Only execute() reports places; only sql() knows nested types.
        rows = connection.sql(_evaluate_on_no_rows(environment, result.spans))
        names, types = tuple(rows.columns), tuple(rows.types)
        _check_types(environment, result, types)
        _check_meaning(environment, result, names, types)
    needed = frozenset(column.id for column in result.columns)
    relation, ids = _normalised(result.relation, needed, context.first_id)
    outputs = tuple((column.name, ids[column.id]) for column in result.columns)
    labels = {new: context.labels[old] for old, new in ids.items() if old in context.labels}
    is_sorted = not isinstance(query, Refused) and query.trailing.orders and not query.trailing.limits
    notes = (_UNORDERED,) if is_sorted else ()
    return LogicalView(text, relation, outputs, tuple(map(str, types)), labels, notes)


@contextmanager
def planning(connection: duckdb.DuckDBPyConnection, text: ViewText) -> Iterator[None]:
    """Limits the planning of a view, in which DuckDB computes constant expressions.

    Raises:
        SqlTextError: Planning takes too many resources, or the view is nested too deeply.
    """
    try:
        with bounded(connection, DEFAULT_LIMITS, text.name), limited_steps():
            yield
    except TooManyStepsError as error:
        steps = f"the view cannot be planned: it takes more than {MAX_STEPS:,} steps"
        raise text.error(0, 0, steps, _SMALLER) from error
    except (duckdb.Error, MemoryError) as error:
        problem = DEFAULT_LIMITS.problem(error)
        if problem is None:
            raise
        raise text.error(0, 0, f"the view cannot be planned: {problem}", _LESS) from error
    except RecursionError as error:
        start = text.deepest()
        problem = "the view is nested too deeply, or has too many queries, joins or conditions"
        raise text.error(start, start, problem, "Move parts of it into other views") from error


def _bind_other_view(name: str, reader: Environment, span: Span) -> BoundQuery:
    """Returns the tree of another view for the place that names it."""
    context = reader.context
    text = context.views[name]
    environment = Environment(context, text, name, span, {}, [], (*reader.reading, name))
    query = parse(context.connection, text)
    result = _bind_query(query, environment)
    _check_names(reader, query, result)
    statement = _evaluate_on_no_rows(environment, result.spans)
    view = f"__slackwater_views.{identifier(name)}"
    context.connection.execute(f"CREATE OR REPLACE VIEW {view} AS {statement}")
    return result


def _check_names(environment: Environment, query: Query, result: BoundQuery) -> None:
    text = environment.text
    written = text.text
    derived = {each.start: derived_name(text, each) for each in first_items(query)}
    seen: dict[str, Span] = {}
    for column, span in zip(result.columns, result.spans, strict=True):
        name = column.name or derived.get(span.start, "")
        if not name:
            raise environment.error(span, "a column of * has no name", "Name it with AS in the subquery")
        if name.lower() in seen:
            first, second = (written[each.start : each.end] for each in (seen[name.lower()], span))
            both = f": {first} and {second}" if first != second else ""
            problem = f"the view has two columns called {name}{both}"
            raise environment.error(span, problem, "Rename one of them with AS")
        seen[name.lower()] = span


def _check_types(environment: Environment, result: BoundQuery, types: tuple[DuckDBPyType, ...]) -> None:
    for span, output in zip(result.spans, types, strict=True):
        unwritable = unwritable_type(output)
        if unwritable:
            problem = f"a value of type {unwritable} cannot be written exactly as JSON"
            hint = "Convert it to a text, number, list or struct"
            raise environment.error(span, problem, hint)


def _check_meaning(
    environment: Environment, result: BoundQuery, names: tuple[str, ...], types: tuple[DuckDBPyType, ...]
) -> None:
    """Checks that the tree has the columns that DuckDB derives from the text itself."""
    own_names = tuple(column.name for column in result.columns)
    problem = ""
    try:
        own = environment.context.types(result.relation, tuple(column.id for column in result.columns))
    except duckdb.Error as error:
        problem = f"this query cannot be planned ({str(error).splitlines()[0]})"
    else:
        wanted = tuple(map(str, types))
        for name, other, one, two in zip(own_names, names, own, wanted, strict=True):
            if (name.lower(), one) != (other.lower(), two):
                problem = f"column {other} of type {two} was planned as {name} of type {one}"
    if problem:
        raise environment.text.error(0, 0, problem, "Please report this, and write the query in another way")


def _evaluate_on_no_rows(environment: Environment, outputs: Sequence[Span]) -> str:
    """Evaluates the text on no rows; returns the statement.

    DuckDB reports one mistake at a time. If it is in a column of the result, NULL takes its place, to find
    those of other columns.

    Raises:
        SqlTextError: It cannot be evaluated.
    """
    connection, query = environment.context.connection, environment.text.query
    splices, mistakes, left = list(environment.splices), Mistakes(), set(outputs)
    connection.execute("SET errors_as_json = true")
    wrong: Span | None = Span(0, 0)
    while wrong is not None:
        statement, wrong = spliced(query, 0, len(query), splices), None
        try:
            connection.execute(statement).fetchall()
        except duckdb.TransactionException:
            break  # an earlier mistake, which is known, has ended it
        except duckdb.Error as error:
            start, found = _text_error(environment.text, splices, statement, error)
            mistakes.add(found)
            wrong = next((each for each in left if each.start <= start < each.end), None)
        if wrong is not None:
            left.remove(wrong)
            splices = [each for each in splices if not wrong.start <= each.start < wrong.end]
            splices.append(Splice(wrong.start, wrong.end, "NULL"))
    mistakes.raise_any()
    connection.execute("SET errors_as_json = false")
    return statement


def _text_error(
    text: ViewText, splices: list[Splice], statement: str, error: duckdb.Error
) -> tuple[int, SqlTextError]:
    """Returns the offset of what DuckDB reports, and the error."""
    message = str(error)
    try:
        details = json.loads(message[message.index("{") :])
    except ValueError:
        details = {"exception_message": message}
    start = end = 0
    if "position" in details:
        byte = int(details["position"])
        offset = len(statement.encode()[:byte].decode("utf-8", "ignore"))
        start = original_offset(splices, offset)
        word = _WORD.match(text.text, start)
        end = word.end() if word else start
    limit = DEFAULT_LIMITS.problem(error)
    if limit is not None:
        return -1, text.error(start, end, f"the view cannot be planned: {limit}", _LESS)
    problem = details["exception_message"].splitlines()[0].rstrip(".!")
    return start, text.error(start, end, problem, "Views are written in DuckDB's SQL")


def _bind_query(query: Query, environment: Environment) -> BoundQuery:
    """Returns the tree of a query that is not a subquery of an expression."""
    if isinstance(query, Refused):
        problem = f"{query.what} is not supported"
        hint = _RECIPES.get(query.what, "Write SELECT … FROM …")
        raise environment.text.error(query.start, query.start, problem, hint)
    if isinstance(query, SetOperation):
        result = limited(environment, query, _set_operation(query, environment))
    else:
        result = bind_select(environment, query, None).computed(environment.context)
    if query.trailing.orders:
        environment.context.sorted.update(column.id for column in result.columns)
    return result


def _set_operation(query: SetOperation, environment: Environment) -> BoundQuery:
    environment.refuse_clauses(query)
    environment = environment.with_commons(query.with_)
    if query.operation not in {"UNION", "EXCEPT", "INTERSECT"}:
        what = query.operation.replace("_", " ") + (" ALL" if query.keeps_duplicates else "")
        hint = "Supported are UNION, EXCEPT and INTERSECT, with and without ALL"
        raise environment.text.error(query.start, query.start, f"{what} is not supported", hint)
    branches, mistakes = [], Mistakes()
    for each in query.branches:
        with mistakes.part():
            branches.append(_bind_query(each, environment))
    mistakes.raise_any()
    for branch, written in zip(branches, query.branches, strict=True):
        if len(branch.columns) != len(branches[0].columns):
            problem = (
                f"this SELECT has {len(branch.columns)} columns, but the first one has "
                f"{len(branches[0].columns)}"
            )
            raise environment.text.error(
                written.start, written.start, problem, "Columns are matched by position"
            )
    computed = [each for each in branches if is_computed(each.relation)]
    own = {column for each in computed for column in each.relation.columns}
    named = {column.id for each in computed for column in each.columns}
    if not named <= own or any(row_columns(each.relation) for each in computed):
        problem = f"{query.operation} of columns of the row around it is not supported"
        raise environment.text.error(query.start, query.start, problem, "Write LATERAL (VALUES (…), (…))")
    branches = _of_one_type(environment.context, branches)
    span = environment.place(query.start, query.start)
    if query.operation == "UNION":
        result = _union(environment.context, branches, span)
        return result if query.keeps_duplicates else _distinct(environment.context, result, span)
    result = branches[0]
    for other in branches[1:]:
        kind = JoinKind.ANTI if query.operation == "EXCEPT" else JoinKind.SEMI
        if query.keeps_duplicates:
            sides = (_numbered(environment.context, each, span) for each in (result, other))
            numbered = _matched(kind, next(sides), next(sides), span)
            result = replace(numbered, columns=result.columns, spans=result.spans)
        else:
            result = _matched(kind, _distinct(environment.context, result, span), other, span)
    return result


def _numbered(context: BindContext, result: BoundQuery, span: Span) -> BoundQuery:
    """Returns the rows with one more column, which numbers equal rows."""
    columns = tuple(dict.fromkeys(each.id for each in result.columns))
    partition = tuple(Expression(identifier(each), (each,), span) for each in columns)
    order = result.relation.identity
    by = f" ORDER BY {', '.join(map(identifier, order))}" if order else ""
    sql = f"row_number() OVER (PARTITION BY {', '.join((AT, *map(identifier, columns)))}{by})"
    number = context.new_id()
    call = Expression(sql, tuple(dict.fromkeys((*columns, *order))), span, "ALL")
    relation = Window(result.relation, partition, ((number, call),), span)
    return BoundQuery(relation, (*result.columns, NamedColumn("", number)), (*result.spans, span))


def _of_one_type(context: BindContext, branches: list[BoundQuery]) -> list[BoundQuery]:
    """Casts columns at the same position to one type, which DuckDB chooses as for UNION."""
    ids = [tuple(column.id for column in branch.columns) for branch in branches]
    types = [context.types(branch.relation, each) for branch, each in zip(branches, ids, strict=True)]
    if all(each == types[0] for each in types):
        return branches
    selects = (
        f"SELECT {', '.join(map(identifier, each))} FROM (\n{render_over_tables(branch.relation)}\n)"  # noqa: S608
        for branch, each in zip(branches, ids, strict=True)
    )
    wanted = [str(each) for each in context.connection.sql("\nUNION ALL\n".join(selects)).types]
    return [_cast(context, branch, own, wanted) for branch, own in zip(branches, types, strict=True)]


def _cast(context: BindContext, branch: BoundQuery, types: tuple[str, ...], wanted: list[str]) -> BoundQuery:
    computed: dict[str, tuple[str, Expression]] = {}
    columns = []
    for column, span, own, target in zip(branch.columns, branch.spans, types, wanted, strict=True):
        if own == target:
            columns.append(column)
            continue
        sql = f"CAST({identifier(column.id)} AS {target})"
        if sql not in computed:
            computed[sql] = (context.new_id(), Expression(sql, (column.id,), span, column.name))
        columns.append(NamedColumn(column.name, computed[sql][0]))
    if not computed:
        return branch
    return replace(branch, relation=Extend(branch.relation, tuple(computed.values())), columns=tuple(columns))


def _union(context: BindContext, branches: list[BoundQuery], span: Span) -> BoundQuery:
    names = [column.name for column in branches[0].columns]
    sources = tuple(
        (context.new_id(name), tuple(branch.columns[position].id for branch in branches))
        for position, name in enumerate(names)
    )
    longest = max(len(branch.relation.identity) for branch in branches)
    identity = context.union_identity(longest)
    relation = Union(tuple(branch.relation for branch in branches), sources, identity, span)
    columns = tuple(NamedColumn(name, new) for name, (new, _) in zip(names, sources, strict=True))
    return BoundQuery(relation, columns, branches[0].spans)


def _distinct(context: BindContext, result: BoundQuery, span: Span) -> BoundQuery:
    ids = {column.id: context.new_id(column.name) for column in result.columns}
    groups = tuple((new, Expression(identifier(old), (old,), span)) for old, new in ids.items())
    kept = without_dependents(tuple(ids), dependencies(result.relation))
    relation = Aggregate(result.relation, groups, (), tuple(ids[each] for each in kept), span)
    columns = tuple(NamedColumn(each.name, ids[each.id]) for each in result.columns)
    return BoundQuery(relation, columns, result.spans)


def _matched(kind: JoinKind, left: BoundQuery, right: BoundQuery, span: Span) -> BoundQuery:
    """Returns the rows with, or without, an equal row on the right; NULL equals NULL."""
    safe = (never_null(left.relation), never_null(right.relation))
    pairs = []
    for one, other in zip(left.columns, right.columns, strict=True):
        form = "{}" if one.id in safe[0] and other.id in safe[1] else "[{}]"
        sides = (Expression(form.format(identifier(each.id)), (each.id,), span) for each in (one, other))
        pairs.append((next(sides), next(sides)))
    return replace(left, relation=Join(kind, left.relation, right.relation, tuple(pairs), None, span))


def _normalised(relation: Relation, needed: frozenset[str], first_id: int) -> tuple[Relation, dict[str, str]]:
    """Returns the needed part of a tree, and the new id of each of its columns by the old one.

    Ids are numbered in the order in which the tree creates its columns, so equal views have equal trees.
    """
    pruned = with_top_n(_pruned(relation, needed))
    # Queries within expressions create ids, too, which must not be those of other columns.
    within = (each for each in ID.findall(repr(pruned)) if int(each[1:]) >= first_id)
    columns = dict.fromkeys((*created(pruned), *within))
    ids = {old: f"c{first_id + number}" for number, old in enumerate(columns)}
    return renamed(pruned, ids), ids


def _pruned(relation: Relation, needed: frozenset[str]) -> Relation:  # noqa: C901 - a case per relation
    """Returns the same rows with these columns, what identifies rows, and nothing that is unused."""
    match relation:
        case Scan():
            kept = needed | {relation.ids[name] for name in relation.table.primary_key}
            return replace(relation, ids={name: each for name, each in relation.ids.items() if each in kept})
        case Extend():
            computed = tuple(each for each in relation.computed if each[0] in needed)
            child = _pruned(relation.child, needed | _columns(each for _, each in computed))
            return Extend(child, computed) if computed else child
        case Filter() | Unnest():
            of_lists = () if isinstance(relation, Filter) else (each for _, each in relation.lists)
            read = (relation.condition,) if isinstance(relation, Filter) else of_lists
            return replace(relation, child=_pruned(relation.child, needed | _columns(read)))
        case Expire():
            return replace(relation, child=_pruned(relation.child, needed | {relation.moment}))
        case Join():
            return _join(relation, needed)
        case Aggregate():
            return _aggregate(relation, needed)
        case Union():
            sources = tuple(each for each in relation.sources if each[0] in needed)
            branches = (
                _pruned(child, frozenset(ids[number] for _, ids in sources))
                for number, child in enumerate(relation.children)
            )
            return replace(relation, children=tuple(branches), sources=sources)
        case TopN():
            return replace(relation, child=_pruned(relation.child, needed | _columns(relation.read)))
        case Window():
            return _window(relation, needed)
        case Leaf() | OneRow():
            return relation


def _join(join: Join, needed: frozenset[str]) -> Relation:
    if join.kind is JoinKind.LEFT and not needed & set(join.right.columns):
        is_unused = join.identity == join.left.identity  # at most one row on the right
        if is_unused:
            return _pruned(join.left, needed)
    used = needed | _columns(side for pair in join.equal for side in pair)
    used |= set(join.residual.columns) if join.residual is not None else set()
    return replace(join, left=_pruned(join.left, used), right=_pruned(join.right, used))


def _aggregate(relation: Aggregate, needed: frozenset[str]) -> Relation:
    kept = needed | set(relation.identity)
    groups = tuple(each for each in relation.groups if each[0] in kept)
    calls = tuple(each for each in relation.calls if each[0] in needed)
    if not groups and not calls:
        calls = relation.calls[:1]
    used = _columns(each for _, each in (*groups, *calls))
    return replace(relation, child=_pruned(relation.child, used), groups=groups, calls=calls)


def _window(relation: Window, needed: frozenset[str]) -> Relation:
    calls = tuple(each for each in relation.calls if each[0] in needed)
    if not calls:
        return _pruned(relation.child, needed)
    used = _columns(relation.partition) | _columns(each for _, each in calls)
    return replace(relation, child=_pruned(relation.child, needed | used), calls=calls)


def _columns(parts: Iterable[object]) -> frozenset[str]:
    return frozenset(column for part in parts for column in getattr(part, "columns", ()))
