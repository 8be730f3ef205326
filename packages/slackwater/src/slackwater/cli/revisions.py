"""Revisions of a pipeline as they registered themselves: compared, and switched between."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

from slackwater.cdc.envelope import End, decode_transaction
from slackwater.cli.given_pipelines import (
    INDEXES,
    KINDS,
    NamedPipeline,
    open_cluster,
    open_lake,
    tables_url,
    views_in_output,
)
from slackwater.cli.topics import known_topics, read_to_end
from slackwater.client.readers import Readers, Switched
from slackwater.client.topic_views import TopicReaders
from slackwater.command.invocation import kafka_settings
from slackwater.control import KnownRun, PipelineState, Progress, Topology, first_source, known_pipelines
from slackwater.protocol import (
    InputError,
    KafkaSettings,
    PipelineEntry,
    PipelineRegistration,
    ReaderSwitch,
    RegisteredView,
)
from slackwater.protocol.keys import transaction_topic
from slackwater.settings.errors import CommandConfigError, unknown
from slackwater.settings.model import Settings

OneDatabase = Callable[[str, str], bool]
"""Whether two sources follow one database: the commits of both then have one order, that of its LSNs."""

_BESIDE = "start the new one beside the old one: docs/revisions.md"
_NEWEST = 10_000
"""The number of newest records of a partition of a transaction topic that are compared."""


@dataclass(frozen=True, slots=True)
class RevisionPair:
    """An older and a newer revision of a pipeline."""

    old: PipelineRegistration
    new: PipelineRegistration
    first_source: str
    """The source at the beginning of the chain that they are in; its commits are those of both.

    Of two sources that follow one database, the old one's."""

    @property
    def views(self) -> Sequence[str]:
        """The views that both have, by name."""
        return sorted(_views(self.old).keys() & _views(self.new).keys())

    @property
    def views_of_one(self) -> Sequence[str]:
        """The views that only one of them has, by name."""
        return sorted(_views(self.old).keys() ^ _views(self.new).keys())

    def of_view(self, view: str) -> tuple[RegisteredView, RegisteredView]:
        """Returns how the old one and the new one publish a view that both have."""
        return _views(self.old)[view], _views(self.new)[view]


class Registered:
    """The revisions of pipelines, and the chains that they are in, as they have registered themselves."""

    def __init__(
        self, entries: Iterable[PipelineEntry], now_ms: int, is_one_database: OneDatabase = lambda *_: False
    ) -> None:
        self._runs = known_pipelines(entries, now_ms)
        self._is_one_database = is_one_database

    def revisions(self, name: str) -> Mapping[int, KnownRun]:
        """Returns the revisions of a pipeline, which is named without one, by number; each with its last run.

        Raises:
            InputError: There is none.
        """
        found = self._named(name)
        if not found:
            names = (run.registration.base_name for run in self._runs)
            raise unknown("pipeline", name, names, "use the name without .v<revision>")
        return found

    def revision(self, name: str, number: int) -> PipelineRegistration:
        """Returns one revision of a pipeline.

        Raises:
            InputError: It is not there.
        """
        found = self.revisions(name)
        if number not in found:
            problem = f"pipeline {name!r} has no revision {number}; registered: {', '.join(map(str, found))}"
            raise InputError(problem, _BESIDE)
        return found[number].registration

    def pair(self, name: str, numbers: tuple[int, int] | None) -> RevisionPair:
        """Returns two revisions of a pipeline: the older and the newer one; None: the two newest ones.

        Raises:
            InputError: They are not there; or commits do not show their views together, since they read
                sources of several databases or have scope ``aggregate``.
        """
        wanted = numbers or tuple(self.revisions(name))[-2:]
        if len(set(wanted)) < 2:
            raise InputError(f"pipeline {name!r} has fewer than two revisions: {wanted[0]}", _BESIDE)
        old, new = (self.revision(name, number) for number in wanted)
        first = self._common_source([old, new])
        if first is None:
            raise InputError(
                f"the revisions are of two sources: {old.source} and {new.source}",
                "commits of two databases have no common order; of one database they have, once both "
                "connectors have seen a transaction since the later one began, and if both sources are at "
                "one timeline",
            )
        for each in (old, new):
            if each.scope != "strict":
                raise InputError(
                    f"pipeline {each.pipeline!r} has scope {each.scope!r}: no commit shows both revisions",
                    "each of its documents is of a commit of its own; docs/views.md#scope says more",
                )
        return RevisionPair(old, new, first)

    def source(self, name: str) -> str | None:
        """Returns the source whose commits all revisions of a pipeline have; None: there is none."""
        return self._common_source([run.registration for run in self._named(name).values()])

    def derived_from(self, source: str) -> list[PipelineRegistration]:
        """Returns all pipelines that read a source, directly or in chains.

        Raises:
            InputError: There is none.
        """
        first = {
            run.registration.pipeline: first_source(self._runs, run.registration.source) for run in self._runs
        }
        found = [run.registration for run in self._runs if first[run.registration.pipeline] == source]
        if not found:
            raise unknown("source", source, first.values(), "name the one at the beginning of the chain")
        return found

    def _named(self, name: str) -> dict[int, KnownRun]:
        found: dict[int, KnownRun] = {}
        for run in self._runs:
            own = run.registration.as_revision_of(name)
            # Functions that are given documents are pipelines named after the checkpoint, without outputs.
            if own is None or "/" in own.pipeline:
                continue
            other = found.setdefault(own.revision, replace(run, registration=own)).registration
            if other.pipeline != own.pipeline:
                raise InputError(
                    f"{other.pipeline!r} and {own.pipeline!r} are both revision {own.revision} of {name!r}",
                    "raise `revision` of one of them, and remove what it has published: "
                    "slackwater pipeline delete NAME --outputs",
                )
        return dict(sorted(found.items()))

    def _common_source(self, registrations: Sequence[PipelineRegistration]) -> str | None:
        """Returns the first one's source at the beginning, if the others' commits are of the same order."""
        sources = list(dict.fromkeys(first_source(self._runs, each.source) for each in registrations))
        if not sources or (len(sources) > 1 and len({each.timeline for each in registrations}) > 1):
            return None
        return sources[0] if all(self._is_one_database(sources[0], other) for other in sources[1:]) else None


def named_pipeline(registration: PipelineRegistration) -> NamedPipeline:
    """Returns the pipeline with its outputs, to be opened.

    Raises:
        InputError: Its outputs cannot be read, or it has outputs of several kinds.
    """
    kinds = {view.kind for view in registration.views}
    if len(kinds) != 1 or not kinds <= {*KINDS, INDEXES}:
        raise InputError(
            f"the outputs of pipeline {registration.pipeline!r} are of kind {', '.join(sorted(kinds))}",
            f"what can be read are outputs of one of {', '.join(KINDS)}",
        )
    kind = kinds.pop()
    names = views_in_output(kind, {view.name: view.output for view in registration.views})
    return NamedPipeline(registration.pipeline, kind, names, registration.scope == "strict")


def _views(registration: PipelineRegistration) -> Mapping[str, RegisteredView]:
    return {view.name: view for view in registration.views}


def have_one_history(first: Iterable[End], second: Iterable[End]) -> bool:
    """Returns whether two lists of transactions can only be of one database.

    They are if a transaction is in both, with its number and its commit LSN, and no other one contradicts it:
    a copy of a database continues with the same numbers, and soon gives them to commits at other LSNs.

    The lists are the newest transactions of two connectors, which may capture different tables.
    """
    by_xid, by_lsn = _places(first)
    others_by_xid, others_by_lsn = _places(second)
    common_xids, common_lsns = by_xid.keys() & others_by_xid.keys(), by_lsn.keys() & others_by_lsn.keys()
    return (
        bool(common_xids)
        and all(by_xid[xid] == others_by_xid[xid] for xid in common_xids)
        and all(by_lsn[lsn] == others_by_lsn[lsn] for lsn in common_lsns)
    )


def follow_one_database(kafka: KafkaSettings, first: str, second: str) -> bool:
    """Returns whether the newest transactions of two sources show that they follow one database.

    Also False if that is unknown: a transaction topic is missing, or they have none in common yet.

    Raises:
        UnavailableError: Kafka does not answer.
        UndecodableRecordError: A transaction topic has something else.
    """
    topics = [transaction_topic(source) for source in (first, second)]
    if not known_topics(kafka).issuperset(topics):
        return False
    return have_one_history(*(_newest_ends(kafka, topic) for topic in topics))


def _newest_ends(kafka: KafkaSettings, topic: str) -> Iterable[End]:
    for message in read_to_end(kafka, [topic], newest=_NEWEST):
        value = message.value()
        found = None if value is None else decode_transaction(value)
        if isinstance(found, End):
            yield found


def _places(ends: Iterable[End]) -> tuple[dict[int, int], dict[int, int]]:
    pairs = [(end.xid, end.commit_lsn) for end in ends]
    return dict(pairs), {lsn: xid for xid, lsn in pairs}


def read_by(
    settings: Settings, pipeline: str, kind: str, others: Mapping[str, Sequence[str]]
) -> Mapping[str, str]:
    """Returns the revision that readers read, by where they are. Empty: they were never switched.

    The others are pipelines of other names that are revisions of this one, each with its views there.

    Raises:
        CommandConfigError: Nothing says where the outputs are.
        UnavailableError: A server does not answer.
    """
    if kind == "postgres":
        from slackwater.client.table_views import schemas_of_readers

        found = schemas_of_readers(tables_url(settings, pipeline), pipeline, others)
        return {f"schema {schema}": read for schema, read in found.items()}
    if kind == INDEXES:
        from slackwater.client.search_views import answered, ledger_record, readers_alias

        with answered(cluster := open_cluster(settings, pipeline)):
            record = ledger_record(cluster, readers_alias(pipeline))
        return {} if record is None else {"indexes": record["pipeline"]}
    switch = newest_switch(settings, pipeline, kind)
    return {} if switch is None else {"topics" if kind == "kafka" else "lake": switch.pipeline}


def newest_switch(settings: Settings, pipeline: str, kind: str) -> ReaderSwitch | None:
    """Returns the newest switch of the readers of topics, or of a lake; None: they were never switched.

    Raises:
        CommandConfigError: Nothing says where the outputs are.
        UnavailableError: A server does not answer.
    """
    with _readers(settings, kind, pipeline) as readers:
        return readers.newest_switch()


@contextmanager
def _readers(settings: Settings, kind: str, pipeline: str) -> Iterator[Readers]:
    """Opens what records which revision readers of topics or of a lake read."""
    if kind == "kafka":
        yield TopicReaders(kafka_settings(settings, "where the output is"), pipeline)
        return
    from slackwater.client.lake_views import LakeReaders

    with closing(open_lake(settings, kind, pipeline)) as lake:
        yield LakeReaders(lake, pipeline)


def readers_of(settings: Settings, topology: Topology, name: str) -> dict[str, str]:
    """Returns what readers of a pipeline read, by where they do, for all kinds of its outputs.

    Raises:
        CommandConfigError: Nothing says where the outputs are.
        UnavailableError: A server does not answer.
    """
    nodes = [node for node in topology.pipelines if name in node.base_names]
    kinds = {view.kind for node in nodes for view in node.views}
    others = {node.name: node.revision_of[name] for node in nodes if name in node.revision_of}
    found: dict[str, str] = {}
    for kind in sorted(kinds & {*KINDS, INDEXES}):
        found.update(read_by(settings, name, kind, others))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionStatus:
    """A revision of a pipeline: its state, its progress, and its readers."""

    pipeline: str
    """The name with the revision."""
    revision: int
    state: PipelineState
    progress: Progress
    shows: str | None
    """The commit LSN of its newest batch; None: nothing is visible, as far as is known."""
    behind_ms: int | None
    """By how much that is older than the newest cut, milliseconds; None: not known."""
    caught_up_in_ms: int | None
    """When it will have caught up at the present rate; None if unknown, or never."""
    read_by: tuple[str, ...]
    """Which readers were switched to it."""


def revision_status(
    earlier: Topology, now: Topology, name: str, read: Mapping[str, str]
) -> tuple[RevisionStatus, ...]:
    """Returns the revisions of a pipeline, by number.

    The earlier picture is of some seconds before; for the readers see :func:`read_by`.

    Raises:
        InputError: There is no such pipeline.
    """
    nodes = [node for node in now.pipelines if name in node.base_names and "/" not in node.name]
    if not nodes:
        names = (base for node in now.pipelines for base in node.base_names)
        raise unknown("pipeline", name, names, "use the name without .v<revision>")
    before = {node.run: node.behind_ms for node in earlier.pipelines}
    elapsed_ms = now.made_ms - earlier.made_ms
    return tuple(
        RevisionStatus(
            pipeline=node.name,
            revision=node.revision,
            state=node.state,
            progress=node.progress,
            shows=None if node.batch is None else node.batch.commit_lsn,
            behind_ms=node.behind_ms,
            caught_up_in_ms=time_to_catch_up(before.get(node.run), node.behind_ms, elapsed_ms),
            read_by=tuple(where for where, pipeline in read.items() if pipeline == node.name),
        )
        for node in sorted(nodes, key=lambda node: node.revision)
    )


def time_to_catch_up(before_ms: int | None, behind_ms: int | None, elapsed_ms: int) -> int | None:
    """Returns in how many milliseconds a reader has caught up at its present rate.

    It was behind before, and is now, after a time. None: it is not known, or it does not come closer.
    """
    if before_ms is None or behind_ms is None or before_ms <= behind_ms:
        return None
    return behind_ms * elapsed_ms // (before_ms - behind_ms)


def switch_readers(
    settings: Settings,
    registered: Registered,
    pipeline: str,
    revision: int,
    schema: str | None,
    *,
    accept_earlier: bool,
    timeout: timedelta,
) -> tuple[str, Switched]:
    """Switches readers of a pipeline to a revision; returns where they are, and what was done.

    Only readers of tables in PostgreSQL have views in a schema, and need it. `accept_earlier` allows a
    revision that is behind.

    Raises:
        CommandConfigError: Nothing says where the outputs are, or the schema.
        InputError: There is no such revision, or it has no outputs whose readers can be switched.
        SlackwaterError: Nothing was changed, and it says why.
    """
    registration, source = registered.revision(pipeline, revision), registered.source(pipeline)
    named = named_pipeline(registration)
    name, views = registration.pipeline, named.views
    if registration.scope != "strict":
        raise InputError(
            f"pipeline {name!r} has scope {registration.scope!r}: there is no commit that all of "
            "its documents show",
            "readers cannot be switched at one commit; see docs/views.md#scope",
        )
    if named.kind == "postgres":
        if schema is None:
            raise CommandConfigError(f"pipeline {name!r} has tables in PostgreSQL", "specify --schema")
        from slackwater.client.table_views import switch_tables

        url = tables_url(settings, name)
        names = [run.registration.pipeline for run in registered.revisions(pipeline).values()]
        done = switch_tables(
            url,
            schema,
            name,
            (names, [*views]),
            accept_earlier=accept_earlier,
            source=source,
            timeout=timeout,
        )
        return f"of schema {schema}", done
    if schema is not None:
        raise CommandConfigError(f"pipeline {name!r} has no tables in PostgreSQL", "omit --schema")
    if named.kind == INDEXES and registration.base_name != pipeline:
        raise InputError(
            f"{name!r} has indexes, and another name than {pipeline!r}",
            "readers of indexes are switched between revisions of one name",
        )
    if named.kind == INDEXES:
        from slackwater.client.search_views import switch_indexes

        cluster = open_cluster(settings, name)
        done = switch_indexes(
            cluster, name, views, accept_earlier=accept_earlier, source=source, timeout=timeout
        )
        return f"of the indexes of {registration.base_name}", done
    with _readers(settings, named.kind, pipeline) as readers:
        done = readers.switch(
            name, revision, views, accept_earlier=accept_earlier, source=source, timeout=timeout
        )
    where = "topics" if named.kind == "kafka" else "lake tables"
    return f"of the {where} of {pipeline}", done
