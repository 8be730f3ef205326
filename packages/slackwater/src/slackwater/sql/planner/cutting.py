"""Divides a view's tree into stages: what can be computed over the rows of one key stays together."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import PurePath

import duckdb
from duckdb.sqltypes import DuckDBPyType

from slackwater.sql.catalog import Catalog, carried
from slackwater.sql.duckdb_sql import (
    Field,
    has_text,
    identifier,
    literal,
    may_be_json_null,
    may_have_one_text,
    unwritable_type,
    with_one_text,
)
from slackwater.sql.errors import Mistakes, SqlTextError
from slackwater.sql.frontend import ViewText, planning, read_view
from slackwater.sql.limits import open_connection
from slackwater.sql.logical import (
    Aggregate,
    AggregateCall,
    Expire,
    Expression,
    Extend,
    Filter,
    Join,
    Leaf,
    LogicalView,
    OneRow,
    Relation,
    Scan,
    TopN,
    Union,
    Unnest,
    Window,
    column_expression,
    never_null,
)
from slackwater.sql.meaning import Dialect, in_duckdb
from slackwater.sql.plan import (
    DocumentsOutput,
    EnginePlan,
    OutputColumn,
    PartialsOutput,
    PublishedView,
    RowsOutput,
    RowsPart,
    fingerprint,
)
from slackwater.sql.planner.accumulating import UNORDERED, Accumulation, accumulation, top_accumulation
from slackwater.sql.planner.fragments import (
    Assembly,
    Fragment,
    KeptGroups,
    StageList,
    all_columns_read,
    assemble,
    closable,
    columns_read,
    has_global_aggregate,
    row_by_row,
    split_by_identity,
)
from slackwater.sql.planner.partitioning import (
    Key,
    Leaves,
    Partitioning,
    StageRows,
    keys_of_group,
    keys_of_join,
)
from slackwater.sql.planner.sharing import shared, with_identities, with_shared_rows

_NOTHING: Mapping[str, str] = {}
_CAST_HINT = "Write CAST(… AS …) on one side, so that both sides have the same type"

Named = tuple[str, Expression]
"""An id and its expression."""


class Cutter:
    """Divides the views of a pipeline. Stages are numbered in the order in which they are finished."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, accumulates: bool = True) -> None:
        self._accumulates = accumulates
        self._connection = connection
        self.leaves = Leaves()
        self._stages = StageList(self.leaves.origins)
        self._next_id = 0
        self._views: list[LogicalView] = []
        self._published: list[tuple[tuple[str, ...], tuple[OutputColumn, ...]]] = []

    def plan(self) -> EnginePlan:
        """Returns the stages of all views, with what the sink has to know about the views."""
        stages = self._stages.stages
        views = []
        for number, (view, (key, outputs)) in enumerate(zip(self._views, self._published, strict=True)):
            needed = self._stages.needed_by(number)
            views.append(
                PublishedView(
                    name=view.text.name,
                    sql=view.text.text,
                    key=key,
                    outputs=outputs,
                    fingerprint=fingerprint(stages[each - 1] for each in needed),
                    stages=needed,
                    notes=view.notes,
                )
            )
        return EnginePlan(stages, tuple(views))

    def cut(self, view: LogicalView, partition_by: str = "") -> None:
        """Creates the stages of a view; views are numbered in the order of the calls.

        The column ``partition_by`` becomes part of the record key.

        Raises:
            SqlTextError: Its documents cannot be written, or keys of different types are compared.
        """
        self._views.append(view)
        self._stages.labels = dict(view.labels)
        wanted = [name for _, name in view.outputs]
        fragment = self._fragment(view.relation, frozenset(wanted) | set(view.relation.identity))
        added = [name for label, name in view.outputs if label == partition_by]
        if added := [name for name in added[:1] if name not in fragment.relation.identity]:
            fragment = self._on_rows(fragment, frozenset(wanted))
        self._published.append(self._publish(fragment, view, added))

    def _fragment(self, relation: Relation, needed: frozenset[str]) -> Fragment:
        """Returns what computes the needed ids of a relation; finishes stages below it where necessary."""
        match relation:
            case Scan() | Leaf():
                return Fragment(relation if isinstance(relation, Leaf) else self._leaf(relation))
            case OneRow():
                # It exists from the first commit on, like the total of no rows.
                kept = KeptGroups(self._stages.new(), (), Accumulation((), ()), True, None, False)
                return Fragment(self.leaves.add(None, (), ()), accumulated=kept)
            case Filter() | Extend() | Unnest():
                return self._row_by_row(relation, needed)
            case Expire():
                return self._expiring(relation, needed | {relation.moment})
            case Join():
                return self._join(relation, needed)
            case Aggregate():
                return self._aggregate(relation, needed)
            case Union():
                return self._union(relation, needed)
            case Window():
                return self._window(relation, needed)
            case TopN():
                return self._top_n(self._sharded(relation), needed)

    def _leaf(self, scan: Scan) -> Leaf:
        return self.leaves.add(scan, scan.columns, scan.identity)

    def _row_by_row(self, relation: Filter | Extend | Unnest, needed: frozenset[str]) -> Fragment:
        relation, read = row_by_row(relation, needed)
        below = self._fragment(relation.child, needed | read)
        return replace(below, relation=replace(relation, child=below.relation))

    def _join(self, join: Join, needed: frozenset[str]) -> Fragment:
        read = needed | columns_read(side for pair in join.equal for side in pair)
        read |= frozenset(join.residual.columns if join.residual else ())
        read |= frozenset((*join.left.identity, *join.right.identity))
        left = self._on_rows(self._fragment(join.left, read), read)
        right = self._on_rows(self._fragment(join.right, read), read)
        left, left_equal = self._with_columns(left, [pair[0] for pair in join.equal])
        right, right_equal = self._with_columns(right, [pair[1] for pair in join.equal])
        equal = tuple(zip(left_equal, right_equal, strict=True))
        read |= columns_read((*left_equal, *right_equal))

        def joined(left: Relation, right: Relation) -> Join:
            return Join(join.kind, left, right, equal, join.residual, join.span)

        for closes_left, closes_right in product((False, True), repeat=2):
            tried = joined(closable(left, closes=closes_left), closable(right, closes=closes_right))
            if any(self.leaves.split_join(tried, keys) for keys in keys_of_join(tried)):
                break
        left = self._closed(left, read) if closes_left else left
        right = self._closed(right, read) if closes_right else right
        whole = joined(left.relation, right.relation)
        return Fragment(whole, self._split_of_join(whole))

    def _split_of_join(self, join: Join) -> Partitioning:
        found = [self.leaves.split_join(join, keys) for keys in keys_of_join(join)]
        splits = [split for split in found if split]
        for split in splits:
            if self.leaves.has_equal_types(split):
                return split
        if not splits:
            msg = "rows that are compared cannot be brought together"
            raise AssertionError(msg)
        left, right = self.leaves.key_types(splits[-1])[:2]
        problem = f"the join compares values of different types: {' and '.join(sorted({*left, *right}))}"
        raise self._error(join.span.start, join.span.end, problem, _CAST_HINT)

    def _aggregate(self, aggregate: Aggregate, needed: frozenset[str]) -> Fragment:
        calls = tuple((name, call) for name, call in aggregate.calls if name in needed)
        self._stages.labels |= {name: call.text for name, call in calls}
        read = columns_read(each for _, each in aggregate.groups) | {
            c for _, call in calls for c in call.columns
        }
        below = self._fragment(aggregate.child, read | set(aggregate.child.identity))
        below, columns = self._with_columns(below, [each for _, each in aggregate.groups])
        groups = tuple((name, each) for (name, _), each in zip(aggregate.groups, columns, strict=True))
        whole = Aggregate(below.relation, groups, calls, aggregate.identity, aggregate.span)
        kept = self._accumulated(whole, below) if self._accumulates else None
        return kept or self._recomputed(whole, below)

    def _recomputed(self, aggregate: Aggregate, below: Fragment) -> Fragment:
        """Returns the aggregate computed from all rows of its groups."""
        keys = [aggregate.identity, *((name,) for name in aggregate.identity)]
        if below.accumulated is None:
            for key in keys:
                split = self.leaves.split(aggregate, key) if key or not aggregate.identity else None
                if split is not None:
                    return Fragment(aggregate, split)
        below = self._closed(below, all_columns_read(aggregate))
        whole = replace(aggregate, child=below.relation)
        return Fragment(whole, self.leaves.split(whole, whole.identity))

    def _accumulated(self, aggregate: Aggregate, below: Fragment) -> Fragment | None:
        """Returns the aggregate kept by accumulators; None if it needs the rows of its groups.

        Columns that depend on the groups are kept as the largest of their values, which are all equal.
        """
        groups = tuple((name, each) for name, each in aggregate.groups if name in aggregate.identity)
        dependent = [(name, each) for name, each in aggregate.groups if name not in aggregate.identity]
        packed, unpacked = self._packed(below, dependent)
        calls = (*aggregate.calls, *((name, _largest(each)) for name, each in packed))
        whole = Aggregate(below.relation, groups, calls, aggregate.identity, aggregate.span)
        assembly = self._assembled(below, all_columns_read(whole))
        found = accumulation(whole, lambda each: self._type_names(assembly, [each.sql])[0])
        if found is None:
            return None
        kept = self._kept(below, all_columns_read(whole), groups, found, (whole.columns, aggregate.identity))
        return replace(kept, relation=Extend(kept.relation, unpacked)) if unpacked else kept

    def _kept(
        self,
        below: Fragment,
        read: frozenset[str],
        groups: tuple[Named, ...],
        found: Accumulation,
        shown: tuple[tuple[str, ...], tuple[str, ...]],
    ) -> Fragment:
        """Returns the groups of a fragment, kept by accumulators, with these columns and this identity."""
        if has_global_aggregate(below.relation):
            # Groups receive only differences, so they would never learn of the row that exists from the
            # beginning.
            below = self._closed(below, read)
        assembly = self._assembled(below, columns_read(each for _, each in groups))
        types = self._type_names(assembly, [each.sql for _, each in groups])
        sources = tuple((str(each.column), of) for (_, each), of in zip(groups, types, strict=True))
        key, split = self._split_for_groups(below, groups, is_top=found.is_top)
        if split is not None:
            below = replace(below, split=split)
        stage, rows = self._feed(below, sources, found, is_inline=split is not None)
        kept = tuple((name, of) for (name, _), of in zip(groups, types, strict=True))
        has_stage_key = key == tuple(each.column for _, each in groups)
        accumulated = KeptGroups(stage, kept, found, not (groups or found.is_top), rows, has_stage_key)
        return Fragment(self.leaves.add(None, *shown), accumulated=accumulated)

    def _packed(self, below: Fragment, columns: list[Named]) -> tuple[list[Named], tuple[Named, ...]]:
        """Packs columns into a struct, which is cheaper to keep, and returns how to extract them."""
        if len(columns) < 2:
            return columns, ()
        assembly = self._assembled(below, columns_read(each for _, each in columns))
        types = self._type_names(assembly, [each.sql for _, each in columns])
        of_struct, (_, first) = self._new_id(), columns[0]
        fields, unpacked = [], []
        for (name, each), of_type in zip(columns, types, strict=True):
            form = "VARCHAR" if of_type == "JSON" else carried(of_type).text_form
            fields.append(f"{literal(name)}: CAST({each.sql} AS {form})")
            taken = f"CAST(struct_extract({identifier(of_struct)}, {literal(name)}) AS {of_type})"
            unpacked.append((name, replace(each, sql=taken, columns=(of_struct,))))
        text = ", ".join(each.text for _, each in columns)
        read = tuple(sorted(columns_read(each for _, each in columns)))
        struct = Expression(f"{{{', '.join(fields)}}}", read, first.span, text)
        return [(of_struct, struct)], tuple(unpacked)

    def _split_for_groups(
        self, below: Fragment, groups: tuple[Named, ...], *, is_top: bool
    ) -> tuple[Key, Partitioning | None]:
        """Splits a join's inputs so that its rows need not be sent to their groups, if that is possible.

        Rows of a single table stay with their primary key: their group may contain half of all rows, and sums
        of it can be added up in parallel, while a top must receive each of its rows. Also returns the columns
        of the groups by which the inputs are split.
        """
        if below.accumulated is not None:
            return (), None
        for key in keys_of_group(tuple(each for _, each in groups)):
            split = self.leaves.split(below.relation, key) if key else None
            by_itself = split is not None and set(split[0].key) == set(split[0].leaf.identity)
            if split is not None and (is_top or len(split) > 1 or by_itself):
                return key, split
        return (), None

    def _feed(
        self, below: Fragment, groups: tuple[tuple[str, str], ...], found: Accumulation, *, is_inline: bool
    ) -> tuple[int, RowsPart | None]:
        """Creates what adds to the groups; returns the stage that keeps them, and its rows part."""
        read = [*(name for name, _ in groups), *(column for each in found.kept for column in each.columns)]
        assembly = self._assembled(below, read)
        statement = assembly.partials_statement(groups, found.kept)
        of_groups = assembly.partials_statement(groups, ())
        if is_inline:
            stage = self._stages.new()
            output = PartialsOutput(len(groups), stage, of_groups)
            return stage, self._stages.rows_part(stage, assembly, statement, output)
        feeding = self._stages.stage_of(below)
        stage = self._stages.new()
        self._stages.finish(feeding, assembly, statement, PartialsOutput(len(groups), stage, of_groups))
        return stage, None

    def _union(self, union: Union, needed: frozenset[str]) -> Fragment:
        branches = []
        for number, child in enumerate(union.children):
            read = {sources[number] for name, sources in union.sources if name in needed}
            wanted = frozenset(read | set(child.identity))
            branch = self._on_rows(self._fragment(child, wanted), wanted)
            is_global = any(not part.key for part in branch.final_split)
            # A group without columns would exist once more for each key of the other branches.
            branches.append(self._closed(branch, wanted) if is_global else branch)
        whole = replace(union, children=tuple(branch.relation for branch in branches))
        return Fragment(whole, tuple(part for branch in branches for part in branch.final_split))

    def _window(self, window: Window, needed: frozenset[str]) -> Fragment:
        calls = tuple((name, call) for name, call in window.calls if name in needed)
        self._stages.labels |= {name: call.text for name, call in calls}
        read = needed | columns_read((*window.partition, *(call for _, call in calls)))
        wanted = frozenset(name for name in read if name in window.child.columns)
        below = self._on_rows(self._fragment(window.child, wanted | set(window.child.identity)), wanted)
        below, partition = self._with_columns(below, list(window.partition))
        return self._by_partition(Window(below.relation, partition, calls, window.span), below, wanted)

    def _by_partition(self, whole: Window | TopN, below: Fragment, wanted: frozenset[str]) -> Fragment:
        """Returns what is computed from all rows of its partitions."""
        for key in keys_of_group(whole.partition):
            split = self.leaves.split(whole, key)
            if split is not None:
                return Fragment(whole, split)
        below = self._closed(below, wanted | columns_read(whole.partition))
        whole = replace(whole, child=below.relation)
        return Fragment(whole, self.leaves.split(whole, next(keys_of_group(whole.partition))))

    def _sharded(self, top: TopN) -> TopN:
        """Returns the first of all rows as the first of those of its shards, which are found in parallel."""
        if top.partition or not self._accumulates or not top.child.identity:
            return top
        row = ", ".join(map(identifier, top.child.identity))
        sql = f"substr(md5(CAST(row({row}) AS VARCHAR)), 1, 1)"
        shard = Expression(sql, top.child.identity, top.span, "shard")
        ranks = replace(top.ranks, first=1)
        first = TopN(top.child, (shard,), top.order, ranks, self._new_id(), top.child.identity, top.span)
        return replace(top, child=first)

    def _top_n(self, top: TopN, needed: frozenset[str]) -> Fragment:
        read = needed | columns_read(top.read) | set(top.identity)
        wanted = frozenset(name for name in read if name in top.child.columns)
        below = self._fragment(top.child, wanted | set(top.child.identity))
        below, partition = self._with_columns(below, list(top.partition))
        whole = replace(top, child=below.relation, partition=partition)
        kept = self._kept_top(whole, below, needed) if self._accumulates else None
        if kept is not None:
            return kept
        below = self._on_rows(below, wanted | columns_read(partition))
        return self._by_partition(replace(whole, child=below.relation), below, wanted)

    def _kept_top(self, top: TopN, below: Fragment, needed: frozenset[str]) -> Fragment | None:
        """Returns the first of rows that are kept in order; None if their values lose their order or text."""
        groups = tuple((str(each.column), each) for each in top.partition)
        shown = (needed | set(top.identity)) - {name for name, _ in groups}
        names = [name for name in below.relation.columns if name in shown]
        read = frozenset(names) | columns_read(top.read) | set(top.child.identity)
        assembly = self._assembled(below, read)
        types = assembly.types(self._connection, list(map(identifier, names)))
        order = self._type_names(assembly, [value.sql for value, _ in top.order])
        if not all(map(has_text, types)) or any(map(UNORDERED.search, order)):
            return None
        columns = list(zip(names, map(str, types), strict=True))
        found = top_accumulation(top, columns, is_ranked=top.rank in needed)
        of_rows = tuple(dict.fromkeys((*(name for name, _ in groups), *names, top.rank)))
        return self._kept(below, read, groups, found, (of_rows, top.identity))

    def _publish(
        self, fragment: Fragment, view: LogicalView, added: list[str]
    ) -> tuple[tuple[str, ...], tuple[OutputColumn, ...]]:
        """Finishes the stage of a view's documents; returns the columns of record key and document."""
        relation = fragment.relation
        one_row_per_key = False
        if fragment.accumulated is None and relation.identity:
            split = self.leaves.split(relation, relation.identity) or split_by_identity(fragment)
            one_row_per_key = split is not None and not added
            fragment = fragment if split is None else replace(fragment, split=split)
        wanted = (*(name for _, name in view.outputs), *relation.identity)
        assembly = self._assembled(fragment, wanted)
        key, fields = self._documents(view, assembly, added)
        statement = assembly.documents_statement(key, fields)
        latest = assembly.documents_statement(key, fields, is_latest=True) if one_row_per_key else None
        stage = self._stages.stage_of(fragment)
        self._stages.finish(stage, assembly, statement, DocumentsOutput(len(self._published)), latest)
        outputs = tuple(OutputColumn(field.name, str(field.type)) for field in fields)
        return tuple(field.name for field in key), outputs

    def _documents(
        self, view: LogicalView, assembly: Assembly, added: list[str]
    ) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
        """Returns the fields of the record key and of the document."""
        selected = {name: label for label, name in reversed(view.outputs)}
        taken: set[str] = set()
        key = []
        for name in (*assembly.relation.identity, *added):
            label = selected.get(name) or view.labels.get(name, name)
            while label in taken:
                label += "_"
            taken.add(label)
            key.append((label, name))
        columns = [*key, *view.outputs]
        types = assembly.types(self._connection, [identifier(name) for _, name in columns])
        fields = tuple(
            Field(label, identifier(name), of_type)
            for (label, name), of_type in zip(columns, types, strict=True)
        )
        for field in fields:
            unwritable = unwritable_type(field.type)
            if unwritable:
                problem = f"column {field.name} of type {unwritable} cannot be written exactly as JSON"
                raise self._error(0, 0, problem, "Convert it to a text, number, list or struct")
        self._refuse_json_null(view, fields[: len(key)])
        documents = fields[len(key) :]
        for field, bound in zip(documents, view.types, strict=True):
            if str(field.type) != bound:
                problem = f"column {field.name} was planned with type {field.type}, but has type {bound}"
                raise self._error(0, 0, problem, f"Please report this, and write CAST(… AS {bound})")
        return fields[: len(key)], documents

    def _refuse_json_null(self, view: LogicalView, key: tuple[Field, ...]) -> None:
        safe = {identifier(name) for name in never_null(view.relation)}
        for field in key:
            is_never_null = str(field.type) == "JSON" and field.expression in safe
            if may_be_json_null(field.type) and not is_never_null:
                of_type = f"column {field.name} of type {field.type}"
                problem = f"{of_type} is part of the record key, where JSON null and NULL would be the same"
                raise self._error(0, 0, problem, "Use CAST(… AS VARCHAR) instead of the JSON value")

    def _closed(self, fragment: Fragment, needed: frozenset[str]) -> Fragment:
        """Returns the fragment as rows of its own stage."""
        relation = fragment.relation
        origin = self.leaves.origins.get(relation.number) if isinstance(relation, Leaf) else None
        if isinstance(origin, StageRows) and not origin.moment:
            return fragment
        named = (name for name in relation.columns if name in needed)
        wire = tuple(dict.fromkeys((*relation.identity, *named)))
        assembly = self._assembled(fragment, wire)
        types = self._carried_types(assembly, wire)
        statement = assembly.rows_statement(wire, types)
        stage = self._stages.stage_of(fragment)
        output = RowsOutput(len(relation.identity), ())
        self._stages.finish(stage, assembly, statement, output)
        return Fragment(self.leaves.add(StageRows(stage, wire, types), wire, relation.identity))

    def _expiring(self, expire: Expire, needed: frozenset[str]) -> Fragment:
        """Returns rows that end at their moment, as rows of a stage that is finished."""
        below = self._on_rows(self._fragment(expire.child, needed), needed)
        leaf = self._closed(below, needed).relation
        assert isinstance(leaf, Leaf)  # noqa: S101 - it is closed
        origin = self.leaves.origins[leaf.number]
        assert isinstance(origin, StageRows)  # noqa: S101 - it is closed
        origin = replace(origin, moment=expire.moment)
        return Fragment(self.leaves.add(origin, leaf.columns, leaf.identity))

    def _on_rows(self, fragment: Fragment, needed: frozenset[str]) -> Fragment:
        """Returns the fragment without an accumulate part below it, which has groups, but no rows to join."""
        return fragment if fragment.accumulated is None else self._closed(fragment, needed)

    def _with_columns(
        self, fragment: Fragment, expressions: list[Expression]
    ) -> tuple[Fragment, tuple[Expression, ...]]:
        """Returns the fragment with a column per expression; equal values have equal texts."""
        assembly = self._assembled(fragment, columns_read(expressions))
        types = assembly.types(self._connection, [each.sql for each in expressions])
        named = {each.sql: self._comparable(each, of) for each, of in zip(expressions, types, strict=True)}
        computed = {sql: self._new_id() for sql, each in named.items() if each.column is None}
        self._stages.labels |= {name: named[sql].text for sql, name in computed.items()}
        if not computed:
            return fragment, tuple(expressions)
        extended = Extend(fragment.relation, tuple((name, named[sql]) for sql, name in computed.items()))
        columns = tuple(
            column_expression(computed[e.sql], e) if e.sql in computed else e for e in expressions
        )
        return replace(fragment, relation=extended), columns

    def _comparable(self, each: Expression, of_type: DuckDBPyType) -> Expression:
        """Returns the expression such that each value has one text."""
        if not may_have_one_text(of_type):
            problem = f"joining or grouping by a value of type {of_type} is not supported"
            hint = "Use a part of the value, or cast it to VARCHAR"
            raise self._error(each.span.start, each.span.end, problem, hint)
        sql = with_one_text(each.sql, of_type)
        return each if sql == each.sql else replace(each, sql=sql)

    def _new_id(self) -> str:
        self._next_id += 1
        return f"k{self._next_id}"

    def _assembled(self, fragment: Fragment, wanted: Iterable[str]) -> Assembly:
        return assemble(fragment, tuple(dict.fromkeys(wanted)), self.leaves.origins)

    def _type_names(self, assembly: Assembly, expressions: Iterable[str]) -> tuple[str, ...]:
        """Returns DuckDB's names of the types of SQL expressions."""
        return tuple(map(str, assembly.types(self._connection, list(expressions))))

    def _carried_types(self, assembly: Assembly, names: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the types of columns that one stage passes on to others."""
        types = assembly.types(self._connection, [identifier(name) for name in names])
        for of_type in types:
            if not has_text(of_type):
                problem = f"a value of type {of_type} cannot be passed on to further joins or aggregates"
                raise self._error(0, 0, problem, "Convert it to a text, number, list or struct before")
        return tuple(map(str, types))

    def _error(self, start: int, end: int, problem: str, hint: str) -> SqlTextError:
        return self._views[-1].text.error(start, end, problem, hint)


def _largest(each: Expression) -> AggregateCall:
    return AggregateCall(f"max({each.sql})", "max", (each,), False, None, each.columns, each.span, each.text)


def compile_pipeline(
    views: Sequence[tuple[str, str]],
    catalog: Catalog,
    *,
    published: Collection[str] | None = None,
    accumulates: bool = True,
    partition_by: Mapping[str, str] = _NOTHING,
    dialect: Dialect = Dialect.DUCKDB,
) -> EnginePlan:
    """Returns the stages of a pipeline's views.

    Args:
        views: Path and text of each view; the stem of the path is the view's name. Views may read each other.
        catalog: The declared tables.
        published: Names of the views that are written to an output, in the order of `views`; None for all.
        accumulates: Whether aggregates may be kept without the rows of their groups. If not, a view over one
            key is a single stage with all rows of a key, as scope `aggregate` requires.
        partition_by: By view, a column that becomes part of its record key.
        dialect: Whose meaning expressions have.

    Raises:
        SqlTextError: A view contains something that is not supported; names the place and what is supported.
    """
    texts = [text for _, text in views]
    plan = compile_separately(
        views,
        catalog,
        published=published,
        accumulates=accumulates,
        partition_by=partition_by,
        dialect=dialect,
    )
    return with_shared_rows(with_identities(shared(plan, texts), texts), catalog)


def compile_separately(
    views: Sequence[tuple[str, str]],
    catalog: Catalog,
    *,
    published: Collection[str] | None = None,
    accumulates: bool = True,
    partition_by: Mapping[str, str] = _NOTHING,
    dialect: Dialect = Dialect.DUCKDB,
) -> EnginePlan:
    """Returns the stages that the views would have if they shared none."""
    texts = {PurePath(path).stem: ViewText(path, sql) for path, sql in views}
    mistakes = Mistakes()
    with open_connection() as connection:
        if dialect is Dialect.POSTGRES:
            texts = in_duckdb(connection, texts, catalog).texts(texts if published is None else published)
        cutter = Cutter(connection, accumulates=accumulates)
        for name, text in texts.items():
            if published is None or name in published:
                with mistakes.part():
                    view = read_view(text, catalog, texts)
                    with planning(connection, text):
                        cutter.cut(view, partition_by.get(name, ""))
        mistakes.raise_any()
        if texts and not cutter.leaves.read_tables:
            problem, hint = "no view reads a table, so nothing would publish them", "Join a table"
            raise next(iter(texts.values())).error(0, 0, problem, hint)
        return cutter.plan()
