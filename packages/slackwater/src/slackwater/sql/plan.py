"""The plan of a pipeline: stages with keys, the SQL that each evaluates, and where its results go.

A stage's result is a relation at *points* (a stage key at a commit LSN). A stage passes on the difference
between consecutive points of a key:

* `RowsOutput`: changed rows, to inputs of later stages. Statement: ``(point INTEGER, row VARCHAR)``, the row
  a JSON array of wire values: its identity, then the columns that the edges take.
* `PartialsOutput`: what the changes add to groups. Statement: ``(lsn BIGINT, number INTEGER, row VARCHAR)``.
  Number -1: JSON array of the group's key, then `n` (rows added), then for each COUNT an integer, and for
  each SUM the number of values added and the sum of them (as decimal text, NULL: nothing). Number i >= 0, a
  value in the multiset of accumulator i: JSON array of the group's key, then the value's sort key (upper-case
  hex), its DuckDB text, and how many were added. Removals are negative numbers. The text of a row of a TOP is
  a JSON array: how many bytes of its sort key are the user's order, then the wire values of its columns.
  Number -3, instead of these: the group's key and the rows added that cannot be evaluated.
* `DocumentsOutput`: changed documents, to the sink. Statement: ``(point INTEGER, key VARCHAR, document
  BLOB)``, the key a JSON object.

Statements read tables that are passed to them: `rows_table(i)` for input i of a rows part,
`ACCUMULATORS_TABLE` for an accumulate part, `POINTS_TABLE (point, group, lsn)`, and for partials
`STEPS_TABLE (point, lsn, weight)`: each point but the first of its key adds its rows at its own LSN (+1), and
each but the last removes them at the LSN of the next point of its key (-1).
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from math import ceil, floor

from slackwater.protocol.keys import quarantine_of
from slackwater.sql.catalog import Column, ColumnType, Table

# Columns and tables that the statements of stages read.
POINT = "__slackwater_point"
GROUP = "__slackwater_group"
FROM_LSN = "__slackwater_from"
TO_LSN = "__slackwater_to"
LSN = "__slackwater_lsn"
WEIGHT = "__slackwater_weight"
POINTS_TABLE = "__slackwater_points"
STEPS_TABLE = "__slackwater_steps"
ACCUMULATORS_TABLE = "__slackwater_accumulators"

UNKNOWN_ROWS = -3
"""The number of partials that add rows of which only the group is known."""

FINGERPRINT_VERSION = 1
"""Raised when kept state or documents of an unchanged view would change."""

_WORD = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\w+|[^\w\s]", re.DOTALL)
_COMMENT = re.compile(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|--[^\n]*|/\*.*?\*/", re.DOTALL)
_ID = re.compile(r'"[ck]\d+"')


def rows_table(number: int) -> str:
    """Returns the name of the table in which the rows of an input are passed to DuckDB."""
    return f"__slackwater_rows_{number}"


class Reads(StrEnum):
    """Which rows of a touched key are evaluated when no other input of the key has changed."""

    GROUP = "group"
    """All rows: the result of an unchanged row may depend on the changed ones."""
    CHANGED = "changed"
    """The changed rows."""
    CHANGED_AND_WITNESS = "changed and witness"
    """The changed rows and any unchanged row: others depend on whether there is a row, not on which one."""
    ALONE = "alone"
    """The changed rows, whatever else of the key has changed: a row's result depends on no other row."""


@dataclass(frozen=True, slots=True)
class InputPlan:
    """A table that a stage reads, or the rows of an earlier stage in the form of a table.

    Attributes:
        alias: Name of the input as written in the view, unique in the stage.
        table: The declared table, with only the needed columns.
        columns: The columns that the stage has to keep: key, primary key and all columns that it uses.
        key: Names of the columns that hold the stage's key, in the order of that key.
        needs_replica_identity_full: Whether an update can move a row to another key, so that updates and
            deletes must contain the old row; the planner uses such a key only for tables that have it.
        keeps_null_keys: Whether rows whose key is NULL belong to the result, as the group of the key NULL.
            Otherwise rows with a NULL key never contribute, and need not be kept.
        origin: Number of the stage whose rows these are; 0 for a table of the database.
        reads: Which rows of a touched key are evaluated.
        moment: Name of the column that tells when a row ends, in microseconds since the epoch; empty for rows
            that do not end by themselves.
    """

    alias: str
    table: Table
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    needs_replica_identity_full: bool
    keeps_null_keys: bool
    origin: int
    reads: Reads
    moment: str = ""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of `columns`, as `RowCodec` takes them."""
        return tuple(column.name for column in self.columns)

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Positions of the key in a row of `columns`."""
        return tuple(self.column_names.index(name) for name in self.key)

    @property
    def moment_position(self) -> int:
        """Position of the moment in a row of `columns`."""
        return self.column_names.index(self.moment)

    @property
    def primary_key_positions(self) -> tuple[int, ...]:
        """Positions of the primary key in a row of `columns`."""
        return tuple(self.column_names.index(name) for name in self.table.primary_key)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A part of the view's key.

    Attributes:
        name: Its name in the documents.
        type: Its type, whose wire value is also the value in the document.
    """

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the view.

    Attributes:
        type: Its DuckDB type as DuckDB writes it.
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection on which changed rows reach a later stage.

    Attributes:
        key: Positions of its key in the wire row.
        columns: Positions of its columns, in the order of the input's columns.
        keeps_null_keys: Whether rows with a NULL in the key are sent.
    """

    stage: int
    input: int
    key: tuple[int, ...]
    columns: tuple[int, ...]
    keeps_null_keys: bool


@dataclass(frozen=True, slots=True)
class RowsOutput:
    """Changed rows for later stages.

    Attributes:
        identity: How many leading values of the wire row are its identity.
    """

    identity: int
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class PartialsOutput:
    """Additions to groups.

    Attributes:
        key: How many leading values of the wire row are the group's key.
        stage: The stage that adds them up: another one, or this stage if it has an accumulate part.
        of_groups: SQL like the statement, without accumulators: for rows of which only the group is known.
    """

    key: int
    stage: int
    of_groups: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class DocumentsOutput:
    """Changed documents of a view.

    Attributes:
        view: Number of the view in the pipeline.
        with_before: Whether each document is accompanied by the previous document of its key (see
            `slackwater.engine.payloads.pack_change`); only if each commit is evaluated.
        withheld: Number of the view whose documents are the keys of the stage that cannot be evaluated, and
            are therefore withheld; -1: such a key ends the evaluation.
    """

    view: int
    with_before: bool = False
    withheld: int = -1


Output = RowsOutput | PartialsOutput | DocumentsOutput


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Evaluates SQL over the rows of a stage key.

    Attributes:
        inputs: Tables, or rows of earlier stages in the form of tables.
        statement: SQL of the result at points, in the form that `output` requires.
        latest_statement: If the part publishes documents, one per stage key: SQL of the documents
            ``(group INTEGER, key VARCHAR, document BLOB)`` of rows that are all live.
    """

    inputs: tuple[InputPlan, ...]
    statement: str
    latest_statement: str | None
    output: Output

    @property
    def origins(self) -> tuple[int, ...]:
        """The inputs' origins."""
        return tuple(each.origin for each in self.inputs)

    @property
    def reads(self) -> tuple[Reads, ...]:
        """Which rows of each input are read."""
        return tuple(each.reads for each in self.inputs)


class AccumulatorKind(StrEnum):
    """The form in which an aggregate is kept."""

    COUNT = "count"
    """Integer. Column ``a<i>`` BIGINT."""
    SUM = "sum"
    """Number of values and exact sum. Columns ``a<i>_n`` BIGINT, ``a<i>`` VARCHAR with `scale` decimals."""
    MIN = "min"
    """Ordered multiset. Column ``a<i>`` VARCHAR: DuckDB's text of the smallest value; NULL if it is empty.
    In a multiset that is ordered by other values, a text that belongs to the smallest of them."""
    MAX = "max"
    """Ordered multiset. Column ``a<i>`` VARCHAR: the same of the largest value."""
    DISTINCT = "distinct"
    """Multiset. Column ``a<i>`` BIGINT: number of different values."""
    QUANTILE = "quantile"
    """Ordered multiset. Columns ``a<i>_lo``, ``a<i>_hi`` VARCHAR: DuckDB's texts of the two values between
    which the quantile is; NULL if the multiset is empty."""
    TOP = "top"
    """The rows of the group in their order. `ACCUMULATORS_TABLE` has a row for each of them that has one of
    `ranks`: ``n`` is 1, ``a<i>`` BIGINT the rank (if `is_ranked`), ``a<i>_<j>`` the columns."""


MULTISETS = frozenset(set(AccumulatorKind) - {AccumulatorKind.COUNT, AccumulatorKind.SUM})


@dataclass(frozen=True, slots=True)
class Quantile:
    """Which values of a multiset a quantile is computed from.

    Attributes:
        fraction: The part of the values before it: a decimal number from 0 to 1.
        counted: Number of the accumulator that counts the values.
        is_discrete: Whether it is one of the values, and not interpolated between two of them.
        is_descending: Whether the values are in descending order.
    """

    fraction: str
    counted: int
    is_discrete: bool
    is_descending: bool

    def indexes(self, count: int) -> tuple[int, int]:
        """Returns how many values of the multiset are before either of the two, as DuckDB computes it."""
        if self.is_discrete:
            whole, _, decimals = self.fraction.partition(".")
            scale = 10 ** len(decimals)
            low = high = max(1, count - (scale - int(whole + decimals)) * count // scale) - 1
        else:
            place = (count - 1) * float(self.fraction)
            low, high = floor(place), ceil(place)
        return (count - 1 - low, count - 1 - high) if self.is_descending else (low, high)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks, from 1, of the rows that are kept of an order.

    Attributes:
        function: ``row_number``, ``rank`` or ``dense_rank``.
    """

    function: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Accumulator:
    """An aggregate that is maintained from changes alone.

    Attributes:
        text: What the user wrote.
        scale: Decimals of a SUM.
        multiset: For all but COUNT and SUM: number of the accumulator that keeps the values.
            Accumulators with equal arguments share a multiset. Partials contain this number.
        ranks: For TOP, which is then the only accumulator: the rows that are shown.
        columns: For TOP: the types of the columns of its rows.
        is_ranked: For TOP: whether the ranks are shown.
        quantile: For QUANTILE: which values are needed.
    """

    kind: AccumulatorKind
    text: str
    scale: int = 0
    multiset: int = -1
    ranks: Ranks | None = None
    columns: tuple[ColumnType, ...] = ()
    is_ranked: bool = False
    quantile: Quantile | None = None

    @property
    def facts(self) -> list[object]:
        """What its meaning depends on, besides the statements."""
        top = [] if self.ranks is None else [*astuple(self.ranks), self.is_ranked]
        quantile = [] if self.quantile is None else astuple(self.quantile)
        return [self.kind.value, self.scale, self.multiset, *top, *quantile]


@dataclass(frozen=True, slots=True)
class AccumulatePart:
    """Keeps aggregates of groups without keeping their rows.

    A group exists while its `n` is positive; the group without columns (`is_global`) always exists.

    Attributes:
        key: The groups' key. `ACCUMULATORS_TABLE` has it as columns ``k<i>`` in transport form, beside
            ``__slackwater_point`` INTEGER, ``n`` BIGINT and the accumulators' columns.
        is_global: Whether there is no GROUP BY.
        statement: SQL of the result at points, in the form that `output` requires.
        has_stage_key: Whether the groups' key is the stage key, so that it determines a group's bucket.
    """

    key: tuple[KeyColumn, ...]
    accumulators: tuple[Accumulator, ...]
    is_global: bool
    statement: str
    output: Output
    has_stage_key: bool = False


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stateful step of a pipeline: at least one of the two parts.

    With both, the rows part's partials go to the accumulate part of the same bucket; its groups are then at
    least as fine as the stage's key.

    Attributes:
        number: Starts at 1 and increases in the direction of the data.
        key: Determines the bucket.
        why: What the stage does, in readable form.
        labels: For each generated column name, what the user calls the column.
        kept_by: Number of an earlier stage with the same key and inputs that also keeps the rows of this
            stage, which is evaluated in the buckets of that one, for the same events. 0: it keeps its own.
        identity: Equal for stages that compute the same from tables of the same names, in all pipelines;
            empty if it is not known.
    """

    number: int
    key: tuple[KeyColumn, ...]
    rows: RowsPart | None
    accumulate: AccumulatePart | None
    why: str
    labels: tuple[tuple[str, str], ...] = ()
    kept_by: int = 0
    identity: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether rows of an input end by themselves."""
        return self.rows is not None and any(each.moment for each in self.rows.inputs)

    @property
    def output(self) -> Output:
        """The output of the last part."""
        part = self.accumulate or self.rows
        assert part is not None  # noqa: S101 - a stage has a part
        return part.output

    def with_output(self, output: Output) -> "StagePlan":
        """Returns the stage with another output of the last part."""
        if self.accumulate is not None:
            return replace(self, accumulate=replace(self.accumulate, output=output))
        assert self.rows is not None  # noqa: S101 - as above
        return replace(self, rows=replace(self.rows, output=output))

    @property
    def receivers(self) -> tuple[int, ...]:
        """Numbers of the stages that receive the output, ascending; none for documents."""
        match self.output:
            case RowsOutput(edges=edges):
                return tuple(sorted({edge.stage for edge in edges}))
            case PartialsOutput(stage=stage):
                return (stage,)
        return ()


@dataclass(frozen=True, slots=True)
class PublishedView:
    """A view that is written to an output.

    Attributes:
        name: The view's name: the file's without its extension.
        sql: The SQL as the user wrote it.
        key: The record key's columns; columns that are not selected are in the key only.
        outputs: The documents' columns in select order.
        fingerprint: Changes if the meaning of the view, or of the state kept for it, changes. Spacing,
            comments and columns that the view does not use have no influence on it.
        stages: Numbers of the stages that it needs.
        notes: What its author should know.
        withheld_of: Name of the view whose withheld keys these are; empty for a view that a user wrote.
    """

    name: str
    sql: str
    key: tuple[str, ...]
    outputs: tuple[OutputColumn, ...]
    fingerprint: str
    stages: tuple[int, ...]
    notes: tuple[str, ...] = ()
    withheld_of: str = ""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The plan of all views of a pipeline. Plain data, which can be pickled and is compared by value.

    Attributes:
        stages: Ascending by number.
        views: In the order of their numbers.
    """

    stages: tuple[StagePlan, ...]
    views: tuple[PublishedView, ...]

    def stage(self, number: int) -> StagePlan:
        """Returns the stage of this number."""
        return self.stages[number - 1]

    def kept_with(self, number: int) -> tuple[StagePlan, ...]:
        """Returns a stage that keeps its own rows, followed by the stages whose rows it also keeps."""
        others = tuple(stage for stage in self.stages if stage.kept_by == number)
        return (self.stage(number), *others)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the authors of the views should know."""
        return tuple(f"view {view.name}: {note}" for view in self.views for note in view.notes)

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the stages by level, both ascending; computed on each access.

        The stages of the first level read only tables of the database. The stages of each later level receive
        only what earlier levels send, at least some of it from the level directly before. Stages of one level
        send nothing to each other, so a batch needs as many exchanges as there are levels.
        """
        before = dict.fromkeys((stage.number for stage in self.stages), 0)
        levels: list[list[int]] = []
        for stage in self.stages:
            level = before[stage.number]
            if level == len(levels):
                levels.append([])
            levels[level].append(stage.number)
            for receiver in stage.receivers:
                before[receiver] = max(before[receiver], level + 1)
        return tuple(map(tuple, levels))


def with_documents_before(plan: EnginePlan, views: Collection[int]) -> EnginePlan:
    """Returns a plan that adds the previous document to each of these views' documents, with equal state."""

    def changed(stage: StagePlan) -> StagePlan:
        output = stage.output
        if not isinstance(output, DocumentsOutput) or output.view not in views:
            return stage
        return stage.with_output(replace(output, with_before=True))

    return replace(plan, stages=tuple(map(changed, plan.stages)))


_WITHHELD_COLUMNS = (
    OutputColumn("key", "VARCHAR"),
    OutputColumn("view", "VARCHAR"),
    OutputColumn("commit_lsn", "BIGINT"),
    OutputColumn("reason", "VARCHAR"),
    OutputColumn("rows", "VARCHAR[]"),
)


def with_withheld_keys(plan: EnginePlan, views: Collection[str]) -> EnginePlan:
    """Returns a plan in which these views withhold keys that cannot be evaluated, with equal state.

    After the plan's own views, it has a view of the withheld keys for each of them, in the same order.
    """
    numbers: dict[int, int] = {}
    added: list[PublishedView] = []
    for number, view in enumerate(plan.views):
        if view.name in views:
            numbers[number] = len(plan.views) + len(added)
            name, meaning = quarantine_of(view.name), f"withheld keys of {view.fingerprint}"
            added.append(PublishedView(name, "", ("key",), _WITHHELD_COLUMNS, meaning, (), (), view.name))

    def changed(stage: StagePlan) -> StagePlan:
        output = stage.output
        if not isinstance(output, DocumentsOutput) or output.view not in numbers:
            return stage
        return stage.with_output(replace(output, withheld=numbers[output.view]))

    return replace(plan, stages=tuple(map(changed, plan.stages)), views=(*plan.views, *added))


def withholding_view(plan: EnginePlan, stage: StagePlan, output: Output) -> int:
    """Returns the number of the view that shows what a part of a stage withholds; -1: an error ends the run.

    The part with this output withholds keys of documents; or rows, each with a key of its own, whose groups
    another part withholds.
    """
    if isinstance(output, PartialsOutput) and stage.rows is not None and stage.rows.output == output:
        first, *others = stage.rows.inputs
        if not others and first.reads is Reads.ALONE and set(first.key) == set(first.table.primary_key):
            output = plan.stage(output.stage).output
    return output.withheld if isinstance(output, DocumentsOutput) else -1


def withholds(plan: EnginePlan, stage: StagePlan) -> bool:
    """Returns whether a stage withholds whatever it cannot evaluate."""
    parts = (part for part in (stage.rows, stage.accumulate) if part is not None)
    return all(withholding_view(plan, stage, part.output) >= 0 for part in parts)


def fingerprint(stages: Iterable[StagePlan]) -> str:
    """Returns a text that changes if the meaning of the stages, or of the state kept for them, changes.

    Spacing, comments, and columns and views that the stages do not use have no influence on it.
    """
    meaning = {"version": FINGERPRINT_VERSION, "stages": [_facts(stage) for stage in stages]}
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()


def _facts(stage: StagePlan) -> list[object]:
    facts: list[object] = []
    if stage.rows is not None:
        facts.append(_words(stage.rows.statement))
        facts += [_input(plan) for plan in stage.rows.inputs]
    if stage.accumulate is not None:
        facts.append(_words(stage.accumulate.statement))
        facts += [each.facts for each in stage.accumulate.accumulators]
    if stage.kept_by:
        facts.append(f"kept by {stage.kept_by}")
    return facts


def _input(plan: InputPlan) -> list[object]:
    """Omits the names of columns of stages, because they are generated."""
    types = [
        [str(column.type), column.nullable, *([] if column.absent is None else [column.absent])]
        for column in plan.columns
    ]
    facts: list[object] = [plan.keeps_null_keys, types, plan.key_positions, plan.primary_key_positions]
    facts += [plan.moment_position] if plan.moment else []
    return facts if plan.origin else [plan.table.full_name, plan.column_names, *facts]


def statement_words(statement: str) -> list[str]:
    """Returns the tokens of a statement, without spacing and comments."""
    without_comments = _COMMENT.sub(lambda found: found.group(1) or " ", statement)
    return _WORD.findall(without_comments)


def _words(statement: str) -> list[str]:
    """Returns the tokens of a statement in lower case, with ids numbered in the order of their appearance."""
    ids: dict[str, str] = {}
    words = []
    for word in statement_words(statement):
        if _ID.fullmatch(word):
            words.append(ids.setdefault(word, f"#{len(ids)}"))
        else:
            words.append(word if word[0] in "'\"" else word.lower())
    return words
