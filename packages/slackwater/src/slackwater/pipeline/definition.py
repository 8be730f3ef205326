"""The definition of a pipeline: everything that determines its results."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from slackwater.cdc.captured import shared_topics
from slackwater.engine.owners import check_aggregate
from slackwater.engine.settings import Evaluators, Scope, StageSettings
from slackwater.kafka.registry import SubjectStrategy
from slackwater.outputs.contract import (
    HISTORY_SUFFIX,
    Emit,
    ErrorPolicy,
    Format,
    KeyFormat,
    SinkKind,
    is_nested,
)
from slackwater.outputs.search.ledger import index_of
from slackwater.pipeline.checkpoint import STATE_VERSION, Fingerprint
from slackwater.pipeline.settings import revision_name
from slackwater.protocol import CommitFormat, ConfigError, SourceTopics
from slackwater.protocol.keys import avro_commit_topic, commit_topic, is_reserved_topic, quarantine_of
from slackwater.protocol.rights import Right, pipeline_rights
from slackwater.sql.catalog import Catalog, Column, Table
from slackwater.sql.limits import DEFAULT_LIMITS, StatementLimits
from slackwater.sql.meaning import Dialect
from slackwater.sql.plan import (
    DocumentsOutput,
    EnginePlan,
    InputPlan,
    PublishedView,
    fingerprint,
    with_documents_before,
    with_withheld_keys,
)
from slackwater.sql.planner.cutting import compile_pipeline, compile_separately
from slackwater.sql.planner.sharing import stage_uses

_LONGEST_NAME = 63
_SHARING = "; views that are partitioned by a column (partition_by) may share one"
_SEVERAL_TEXTS = frozenset(("FLOAT", "DOUBLE", "JSON", "INTERVAL", "TIME WITH TIME ZONE"))
_INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,149}")
"""Clusters also accept it with what is added for versions and runs, as this has at most 255 bytes."""
_SOURCE_TOPIC = re.compile(r".+\.[A-Za-z_][A-Za-z0-9_]{0,62}\.[A-Za-z_][A-Za-z0-9_]{0,62}")
"""The name of a topic that contains a table of a source, <prefix>.<schema>.<table>."""


@dataclass(frozen=True, slots=True)
class ViewOutput:
    """The place where a view is published."""

    view: str
    name: str
    """The name of the topic; for an output that is a table, ``schema.name``."""
    partitions: int | None = None
    """The number of partitions of a topic; None for the existing number, or four."""
    kind: SinkKind = SinkKind.KAFKA
    """The kind of the sink."""
    history: bool = False
    """Whether a PostgreSQL table has a second table beside it with every version."""
    format: Format = Format.JSON
    """The form of documents in Kafka."""
    key_format: KeyFormat = KeyFormat.JSON
    """The form of keys in Kafka."""
    commit_format: CommitFormat = CommitFormat.JSON
    """The form of commit records in Kafka."""
    cloudevents: bool = False
    """Whether records in Kafka have the attributes of CloudEvents in their headers."""
    subject_strategy: SubjectStrategy = SubjectStrategy.TOPIC
    """How the subjects of schemas are named."""
    on_error: ErrorPolicy = ErrorPolicy.STOP
    """What happens to keys that cannot be evaluated."""
    withheld_of: str = ""
    """The view whose withheld keys are published here; empty for a view that a user wrote."""
    partition_by: str = ""
    """The column of the key whose value determines the partition in Kafka; empty for the whole key."""
    place: int = field(default=0, compare=False)
    """Views that share a topic are written in the order of their places."""

    @property
    def has_schemas(self) -> bool:
        """Whether values or keys refer to schemas in a registry."""
        without = (Format.JSON, Format.DEBEZIUM, KeyFormat.JSON, KeyFormat.STRING)
        return self.format not in without or self.key_format not in without

    @property
    def is_source(self) -> bool:
        """Whether the output is a table of a connector to its readers, ``<prefix>.<schema>.<table>``."""
        return self.format is Format.DEBEZIUM

    @property
    def prefix(self) -> str:
        """The ``topic.prefix`` of such an output."""
        return self.name.rsplit(".", 2)[0]


@dataclass(frozen=True)
class PipelineSql:
    """The SQL from which a pipeline's plan is made."""

    catalog: Catalog
    """The declared tables."""
    views: tuple[tuple[str, str], ...]
    """The path and the text of each view, by its name."""
    partition_by: Mapping[str, str] = field(default_factory=dict)
    """By view, the column that is part of its record key because it determines the partition."""
    dialect: Dialect = Dialect.DUCKDB
    """The database whose meaning the SQL has."""

    @property
    def view_names(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(Path(path).stem for path, _ in self.views)

    def plan(
        self, published: Collection[str], catalog: Catalog | None = None, scope: Scope = Scope.STRICT
    ) -> EnginePlan:
        """Plans the published views, optionally over other tables."""
        return compile_pipeline(
            self.views,
            catalog or self.catalog,
            published=published,
            accumulates=scope is Scope.STRICT,
            partition_by=self.partition_by,
            dialect=self.dialect,
        )

    def plan_separately(self, published: Collection[str], scope: Scope) -> EnginePlan:
        """Plans the published views as if they had nothing in common, each with the columns that it needs."""
        return compile_separately(
            self.views,
            self.catalog,
            published=published,
            accumulates=scope is Scope.STRICT,
            partition_by=self.partition_by,
            dialect=self.dialect,
        )

    def stage_uses(self, published: Collection[str], scope: Scope) -> dict[int, int]:
        """Returns for each stage the number of stages that there would be instead if none were shared."""
        plan = self.plan_separately(published, scope)
        return stage_uses(plan, [text for _, text in self.views])


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """The views of a pipeline, and where it reads and writes: everything that determines its results."""

    name: str
    """The name, which is also the base of the progress topic and the transactional id. From revision 2 on, it
    ends in ``.v<revision>``."""
    source: str
    """The connector's ``topic.prefix``."""
    owner: str = ""
    """Whom to ask about it, as free text; empty if nobody is named."""
    scope: Scope = Scope.STRICT
    """Strict: all views show the same commit; aggregate: each document shows its own."""
    emit: Emit
    buckets: int | None = None
    """The number of buckets of each stage, fixed for the life of a checkpoint; None to let the first run
    choose."""
    revision: int = 1
    """The number of the meaning that the views have; each revision has its own checkpoint and outputs."""
    revision_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other pipelines that this is the same revision of: their names without it, each with its views here."""
    outputs: tuple[ViewOutput, ...]
    """The outputs, in the order of the plan's views."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The topic of each table whose rows a transform of the connector routes to another topic than usual."""
    plan: EnginePlan
    sql: PipelineSql | None = None
    """The SQL from which the plan was made; None if there is none."""
    evaluators: Evaluators | None = None
    """Evaluates the rows of stages; None for DuckDB."""

    @property
    def base_name(self) -> str:
        """The name without the revision."""
        return self.name.removesuffix(revision_name("", self.revision))

    @property
    def published(self) -> tuple[str, ...]:
        """The names of the published views that a user wrote, in the order of the plan's views."""
        return tuple(output.view for output in self.outputs if not output.withheld_of)

    @property
    def tables(self) -> tuple[str, ...]:
        """The full names of the tables that the views read, each once."""
        return table_names(self.plan)

    @property
    def source_topics(self) -> SourceTopics:
        """The topics of the source."""
        return SourceTopics(self.source, self.topics)

    @property
    def input_topics(self) -> frozenset[str]:
        """The topics of the tables."""
        return frozenset(map(self.source_topics.data, self.tables))


def stage_settings(definition: PipelineDefinition, limits: StatementLimits = DEFAULT_LIMITS) -> StageSettings:
    """Returns the settings of the stages of a pipeline whose number of buckets is known."""
    assert definition.buckets is not None  # noqa: S101 - chosen when a run is checked, or noted by the first one
    return StageSettings(
        buckets=definition.buckets,
        every_commit=definition.emit is Emit.TRANSACTIONS,
        scope=definition.scope,
        limits=limits,
    )


MakeError = Callable[[str, str, str], ConfigError]
"""Makes the error for a key of pipeline.toml that has to be changed, with the problem and the hint."""


def checked(definition: PipelineDefinition, error: MakeError) -> PipelineDefinition:
    """Returns a definition that a run may use, given one whose documents are whole rows.

    Documents for tables of a source are changes in its plan, and the withheld keys of views are views.
    """
    definition = _with_withheld_keys(definition, error)
    _check_indexes(definition, error)
    check_places(definition.outputs, error)
    for output in definition.outputs:
        if output.history and definition.emit is not Emit.TRANSACTIONS:
            hint = 'set emit = "transactions", which publishes the state after each transaction'
            raise error("emit", f"history of view {output.view!r} needs every transaction", hint)
        if output.cloudevents and output.format in (Format.AVRO, Format.JSON_SCHEMA):
            hint = "remove one of the two: CloudEvents have no content type for values with a schema id"
            problem = f'cloudevents cannot be combined with format = "{output.format}"'
            raise error("outputs", f"view {output.view!r}: {problem}", hint)
        if output.subject_strategy is not SubjectStrategy.TOPIC and not output.has_schemas:
            hint = 'remove it, or set format = "avro" or "json-schema"'
            raise error("outputs", f"view {output.view!r}: subject_strategy: it has no schemas", hint)
    _check_partitioned(definition, error)
    if definition.scope is Scope.AGGREGATE:
        try:
            check_aggregate(definition.plan)
        except ConfigError as found:
            raise error("scope", str(found), "`slackwater explain` shows the stages") from found
    tables = [number for number, output in enumerate(definition.outputs) if output.is_source]
    if tables:
        _check_tables(definition, tables, error)
    _check_topics(definition, error)
    return replace(definition, plan=with_documents_before(definition.plan, tables)) if tables else definition


def _with_withheld_keys(definition: PipelineDefinition, error: MakeError) -> PipelineDefinition:
    """Adds the outputs of the withheld keys of all views that continue without them."""
    withholding = [output for output in definition.outputs if output.on_error is ErrorPolicy.QUARANTINE]
    if not withholding:
        return definition
    if definition.scope is not Scope.STRICT:
        hint = 'set scope = "strict", or remove it'
        raise error("outputs", f"view {withholding[0].view!r}: on_error needs commits of all tables", hint)
    outputs = (*definition.outputs, *map(_withheld_output, withholding))
    for output in outputs[len(definition.outputs) :]:
        if output.kind is not SinkKind.KAFKA and len(output.name.rpartition(".")[2]) > _LONGEST_NAME:
            problem = f"view {output.withheld_of!r}: {output.name!r}, which is to have its withheld keys"
            raise error("outputs", f"{problem}, has more than {_LONGEST_NAME} characters", "name it shorter")
    plan = with_withheld_keys(definition.plan, [output.view for output in withholding])
    return replace(definition, plan=plan, outputs=outputs)


def _withheld_output(output: ViewOutput) -> ViewOutput:
    """Returns the output of the withheld keys of a view, beside its own."""
    of_view = f".{output.view}" if output.partition_by else ""
    name = quarantine_of(output.name + of_view)
    if output.kind not in (SinkKind.KAFKA, SinkKind.OPENSEARCH):
        name = f"{output.name}_quarantine"
    view, of = quarantine_of(output.view), output.view
    return ViewOutput(view, name, output.partitions, kind=output.kind, withheld_of=of)


def _check_indexes(definition: PipelineDefinition, error: MakeError) -> None:
    """Refuses names that a cluster refuses for indexes, and those of aliases for ledgers and readers."""
    indexes = [output for output in definition.outputs if output.kind is SinkKind.OPENSEARCH]
    names = [("outputs", f"index of view {output.view!r}", output.name) for output in indexes]
    for key, what, name in (*names, ("name", "an index is named after it", definition.name)) if names else ():
        taken = ("slackwater.", f"{definition.base_name}.") if key == "outputs" else ("slackwater.",)
        if not _INDEX_NAME.fullmatch(name) or name.startswith(taken):
            problem = "expected lower-case letters, digits, '_', '-' and '.', at most 150"
            hint = f"begin with a letter or digit, and not with {' or '.join(map(repr, taken))}"
            raise error(key, f"{what}: {name!r}: {problem}", hint)


def check_places(outputs: Sequence[ViewOutput], error: MakeError) -> None:
    """Refuses outputs that write the same topic or table, unless they are partitioned by a column."""
    taken: dict[tuple[SinkKind, str], ViewOutput] = {}
    for output in outputs:
        for place in _own_places(output):
            writer = taken.setdefault((output.kind, place), output)
            is_shared = writer.name == output.name and writer.partition_by and output.partition_by
            if writer.view != output.view and not is_shared:
                is_topic = output.kind is SinkKind.KAFKA
                what = {SinkKind.KAFKA: "topic", SinkKind.OPENSEARCH: "index"}.get(output.kind, "table")
                problem = f"both write {what} {place!r}"
                hint = f"give each view its own{_SHARING if is_topic else ''}"
                raise error("outputs", f"{writer.view} and {output.view} {problem}", hint)
    for output in outputs:
        for place in _shared_places(output):
            if (output.kind, place) in taken:
                what = f"writes topic {place!r}, which describes the transactions of {output.view}"
                writer = taken[output.kind, place]
                raise error("outputs", f"{writer.view} {what}", "use another name")


def _check_partitioned(definition: PipelineDefinition, error: MakeError) -> None:
    """Refuses views whose documents a column cannot distribute, and those that cannot share a topic."""
    shared: dict[str, list[tuple[ViewOutput, PublishedView]]] = {}
    for output, view in zip(definition.outputs, definition.plan.views, strict=True):
        if output.partition_by and (found := _unfit_for_partitions(output, view)):
            where = f"view {view.name!r}: partition_by = {output.partition_by!r}"
            raise error("outputs", f"{where}: {found[0]}", found[1])
        if output.partition_by:
            shared.setdefault(output.name, []).append((output, view))
    for topic, views in shared.items():
        for one, other in combinations(views, 2):
            if found := _cannot_share(definition.scope, one, other):
                where = f"views {one[0].view!r} and {other[0].view!r} share topic {topic!r}"
                raise error("outputs", f"{where}: {found[0]}", found[1])


_Found = tuple[str, str]
"""A problem and a hint."""


def _unfit_for_partitions(output: ViewOutput, view: PublishedView) -> _Found | None:
    """Returns why a column cannot determine the partitions of a view's documents."""
    column, types = output.partition_by, {each.name: each.type for each in view.outputs}
    if output.is_source or output.key_format is not KeyFormat.JSON:
        hint = 'remove it, or key_format and format = "debezium"'
        return "the keys of the output are not JSON objects as in documents", hint
    if column not in view.key or column not in types:
        hint = f"the view selects {', '.join(types)}; select it once, and key a function by it"
        return "expected a column of documents and key", hint
    if types[column] in _SEVERAL_TEXTS or is_nested(types[column]):
        hint = "cast the column to text in the view"
        return f"documents may contain equal values of type {types[column]} as different texts", hint
    return None


def _cannot_share(
    scope: Scope, one: tuple[ViewOutput, PublishedView], other: tuple[ViewOutput, PublishedView]
) -> _Found | None:
    """Returns why two views that are partitioned by columns cannot have one topic."""
    output, keys = one[0], [", ".join(sorted(view.key)) for _, view in (one, other)]
    if scope is not Scope.STRICT:
        return "in this scope, documents of a batch are of different commits", 'set scope = "strict"'
    for name in ("format", "commit_format", "cloudevents", "partitions", "subject_strategy"):
        if getattr(output, name) != getattr(other[0], name):
            return f"they differ in {name}", "set it to the same value in both"
    if output.has_schemas and output.subject_strategy is SubjectStrategy.TOPIC:
        hint = 'set subject_strategy = "topic-record" or "record" in both'
        return "the subject that is named after the topic is that of one schema", hint
    types = [next(c.type for c in view.outputs if c.name == o.partition_by) for o, view in (one, other)]
    if types[0] != types[1]:
        hint = "equal values have to be written alike: cast one of the columns"
        return f"their columns partition_by are of types {types[0]} and {types[1]}", hint
    if keys[0] == keys[1]:
        hint = "give a column of one of the keys another name with AS"
        return f"both have the key {keys[0]}, so a document of one would replace one of the other", hint
    return None


def _check_tables(definition: PipelineDefinition, tables: Sequence[int], error: MakeError) -> None:
    """Refuses outputs that are to be tables of a source and cannot be tables of one."""
    needs = 'format = "debezium" needs'
    if definition.emit is not Emit.TRANSACTIONS:
        hint = 'set emit = "transactions": each event then belongs to a transaction of the database'
        raise error("emit", f"{needs} every transaction", hint)
    if definition.scope is not Scope.STRICT:
        hint = 'set scope = "strict": BEGIN and END describe whole transactions'
        raise error("scope", f"{needs} whole transactions", hint)
    outputs = [definition.outputs[number] for number in tables]
    for output in outputs:
        if not _SOURCE_TOPIC.fullmatch(output.name):
            hint = "schema and table may contain letters, digits and '_', at most 63 each"
            problem = f"{output.name!r}: expected prefix.schema.table, as Debezium names topics"
            raise error("outputs", f"view {output.view!r}: {problem}", hint)
        if output.key_format is not KeyFormat.JSON:
            hint = "remove it: other pipelines read such a topic like that of a connector"
            problem = f"key_format {str(output.key_format)!r} cannot be combined with format 'debezium'"
            raise error("outputs", f"view {output.view!r}: {problem}", hint)
    prefixes = sorted({output.prefix for output in outputs})
    if len(prefixes) > 1:
        problem = f"the topics have different prefixes: {' and '.join(map(repr, prefixes))}"
        raise error("outputs", problem, "a source has one prefix: <prefix>.<schema>.<table>")
    if prefixes[0] == definition.source:
        problem = f"{prefixes[0]!r} is the prefix of the source that is read"
        hint = 'an output that is a source needs its own prefix: set topic = "<prefix>.<schema>.<table>"'
        raise error("source", problem, hint)
    for view in (definition.plan.views[number] for number in tables):
        selected = {column.name for column in view.outputs}
        lacks = [f"its key has column {n!r}, which it does not select" for n in view.key if n not in selected]
        if lacks or not view.key:
            hint = "a table of a source needs a primary key: select all columns of the key"
            raise error("outputs", f"view {view.name!r}: {lacks[0] if lacks else 'it has no key'}", hint)


def _own_places(output: ViewOutput) -> tuple[str, ...]:
    """Returns the names of everything that an output writes."""
    if output.kind is SinkKind.OPENSEARCH:
        return (output.name, index_of(output.name))
    if output.kind is not SinkKind.KAFKA:
        return (output.name, *((output.name + HISTORY_SUFFIX,) if output.history else ()))
    in_avro = (avro_commit_topic(output.name),) if output.commit_format is CommitFormat.AVRO else ()
    return (output.name, commit_topic(output.name), *in_avro)


def _shared_places(output: ViewOutput) -> tuple[str, ...]:
    """Returns the names of everything that an output writes together with others."""
    topics = SourceTopics(output.prefix)
    return (topics.transactions, topics.notifications) if output.is_source else ()


def _check_topics(definition: PipelineDefinition, error: MakeError) -> None:
    """Refuses tables and outputs that would share a topic that has another purpose."""
    topics = definition.source_topics
    for shared in shared_topics(topics, definition.tables):
        raise error("source", f"table {shared.table}: {shared.text}", shared.hint)
    inputs = {topics.data(table): f"the topic of table {table}" for table in definition.tables}
    inputs[topics.transactions] = "the transaction topic of the source"
    inputs[topics.notifications] = "the topic of the connector's notifications"
    for output in definition.outputs:
        if output.kind is not SinkKind.KAFKA:
            continue
        for place in (*_own_places(output), *_shared_places(output)):
            used = inputs.get(place) or _purpose_of(place, definition.source)
            if used:
                problem = f"view {output.view!r} cannot write topic {place!r}, which is {used}"
                raise error("outputs", problem, "use another name for the topic")


def _purpose_of(topic: str, source: str) -> str:
    if is_reserved_topic(topic):
        return "reserved for the records of Slackwater, Kafka or a connector"
    if _SOURCE_TOPIC.fullmatch(topic) and topic.rsplit(".", 2)[0] == source:
        return f"a table of source {source!r} by its name"
    return ""


def pipeline_definition(  # noqa: PLR0913 - keyword-only
    *,
    name: str,
    source: str,
    catalog: Catalog,
    views: Mapping[str, str],
    emit: Emit = Emit.LATEST,
    buckets: int | None = None,
    outputs: Sequence[ViewOutput] | None = None,
    dialect: Dialect = Dialect.DUCKDB,
) -> PipelineDefinition:
    """Returns a pipeline without a folder. Without outputs, each view is JSON in the topic of its name.

    Raises:
        ConfigError: An output cannot have its form.
        SqlTextError: A view is not supported; the error contains the position.
    """
    outputs = tuple(map(ViewOutput, views, views)) if outputs is None else tuple(outputs)
    outputs = tuple(
        replace(
            each,
            format=Format(each.format),
            key_format=KeyFormat(each.key_format),
            commit_format=CommitFormat(each.commit_format),
            subject_strategy=SubjectStrategy(each.subject_strategy),
            on_error=ErrorPolicy(each.on_error),
        )
        for each in outputs
    )
    texts = tuple((f"{view}.sql", text) for view, text in views.items())
    sql = PipelineSql(catalog, texts, partition_columns(outputs), dialect)
    definition = PipelineDefinition(
        name=name,
        source=source,
        emit=emit,
        buckets=buckets,
        outputs=outputs,
        plan=sql.plan([output.view for output in outputs]),
        sql=sql,
    )
    return checked(definition, lambda key, text, hint: ConfigError(f"pipeline {name!r}: {key}: {text}", hint))


def partition_columns(outputs: Iterable[ViewOutput]) -> dict[str, str]:
    """Returns by view the column that determines the partition of its documents."""
    return {each.view: each.partition_by for each in outputs if each.partition_by}


def table_names(plan: EnginePlan) -> tuple[str, ...]:
    """Returns the full names of the tables that the plan reads, each once, in order."""
    return tuple(sorted({each.table.full_name for each in table_inputs(plan)}))


def used_columns(plan: EnginePlan) -> dict[str, frozenset[str]]:
    """Returns the full names of the tables that the plan reads, each with the columns that it needs."""
    used: dict[str, frozenset[str]] = {}
    for each in table_inputs(plan):
        columns = (*each.column_names, *each.table.primary_key)
        used[each.table.full_name] = used.get(each.table.full_name, frozenset()).union(columns)
    return used


def needed_columns(plan: EnginePlan) -> list[tuple[Table, Column]]:
    """Returns the columns that the plan needs, each once."""
    used = used_columns(plan)
    return list(
        {
            (each.table.full_name, column.name): (each.table, column)
            for each in table_inputs(plan)
            for column in each.table.columns
            if column.name in used[each.table.full_name]
        }.values()
    )


def table_inputs(plan: EnginePlan, stages: Collection[int] | None = None) -> Iterator[InputPlan]:
    """Yields the inputs of some stages, or of all, that are tables, once for each use of a table."""
    for stage in plan.stages:
        if stage.rows is not None and (stages is None or stage.number in stages):
            yield from (each for each in stage.rows.inputs if not each.origin)


def keys_move(plan: EnginePlan, view: int) -> bool:
    """Returns whether a document may move from one key of its view's last stage to another."""
    if plan.views[view].withheld_of:
        return False
    outputs = ((stage, stage.output) for stage in plan.stages)
    (last,) = (stage for stage, o in outputs if isinstance(o, DocumentsOutput) and o.view == view)
    return last.accumulate is None and last.rows is not None and last.rows.latest_statement is None


def pipeline_fingerprint(definition: PipelineDefinition, timeline: int) -> Fingerprint:
    """Returns what a state means that a pipeline keeps of a timeline; its number of buckets is known.

    The topics and fingerprints of views must not change. The facts show a person what has changed.
    """
    views = zip(definition.plan.views, definition.outputs, strict=True)
    return {
        "version": STATE_VERSION,
        "name": definition.name,
        "revision": definition.revision,
        "source": definition.source,
        "timeline": str(timeline),
        "scope": str(definition.scope),
        "emit": str(definition.emit),
        "buckets": str(definition.buckets),
        "stages": fingerprint(definition.plan.stages),
        "views": {
            view.name: {
                "topic": _place_and_form(output),
                "fingerprint": view.fingerprint,
                "facts": _facts(definition.plan, view),
            }
            for view, output in views
        },
    }


def rights_of(definition: PipelineDefinition) -> list[Right]:
    """Returns the rights that the runs of a pipeline need."""
    outputs = {
        each.name: each.prefix if each.is_source else ""
        for each in definition.outputs
        if each.kind is SinkKind.KAFKA
    }
    inputs = definition.source_topics
    is_latest = definition.emit is Emit.LATEST
    in_avro = [each.name for each in definition.outputs if each.commit_format is CommitFormat.AVRO]
    return pipeline_rights(
        definition.name, inputs, definition.tables, outputs, is_latest=is_latest, avro_commits_of=in_avro
    )


def _place_and_form(output: ViewOutput) -> str:
    forms = [] if output.format is Format.JSON else [str(output.format)]
    forms += [] if output.key_format is KeyFormat.JSON else [f"keys {output.key_format}"]
    forms += [] if output.commit_format is CommitFormat.JSON else [f"commits {output.commit_format}"]
    forms += [f"partitioned by {output.partition_by}"] if output.partition_by else []
    own_subjects = output.subject_strategy is not SubjectStrategy.TOPIC
    forms += [f"subjects {output.subject_strategy}"] if own_subjects else []
    return f"{output.name} ({', '.join(forms)})" if forms else output.name


def _facts(plan: EnginePlan, view: PublishedView) -> dict[str, str]:
    """Returns the record key of a view and the types of its outputs and of the columns that it uses."""
    facts = {"record key": ", ".join(view.key)}
    facts |= {f"output {each.name}": each.type for each in view.outputs}
    for each in table_inputs(plan, view.stages):
        table = each.table.full_name
        for column in each.columns:
            facts[f"column {table}.{column.name}"] = str(column)
        facts[f"primary key of {table}"] = ", ".join(each.table.primary_key)
    return facts
