"""From a view's tree to stages: what can be computed over the rows of one key stays together."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

import duckdb

from slackwater_sql.column_type import carried
from slackwater_sql.document import Field, UnsupportedOutputError, check_output, identifier
from slackwater_sql.errors import ViewError
from slackwater_sql.logical import (
    Aggregate,
    AggregateCall,
    Expression,
    Extend,
    Filter,
    Join,
    Leaf,
    LogicalView,
    Relation,
    Scan,
    Union,
    Window,
    children,
)
from slackwater_sql.place import SourceText
from slackwater_sql.plan import InputPlan, KeyColumn, OutputColumn
from slackwater_sql.planner.accumulating import Accumulation, accumulation
from slackwater_sql.planner.assembly import (
    Assembly,
    Binder,
    assemble,
    documents_statement,
    partials,
    rows_statement,
)
from slackwater_sql.planner.fragment import Accumulated, Fragment, Origin, StageRows, column
from slackwater_sql.planner.partitioning import (
    Key,
    Partitioning,
    keys_of_group,
    keys_of_join,
    partitioning,
    split_join,
)
from slackwater_sql.stages import (
    AccumulatePart,
    DocumentsOutput,
    Edge,
    Output,
    PartialsOutput,
    RowsOutput,
    RowsPart,
    StagePlan,
)

_CAST_HINT = "Write CAST(… AS …) on one side, so that both have one type"
_DECIMAL_PRECISION = re.compile(r"DECIMAL\(\d+")
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_WITHOUT_ONE_TEXT = frozenset({"INTERVAL", "TIME WITH TIME ZONE"})


@dataclass(frozen=True, slots=True)
class CutView:
    """A view's last stage.

    Attributes:
        key: The record key's columns.
        outputs: The documents' columns.
    """

    key: tuple[str, ...]
    outputs: tuple[OutputColumn, ...]


class Cutter:
    """Cuts the views of a pipeline. Stages are numbered in the order in which they are finished."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._binder = Binder(connection)
        self._stages: dict[int, StagePlan] = {}
        self._edges: dict[int, list[Edge]] = {}
        self._leaves: dict[int, Origin] = {}
        self._next_stage = self._next_leaf = self._next_id = 0
        self._view: LogicalView | None = None
        self._labels: dict[str, str] = {}

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """All stages so far, ascending."""
        return tuple(
            _with_edges(self._stages[number], self._edges.get(number, ())) for number in sorted(self._stages)
        )

    def cut(self, view: LogicalView, number: int) -> CutView:
        """Makes the stages of a view.

        Args:
            view: The view.
            number: Of the view in the pipeline.

        Raises:
            ViewError: Its documents cannot be written, or keys of different types are compared.
        """
        self._view, self._labels = view, dict(view.labels)
        wanted = [name for _, name in view.outputs]
        fragment = self._fragment(view.relation, frozenset(wanted) | set(view.relation.identity))
        return self._publish(fragment, view, number)

    def _fragment(self, relation: Relation, needed: frozenset[str]) -> Fragment:
        """The part that computes the needed ids of a relation; finishes stages below where it must."""
        match relation:
            case Scan():
                return Fragment(self._leaf(relation, relation.columns, relation.identity))
            case Filter(child=child, condition=condition):
                below = self._fragment(child, needed | set(condition.columns))
                return below.over(Filter(below.relation, condition))
            case Extend(child=child, computed=computed):
                kept = tuple((name, each) for name, each in computed if name in needed)
                below = self._fragment(child, needed | _read(each for _, each in kept))
                return below.over(Extend(below.relation, kept))
            case Join():
                return self._join(relation, needed)
            case Aggregate():
                return self._aggregate(relation, needed)
            case Union():
                return self._union(relation, needed)
            case Window():
                return self._window(relation, needed)
            case Leaf():
                return Fragment(relation)

    def _join(self, join: Join, needed: frozenset[str]) -> Fragment:
        read = needed | _read(side for pair in join.equal for side in pair)
        read |= frozenset(join.residual.columns if join.residual else ())
        read |= frozenset((*join.left.identity, *join.right.identity))
        left = self._on_rows(self._fragment(join.left, read), read)
        right = self._on_rows(self._fragment(join.right, read), read)
        left, left_equal = self._with_columns(left, [pair[0] for pair in join.equal])
        right, right_equal = self._with_columns(right, [pair[1] for pair in join.equal])
        equal = tuple(zip(left_equal, right_equal, strict=True))
        read |= _read((*left_equal, *right_equal))

        def joined(left: Relation, right: Relation) -> Join:
            return Join(join.kind, left, right, equal, join.residual, join.span)

        for closes_left, closes_right in product((False, True), repeat=2):
            tried = joined(_closable(left, closes=closes_left), _closable(right, closes=closes_right))
            if any(split_join(tried, keys, self._may_be_key) for keys in keys_of_join(tried)):
                break
        left = self._closed(left, read) if closes_left else left
        right = self._closed(right, read) if closes_right else right
        whole = joined(left.relation, right.relation)
        return Fragment(whole, self._split_of_join(whole))

    def _split_of_join(self, join: Join) -> Partitioning:
        found = [split_join(join, keys, self._may_be_key) for keys in keys_of_join(join)]
        splits = [split for split in found if split]
        for split in splits:
            if self._has_equal_types(split):
                return split
        if not splits:
            msg = "rows that are compared cannot be brought together"
            raise AssertionError(msg)
        left, right = self._key_types(splits[-1])[:2]
        problem = f"the join compares {' and '.join(sorted({*left, *right}))}"
        raise self._error(join.span.start, join.span.end, problem, _CAST_HINT)

    def _aggregate(self, aggregate: Aggregate, needed: frozenset[str]) -> Fragment:
        calls = tuple((name, call) for name, call in aggregate.calls if name in needed)
        self._labels |= {name: call.text for name, call in calls}
        read = _read(each for _, each in aggregate.groups) | {c for _, call in calls for c in call.columns}
        below = self._fragment(aggregate.child, read | set(aggregate.child.identity))
        below, columns = self._with_columns(below, [each for _, each in aggregate.groups])
        groups = tuple((name, each) for (name, _), each in zip(aggregate.groups, columns, strict=True))
        whole = Aggregate(below.relation, groups, calls, aggregate.identity, aggregate.span)
        return self._accumulated(whole, below) or self._recomputed(whole, below)

    def _recomputed(self, aggregate: Aggregate, below: Fragment) -> Fragment:
        """The aggregate computed from all rows of its groups."""
        keys = [aggregate.identity, *((name,) for name in aggregate.identity)]
        if below.accumulated is None:
            for key in keys:
                split = self._split(aggregate, key) if key or not aggregate.identity else None
                if split is not None:
                    return Fragment(aggregate, split)
        below = self._closed(below, _all_read(aggregate))
        whole = replace(aggregate, child=below.relation)
        return Fragment(whole, partitioning(whole, whole.identity, self._may_be_key))

    def _accumulated(self, aggregate: Aggregate, below: Fragment) -> Fragment | None:
        """The aggregate kept by accumulators; None if it needs the rows of its groups.

        Columns that depend on the groups are kept as the largest of their values, which all are equal.
        """
        dependent = [(name, each) for name, each in aggregate.groups if name not in aggregate.identity]
        calls = (*aggregate.calls, *((name, _largest(each)) for name, each in dependent))
        groups = tuple((name, each) for name, each in aggregate.groups if name in aggregate.identity)
        whole = Aggregate(below.relation, groups, calls, aggregate.identity, aggregate.span)
        assembly = assemble(below, tuple(_all_read(whole)), self._leaves)
        found = accumulation(whole, lambda each: self._binder.types(assembly, below.relation, [each.sql])[0])
        if found is None:
            return None
        types = self._binder.types(assembly, below.relation, [each.sql for _, each in groups])
        sources = tuple((str(each.column), of) for (_, each), of in zip(groups, types, strict=True))
        split = self._split_for_groups(below, groups)
        if split is not None:
            below = replace(below, split=split)
        stage, rows = self._feed(below, sources, found, is_inline=split is not None)
        kept = tuple((name, of) for (name, _), of in zip(groups, types, strict=True))
        accumulated = Accumulated(stage, kept, found, not aggregate.groups, rows)
        return Fragment(self._leaf(None, whole.columns, aggregate.identity), accumulated=accumulated)

    def _split_for_groups(
        self, below: Fragment, groups: tuple[tuple[str, Expression], ...]
    ) -> Partitioning | None:
        """How to split a join's inputs so that its rows need not travel to their groups.

        Rows of one table stay with their primary key: their group may have half of all rows.
        """
        if below.accumulated is not None:
            return None
        for key in keys_of_group(tuple(each for _, each in groups)):
            split = self._split(below.relation, key) if key else None
            if split is not None and (len(split) > 1 or set(split[0].key) == set(split[0].leaf.identity)):
                return split
        return None

    def _feed(
        self, below: Fragment, groups: tuple[tuple[str, str], ...], found: Accumulation, *, is_inline: bool
    ) -> tuple[int, RowsPart | None]:
        """Makes what adds to the groups; gives the number of the stage that keeps them and its rows part."""
        read = [*(name for name, _ in groups), *(column for each in found.kept for column in each.columns)]
        assembly = assemble(below, tuple(dict.fromkeys(read)), self._leaves)
        statement = partials(below.relation, groups, found.kept, assembly)
        if is_inline:
            stage = self._new_stage()
            output = PartialsOutput(len(groups), stage)
            return stage, self._rows_part(stage, below, assembly, (statement, None), output)
        feeding = self._stage_of(below)
        stage = self._new_stage()
        self._finish(feeding, below, assembly, (statement, None), PartialsOutput(len(groups), stage))
        return stage, None

    def _union(self, union: Union, needed: frozenset[str]) -> Fragment:
        branches = []
        for number, child in enumerate(union.children):
            read = {sources[number] for name, sources in union.sources if name in needed}
            wanted = frozenset(read | set(child.identity))
            branches.append(self._on_rows(self._fragment(child, wanted), wanted))
        whole = replace(union, children=tuple(branch.relation for branch in branches))
        return Fragment(whole, tuple(part for branch in branches for part in branch.final_split))

    def _window(self, window: Window, needed: frozenset[str]) -> Fragment:
        calls = tuple((name, call) for name, call in window.calls if name in needed)
        self._labels |= {name: call.text for name, call in calls}
        read = needed | _read((*window.partition, *(call for _, call in calls)))
        wanted = frozenset(name for name in read if name in window.child.columns)
        below = self._on_rows(self._fragment(window.child, wanted | set(window.child.identity)), wanted)
        below, partition = self._with_columns(below, list(window.partition))
        whole = Window(below.relation, partition, calls, window.span)
        for key in keys_of_group(partition):
            split = self._split(whole, key)
            if split is not None:
                return Fragment(whole, split)
        below = self._closed(below, wanted | _read(partition))
        whole = replace(whole, child=below.relation)
        return Fragment(whole, partitioning(whole, next(keys_of_group(partition)), self._may_be_key))

    def _publish(self, fragment: Fragment, view: LogicalView, number: int) -> CutView:
        relation = fragment.relation
        one_row_per_key = False
        if fragment.accumulated is None and relation.identity:
            split = self._split(relation, relation.identity) or _split_by_identity(fragment)
            one_row_per_key = split is not None
            fragment = fragment if split is None else replace(fragment, split=split)
        wanted = tuple(dict.fromkeys((*(name for _, name in view.outputs), *relation.identity)))
        assembly = assemble(fragment, wanted, self._leaves)
        key, fields = self._documents(view, relation, assembly)
        statement = documents_statement(relation, key, fields, assembly.leaf, "point")
        latest = None
        if one_row_per_key and assembly.live is not None:
            latest = documents_statement(relation, key, fields, assembly.live, "group")
        stage = self._stage_of(fragment)
        self._finish(stage, fragment, assembly, (statement, latest), DocumentsOutput(number))
        outputs = tuple(OutputColumn(field.name, str(field.type)) for field in fields)
        return CutView(tuple(field.name for field in key), outputs)

    def _documents(
        self, view: LogicalView, relation: Relation, assembly: Assembly
    ) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
        """Fields of the record key and of the document."""
        selected = {name: label for label, name in reversed(view.outputs)}
        taken: set[str] = set()
        key = []
        for name in relation.identity:
            label = selected.get(name) or view.labels.get(name, name)
            while label in taken:
                label += "_"
            taken.add(label)
            key.append((label, name))
        columns = [*key, *view.outputs]
        types = self._binder.duckdb_types(assembly, relation, [identifier(name) for _, name in columns])
        fields = tuple(
            Field(label, identifier(name), of_type)
            for (label, name), of_type in zip(columns, types, strict=True)
        )
        for field in fields:
            try:
                check_output(field.type)
            except UnsupportedOutputError as error:
                problem = f"column {field.name} of type {error} cannot be written as JSON exactly"
                raise self._error(0, 0, problem, "Convert it to a text, number, list or struct") from error
        return fields[: len(key)], fields[len(key) :]

    def _closed(self, fragment: Fragment, needed: frozenset[str]) -> Fragment:
        """The fragment as rows of a stage of its own."""
        relation = fragment.relation
        if isinstance(relation, Leaf) and isinstance(self._leaves.get(relation.number), StageRows):
            return fragment
        named = (name for name in relation.columns if name in needed)
        wire = tuple(dict.fromkeys((*relation.identity, *named)))
        assembly = assemble(fragment, wire, self._leaves)
        types = self._binder.types(assembly, relation, [identifier(name) for name in wire])
        statement = rows_statement(relation, wire, types, assembly)
        stage = self._stage_of(fragment)
        output = RowsOutput(len(relation.identity), ())
        self._finish(stage, fragment, assembly, (statement, None), output)
        return Fragment(self._leaf(StageRows(stage, wire, types), wire, relation.identity))

    def _on_rows(self, fragment: Fragment, needed: frozenset[str]) -> Fragment:
        """The fragment, without an accumulate part below it: such a part has groups, but no rows to join."""
        return fragment if fragment.accumulated is None else self._closed(fragment, needed)

    def _with_columns(
        self, fragment: Fragment, expressions: list[Expression]
    ) -> tuple[Fragment, tuple[Expression, ...]]:
        """The fragment with a column for each expression that is none; equal values get equal texts."""
        assembly = assemble(fragment, tuple(_read(expressions)), self._leaves)
        types = self._binder.types(assembly, fragment.relation, [each.sql for each in expressions])
        named = {each.sql: self._comparable(each, of) for each, of in zip(expressions, types, strict=True)}
        computed = {sql: self._new_id() for sql, each in named.items() if each.column is None}
        self._labels |= {name: named[sql].text for sql, name in computed.items()}
        if not computed:
            return fragment, tuple(expressions)
        extended = Extend(fragment.relation, tuple((name, named[sql]) for sql, name in computed.items()))
        columns = tuple(column(computed[e.sql], e) if e.sql in computed else e for e in expressions)
        return fragment.over(extended), columns

    def _comparable(self, each: Expression, of_type: str) -> Expression:
        """The expression with one text for each value: 0.0 and -0.0 are equal."""
        if of_type in _WITHOUT_ONE_TEXT:
            problem = f"rows are brought together by a value of type {of_type}"
            hint = "Equal values of this type have different texts: compare parts of it, or its text"
            raise self._error(each.span.start, each.span.end, problem, hint)
        return replace(each, sql=f"({each.sql}) + 0.0") if of_type in _FLOATS else each

    def _stage_of(self, fragment: Fragment) -> int:
        """The stage that finishes this fragment."""
        return self._new_stage() if fragment.accumulated is None else fragment.accumulated.stage

    def _finish(
        self,
        stage: int,
        fragment: Fragment,
        assembly: Assembly,
        statements: tuple[str, str | None],
        output: Output,
    ) -> None:
        accumulated = fragment.accumulated
        if accumulated is None:
            rows: RowsPart | None = self._rows_part(stage, fragment, assembly, statements, output)
            accumulate = None
        else:
            rows = accumulated.rows
            accumulate = AccumulatePart(
                key=accumulated.key,
                accumulators=accumulated.accumulation.accumulators,
                is_global=accumulated.is_global,
                statement=statements[0],
                output=output,
            )
        key = self._stage_key(rows) if rows is not None else accumulate.key if accumulate else ()
        why, labels = _why(fragment, rows, accumulate), self._labels_of(rows, accumulate)
        self._stages[stage] = StagePlan(stage, key, rows, accumulate, why, labels)

    def _labels_of(
        self, rows: RowsPart | None, accumulate: AccumulatePart | None
    ) -> tuple[tuple[str, str], ...]:
        names = [name for plan in (rows.inputs if rows is not None else ()) for name in plan.column_names]
        names += [part.name for part in (accumulate.key if accumulate is not None else ())]
        return tuple((name, self._labels[name]) for name in dict.fromkeys(names) if name in self._labels)

    def _rows_part(
        self,
        stage: int,
        fragment: Fragment,
        assembly: Assembly,
        statements: tuple[str, str | None],
        output: Output,
    ) -> RowsPart:
        """A rows part, with edges to its inputs."""
        for number, (plan, origin) in enumerate(zip(assembly.inputs, assembly.origins, strict=True)):
            if origin:
                self._add_edge(fragment, number, plan, stage)
        return RowsPart(
            assembly.inputs, assembly.origins, assembly.reads, statements[0], statements[1], output
        )

    def _add_edge(self, fragment: Fragment, number: int, plan: InputPlan, stage: int) -> None:
        rows = self._leaves[fragment.final_split[number].leaf.number]
        assert isinstance(rows, StageRows)  # noqa: S101 - origins say so
        edge = Edge(
            stage=stage,
            input=number,
            key=tuple(rows.wire.index(name) for name in plan.key),
            columns=tuple(rows.wire.index(name) for name in plan.column_names),
            keeps_null_keys=plan.keeps_null_keys,
        )
        self._edges.setdefault(rows.stage, []).append(edge)

    def _stage_key(self, rows: RowsPart) -> tuple[KeyColumn, ...]:
        first = rows.inputs[0]
        return tuple(
            KeyColumn(self._labels.get(each.name, each.name), each.type)
            for name in first.key
            for each in first.columns
            if each.name == name
        )

    def _split(self, relation: Relation, key: Key) -> Partitioning | None:
        split = partitioning(relation, key, self._may_be_key)
        return split if split is not None and self._has_equal_types(split) else None

    def _may_be_key(self, leaf: Leaf, key: Key) -> bool:
        """Rows of a table are split where they are read: by columns that are told apart by their JSON."""
        origin = self._leaves.get(leaf.number)
        if not isinstance(origin, Scan):
            return set(key) <= set(leaf.columns)
        table = origin.table
        names = {number: name for name, number in origin.ids.items()}
        columns = [names.get(each) for each in key]
        if not table.replica_identity_full and not set(columns) <= set(table.primary_key):
            return False
        found = [table.column(name) for name in columns if name is not None]
        return all(each is not None and each.type.is_key_safe for each in found)

    def _has_equal_types(self, split: Partitioning) -> bool:
        return len(set(self._key_types(split))) <= 1

    def _key_types(self, split: Partitioning) -> list[tuple[str, ...]]:
        return [tuple(self._family(part.leaf, name) for name in part.key) for part in split]

    def _family(self, leaf: Leaf, name: str) -> str:
        """Columns of one family have equal wire values exactly when they are equal."""
        origin = self._leaves.get(leaf.number)
        if isinstance(origin, Scan):
            of_column = {number: column for column, number in origin.ids.items()}
            declared = origin.table.column(of_column[name])
            return "" if declared is None else declared.type.wire_family
        if isinstance(origin, StageRows):
            of_type = dict(zip(origin.wire, origin.types, strict=True))[name]
            return _DECIMAL_PRECISION.sub("DECIMAL(", carried(of_type).wire_family)
        return ""

    def _leaf(self, origin: Origin | None, columns: tuple[str, ...], identity: tuple[str, ...]) -> Leaf:
        number = self._next_leaf
        self._next_leaf += 1
        if origin is not None:
            self._leaves[number] = origin
        return Leaf(number, columns, identity)

    def _new_stage(self) -> int:
        self._next_stage += 1
        return self._next_stage

    def _new_id(self) -> str:
        self._next_id += 1
        return f"k{self._next_id}"

    def _error(self, start: int, end: int, problem: str, hint: str) -> ViewError:
        view = self._view
        assert view is not None  # noqa: S101 - errors are those of a view
        return ViewError(SourceText(view.path, view.sql).place(start, end), problem, hint)


def _closable(fragment: Fragment, *, closes: bool) -> Relation:
    """The fragment's tree, or the leaf that it would be as a stage."""
    relation = fragment.relation
    return Leaf(-1, relation.columns, relation.identity) if closes else relation


def _split_by_identity(fragment: Fragment) -> Partitioning | None:
    """Rows of one input, each by itself."""
    split = fragment.final_split
    return split if fragment.split is None and split[0].key == fragment.relation.identity else None


def _read(expressions: Iterable[Expression]) -> frozenset[str]:
    return frozenset(column for each in expressions for column in each.columns)


def _all_read(aggregate: Aggregate) -> frozenset[str]:
    """What an aggregate reads of its child."""
    of_calls = (column for _, call in aggregate.calls for column in call.columns)
    return _read(each for _, each in aggregate.groups) | frozenset(of_calls)


def _largest(each: Expression) -> AggregateCall:
    return AggregateCall(f"max({each.sql})", "max", (each,), False, None, each.columns, each.span, each.text)


def _with_edges(stage: StagePlan, edges: Iterable[Edge]) -> StagePlan:
    """A stage whose rows go to these inputs."""
    output = stage.output
    if not isinstance(output, RowsOutput):
        return stage
    output = replace(output, edges=tuple(edges))
    if stage.accumulate is not None:
        return replace(stage, accumulate=replace(stage.accumulate, output=output))
    return replace(stage, rows=replace(stage.rows, output=output) if stage.rows is not None else None)


def _why(fragment: Fragment, rows: RowsPart | None, accumulate: AccumulatePart | None) -> str:
    """What a stage does, for people."""
    if accumulate is not None:
        return "adds up what changes" if rows is None else "joins, and adds up what changes"
    parts = sorted({_WORDS[type(each)] for each in _below(fragment.relation) if type(each) in _WORDS})
    return ", ".join(parts) or "computes columns of rows"


def _below(relation: Relation) -> Iterable[Relation]:
    yield relation
    for child in children(relation):
        yield from _below(child)


_WORDS: dict[type, str] = {
    Join: "joins",
    Aggregate: "computes groups from their rows",
    Window: "computes windows from their rows",
    Union: "unites",
    Filter: "filters",
}
