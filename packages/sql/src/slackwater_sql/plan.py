"""The plan of a pipeline: stages with keys, the SQL that each evaluates, and where its results go.

A stage's result is a relation at *points* (a stage key at a commit LSN). What a stage hands on is the
difference between the points of a key in a row:

* `RowsOutput`: changed rows, to inputs of later stages. Statement: ``(point INTEGER, row VARCHAR)``, the row
  a JSON array of wire values: its identity, then the columns that the edges take.
* `PartialsOutput`: what the changes add to groups. Statement: ``(lsn BIGINT, number INTEGER, row VARCHAR)``.
  Number -1: JSON array of the group's key, then `n` (rows more), then for each COUNT an integer, for each SUM
  the number of values more and the sum more (as decimal text, NULL: nothing). Number i >= 0, a value of the
  multiset of accumulator i: JSON array of the group's key, then the value's sort key (upper-case hex), its
  DuckDB text, how many more.
* `DocumentsOutput`: changed documents, to the sink. Statement: ``(point INTEGER, key VARCHAR, document
  BLOB)``, the key a JSON object.

Statements read tables that are handed to them: `rows_table(i)` for input i of a rows part,
`ACCUMULATORS_TABLE` for an accumulate part, `POINTS_TABLE (point, group, lsn)`, and for partials
`STEPS_TABLE (point, lsn, weight)`: each point but the first of its key adds its rows at its own LSN (+1), and
each but the last takes them away at the LSN of the next point of its key (-1).
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from slackwater_sql.catalog import Column, Table
from slackwater_sql.column_type import ColumnType

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

FINGERPRINT_VERSION = 1
"""Raised when kept state or documents of an unchanged view would change."""

_WORD = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\w+|[^\w\s]", re.DOTALL)
_COMMENT = re.compile(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|--[^\n]*|/\*.*?\*/", re.DOTALL)
_ID = re.compile(r'"[ck]\d+"')


def rows_table(number: int) -> str:
    """Returns the name under which the rows of an input are handed to DuckDB."""
    return f"__slackwater_rows_{number}"


class Reads(StrEnum):
    """The rows of a touched key that are evaluated when no other input of the key has changed."""

    GROUP = "group"
    """All rows: an unchanged row's result may depend on the changed ones."""
    CHANGED = "changed"
    """The changed ones."""
    CHANGED_AND_WITNESS = "changed and witness"
    """The changed ones and any one unchanged row: others depend on whether there is a row, not on which."""
    ALONE = "alone"
    """The changed ones, whatever else of the key has changed: a row's result depends on no other row."""


@dataclass(frozen=True, slots=True)
class InputPlan:
    """A table that a stage reads, or an earlier stage's rows in the form of one.

    Attributes:
        alias: Name of the input, unique in the stage, as written.
        table: The declared table, with the needed columns only.
        columns: The columns a stage has to keep: key, primary key and all it uses.
        key: Names of the columns that hold the stage's key, in the order of that key.
        needs_replica_identity_full: A row can move to another key by an update, so that updates and deletes
            must carry the old row; the planner takes such a key only for tables that have it.
        keeps_null_keys: Rows whose key is NULL belong to the result, as the group of the key NULL. Rows of
            other inputs with a NULL key never contribute and need not be kept.
        origin: Number of the stage whose rows these are; 0: a table of the database.
        reads: Which rows of a touched key are evaluated.
    """

    alias: str
    table: Table
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    needs_replica_identity_full: bool
    keeps_null_keys: bool
    origin: int
    reads: Reads

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of `columns`, as `RowCodec` takes them."""
        return tuple(column.name for column in self.columns)

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Positions of the key in a row of `columns`."""
        return tuple(self.column_names.index(name) for name in self.key)

    @property
    def primary_key_positions(self) -> tuple[int, ...]:
        """Positions of the primary key in a row of `columns`."""
        return tuple(self.column_names.index(name) for name in self.table.primary_key)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A part of the view's key.

    Attributes:
        name: Its name in the documents.
        type: Its type; the wire value of such a type is also its value in the document.
    """

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the view.

    Attributes:
        name: Its name in the documents.
        type: Its DuckDB type as DuckDB writes it.
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A way on which changed rows reach a later stage.

    Attributes:
        stage: Number of the receiving stage.
        input: Number of its input.
        key: Positions of its key in the wire row.
        columns: Positions of its columns, in the order of the input's columns.
        keeps_null_keys: Rows with a NULL in the key are wanted.
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
        edges: Who takes them.
    """

    identity: int
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class PartialsOutput:
    """Additions to groups.

    Attributes:
        key: How many leading values of the wire row are the group's key.
        stage: The stage that adds up; the stage itself if its own accumulate part does.
    """

    key: int
    stage: int


@dataclass(frozen=True, slots=True)
class DocumentsOutput:
    """Changed documents of a view.

    Attributes:
        view: Number of the view in the pipeline.
        with_before: Whether each comes with the document that its key had before, as
            `slackwater_engine.payloads.pack_change` says; only where each commit is evaluated.
    """

    view: int
    with_before: bool = False


Output = RowsOutput | PartialsOutput | DocumentsOutput


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Evaluates SQL over the rows of a stage key.

    Attributes:
        inputs: Tables, or rows of earlier stages in the form of tables.
        statement: The result at points, in the form that `output` says.
        latest_statement: If the part publishes documents, one per stage key: the documents
            ``(group INTEGER, key VARCHAR, document BLOB)`` of rows that all are live.
        output: Where the results go.
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
        """The inputs' ways of being read."""
        return tuple(each.reads for each in self.inputs)


class AccumulatorKind(StrEnum):
    """The form in which an aggregate is kept."""

    COUNT = "count"
    """Integer. Column ``a<i>`` BIGINT."""
    SUM = "sum"
    """Number of values and exact sum. Columns ``a<i>_n`` BIGINT, ``a<i>`` VARCHAR with `scale` decimals."""
    MIN = "min"
    """Ordered multiset. Column ``a<i>`` VARCHAR: DuckDB's text of the smallest; NULL if there is none."""
    MAX = "max"
    """Ordered multiset. Column ``a<i>`` VARCHAR: DuckDB's text of the largest; NULL if there is none."""
    DISTINCT = "distinct"
    """Multiset. Column ``a<i>`` BIGINT: number of different values."""


MULTISETS = frozenset({AccumulatorKind.MIN, AccumulatorKind.MAX, AccumulatorKind.DISTINCT})


@dataclass(frozen=True, slots=True)
class Accumulator:
    """An aggregate that is kept up to date by what changes.

    Attributes:
        kind: How.
        text: What the user wrote.
        scale: Decimals of a SUM.
        multiset: For MIN, MAX and DISTINCT: number of the accumulator that keeps the values; equal arguments
            share one. Partials name that number.
    """

    kind: AccumulatorKind
    text: str
    scale: int = 0
    multiset: int = -1


@dataclass(frozen=True, slots=True)
class AccumulatePart:
    """Keeps aggregates of groups without keeping their rows.

    A group is there while its `n` is positive; the group of no columns (`is_global`) always.

    Attributes:
        key: The groups' key. `ACCUMULATORS_TABLE` has it as columns ``k<i>`` in transport form, beside
            ``__slackwater_point`` INTEGER, ``n`` BIGINT and the accumulators' columns.
        accumulators: What is kept.
        is_global: GROUP BY is missing.
        statement: The result at points, in the form that `output` says.
        output: Where the results go.
        has_stage_key: The groups' key is that of the stage: a group lies in the bucket that its own key says.
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
        number: From 1, ascending in the direction of the data.
        key: What buckets are chosen by.
        rows: Evaluates rows.
        accumulate: Keeps aggregates.
        why: For people: what the stage does.
        labels: For people: what the user calls the columns that have made-up names, by name.
        kept_by: Number of an earlier stage with the same key and inputs that keeps the rows of this one, too:
            this stage is evaluated in the buckets of that one, by the same events; 0: it keeps its own.
        identity: Equal for stages that compute the same from tables of these names, also of other pipelines;
            empty: not known.
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
    def output(self) -> Output:
        """The output of the last part."""
        part = self.accumulate or self.rows
        assert part is not None  # noqa: S101 - a stage has a part
        return part.output

    @property
    def receivers(self) -> tuple[int, ...]:
        """Numbers of the stages that take the output, ascending; none take documents."""
        match self.output:
            case RowsOutput(edges=edges):
                return tuple(sorted({edge.stage for edge in edges}))
            case PartialsOutput(stage=stage):
                return (stage,)
            case DocumentsOutput():
                return ()


@dataclass(frozen=True, slots=True)
class PublishedView:
    """A view that is written to an output.

    Attributes:
        name: The view's name: the file's without its extension.
        sql: The SQL as the user wrote it.
        key: The record key's columns; those that are not selected are in the key only.
        outputs: The documents' columns in select order.
        fingerprint: Differs when the meaning of the view, or of state kept for it, differs; equal under
            changed spacing and comments, and under changes of columns the view does not use.
        stages: Numbers of the stages it needs.
    """

    name: str
    sql: str
    key: tuple[str, ...]
    outputs: tuple[OutputColumn, ...]
    fingerprint: str
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """All views of a pipeline. Plain data: it pickles and compares by value.

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
        """Returns a stage that keeps its own rows, and behind it those whose rows it keeps, too."""
        others = tuple(stage for stage in self.stages if stage.kept_by == number)
        return (self.stage(number), *others)

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the stages by level, both ascending; found anew each time.

        The stages of the first level read only tables of the database. Those of each later level take only
        what earlier levels send, at least some of it from the level just before. Stages of one level send
        nothing to each other, so a batch takes as many exchanges as there are levels.
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
    """Returns a plan whose documents of these views come with those before them; the state is the same."""

    def changed(stage: StagePlan) -> StagePlan:
        output = stage.output
        if not isinstance(output, DocumentsOutput) or output.view not in views:
            return stage
        output = replace(output, with_before=True)
        if stage.accumulate is not None:
            return replace(stage, accumulate=replace(stage.accumulate, output=output))
        assert stage.rows is not None  # noqa: S101 - a stage has a part
        return replace(stage, rows=replace(stage.rows, output=output))

    return replace(plan, stages=tuple(map(changed, plan.stages)))


def fingerprint(stages: Iterable[StagePlan]) -> str:
    """Differs when the meaning of stages, or of state kept for them, differs.

    Equal under changed spacing and comments, and under changes of columns and views that they do not use.
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
        facts += [[each.kind.value, each.scale, each.multiset] for each in stage.accumulate.accumulators]
    if stage.kept_by:
        facts.append(f"kept by {stage.kept_by}")
    return facts


def _input(plan: InputPlan) -> list[object]:
    """Columns of stages have made-up names."""
    types = [[str(column.type), column.nullable] for column in plan.columns]
    facts: list[object] = [plan.keeps_null_keys, types, plan.key_positions, plan.primary_key_positions]
    return facts if plan.origin else [plan.table.full_name, plan.column_names, *facts]


def statement_words(statement: str) -> list[str]:
    """Returns the words of a statement: without spacing and comments."""
    without_comments = _COMMENT.sub(lambda found: found.group(1) or " ", statement)
    return _WORD.findall(without_comments)


def _words(statement: str) -> list[str]:
    """Returns the words of a statement in lower case, ids numbered as they come."""
    ids: dict[str, str] = {}
    words = []
    for word in statement_words(statement):
        if _ID.fullmatch(word):
            words.append(ids.setdefault(word, f"#{len(ids)}"))
        else:
            words.append(word if word[0] in "'\"" else word.lower())
    return words
