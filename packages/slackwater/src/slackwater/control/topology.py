"""How sources, pipelines and views are connected: a pure function of what pipelines have registered."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

import msgspec

from slackwater.protocol import (
    Cut,
    PipelineEntry,
    PipelineRegistration,
    PipelineReport,
    RegisteredStage,
    RegisteredView,
    StageWork,
    format_position,
)

VANISHED_AFTER = timedelta(seconds=30)
"""A run that is silent for longer, and did not say that it ends, has vanished; it reports every 3 s."""
HELD_FOR = timedelta(minutes=1)
"""How long a name is held after its pipeline reported last, unless it said that it ends."""


class PipelineState(StrEnum):
    """The state of a pipeline, according to its own reports."""

    RUNNING = "running"
    LEFT = "left"
    """Its newest run ended in order."""
    FAILED = "failed"
    """Its newest run ended with an error."""
    VANISHED = "vanished"
    """Its newest run is silent and did not say that it ends: killed, cut off, or its machine is gone."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run of a pipeline, with its reports."""

    registration: PipelineRegistration
    offset: int
    """The registration's, in the topic of pipelines."""
    report: PipelineReport | None
    """The newest one; None: it has not reported yet."""
    last_offset: int
    """The offset of its newest record."""
    heard_ms: int
    """The time of its newest record, milliseconds since the epoch."""

    @property
    def has_ended(self) -> bool:
        """Whether it said that it ends."""
        return self.report is not None and self.report.end is not None

    def state(self, now_ms: int) -> PipelineState:
        """Returns what the run does at a time."""
        end = None if self.report is None else self.report.end
        if end is not None:
            return PipelineState.FAILED if end.failure else PipelineState.LEFT
        is_silent = now_ms - self.heard_ms > VANISHED_AFTER / timedelta(milliseconds=1)
        return PipelineState.VANISHED if is_silent else PipelineState.RUNNING

    def holds_name(self, now_ms: int) -> bool:
        """Returns whether the run may still be active, so that no other pipeline may use its name."""
        return not self.has_ended and now_ms - self.heard_ms <= HELD_FOR / timedelta(milliseconds=1)


def known_runs(entries: Iterable[PipelineEntry]) -> list[KnownRun]:
    """Returns every run that has registered, by name and id; the order of entries does not matter."""
    registrations: dict[tuple[str, str], PipelineEntry] = {}
    reports: dict[tuple[str, str], PipelineEntry] = {}
    for entry in entries:
        record = entry.record
        newest = registrations if isinstance(record, PipelineRegistration) else reports
        key = (record.pipeline, record.run)
        if key not in newest or newest[key].offset < entry.offset:
            newest[key] = entry
    return [_known(registrations[key], reports.get(key)) for key in sorted(registrations)]


def known_pipelines(entries: Iterable[PipelineEntry], now_ms: int) -> list[KnownRun]:
    """Returns one run for each name, by name: the last one that runs, else the one heard of last."""
    chosen: dict[str, KnownRun] = {}
    for run in known_runs(entries):
        name = run.registration.pipeline
        if name not in chosen or _rank(chosen[name], now_ms) < _rank(run, now_ms):
            chosen[name] = run
    return list(chosen.values())


def first_source(runs: Iterable[KnownRun], source: str) -> str:
    """Returns the source at the beginning of a chain: one that no pipeline writes."""
    by_source = {
        view.output_source: run.registration
        for run in runs
        for view in run.registration.views
        if view.output_source
    }
    seen = {source}
    while source in by_source and by_source[source].source not in seen:
        source = by_source[source].source
        seen.add(source)
    return source


def holder_of(
    registration: PipelineRegistration,
    entries: Iterable[PipelineEntry],
    now_ms: int,
    *,
    before: int | None = None,
) -> KnownRun | None:
    """Returns the run that keeps another one from using its name; None if there is none.

    A run with another checkpoint holds the name while it runs; and for good if it has other outputs, or reads
    another source, for it is then of another pipeline. Runs with the same checkpoint never hold it.

    Only runs count that registered below the offset `before`. Of several that begin in one moment, all of
    which register before they ask, exactly the first one finds nobody.
    """
    for other in known_runs(entries):
        by = other.registration
        if by.pipeline != registration.pipeline or by.query_id == registration.query_id:
            continue
        is_later = before is not None and other.offset >= before
        if not is_later and (other.holds_name(now_ms) or _is_another_pipeline(by, registration)):
            return other
    return None


def superseded(
    registration: PipelineRegistration, entries: Iterable[PipelineEntry], now_ms: int, before: int
) -> list[KnownRun]:
    """Returns the runs whose place a run takes: earlier ones of its name, registered below an offset.

    Those that may still be running are left out: the run has their checkpoint, and will overtake them.
    """
    return [
        other
        for other in known_runs(entries)
        if other.registration.pipeline == registration.pipeline
        and other.offset < before
        and not other.holds_name(now_ms)
    ]


def _known(entry: PipelineEntry, reported: PipelineEntry | None) -> KnownRun:
    registration, report = entry.record, None if reported is None else reported.record
    assert isinstance(registration, PipelineRegistration)  # noqa: S101 - sorted by kind
    if reported is None or not isinstance(report, PipelineReport):
        return KnownRun(registration, entry.offset, None, entry.offset, entry.written_ms)
    last_offset = max(entry.offset, reported.offset)
    heard_ms = max(entry.written_ms, reported.written_ms)
    return KnownRun(registration, entry.offset, report, last_offset, heard_ms)


def _rank(run: KnownRun, now_ms: int) -> tuple[bool, int]:
    is_running = run.state(now_ms) is PipelineState.RUNNING
    return is_running, run.offset if is_running else run.last_offset


def _is_another_pipeline(one: PipelineRegistration, other: PipelineRegistration) -> bool:
    return one.source != other.source or _outputs(one) != _outputs(other)


def _outputs(registration: PipelineRegistration) -> set[tuple[str, str]]:
    return {(view.kind, view.output) for view in registration.views}


NOT_KNOWN: Mapping[str, int] = {}


class Progress(StrEnum):
    """How far a pipeline's views are, beside the newest cut of its source."""

    NOTHING_YET = "nothing yet"
    """Nothing is visible, as far as is known."""
    UP_TO_DATE = "up to date"
    BEHIND = "behind"
    TIMELINE_OVER = "timeline over"
    """The source has begun a newer timeline; the pipeline has to start over."""
    UNKNOWN = "unknown"
    """The newest cut of the source is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCut:
    """The newest cut of a source."""

    timeline: int
    commit_lsn: str
    """As PostgreSQL writes it."""
    commit_ts_ms: int
    """Commit time of the newest transaction, milliseconds since the epoch."""
    ended_ms: int | None
    """When the connector wrote that transaction's END, milliseconds since the epoch; None: not known."""
    written_ms: int | None
    """When the sidecar has written the cut, milliseconds since the epoch; None: not known."""
    previous_lsn: str
    """The commit of the cut before, as PostgreSQL writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """A source, as far as pipelines read or write it."""

    name: str
    cut: SourceCut | None
    """None: there is none, or it is not known."""
    tables: Mapping[str, str]
    """Full name and topic of each table that a pipeline reads or writes."""
    read_by: tuple[str, ...]
    """Names of pipelines."""
    written_by: tuple[str, ...]
    """Names of the pipelines whose outputs are its tables; none: a database's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleBatch:
    """The newest visible batch of a pipeline."""

    batch_id: int
    timeline: int
    commit_lsn: str
    """As PostgreSQL writes it: the views show everything up to and including this commit."""
    commit_ts_ms: int | None
    """Commit time of its newest transaction, milliseconds since the epoch; None: not known to this run."""
    visible_ms: int | None
    """The time at which it was visible, milliseconds since the epoch; None as before."""
    parts_us: Mapping[str, int]
    """Microseconds by part, one after the other."""
    stage_work: tuple[StageWork, ...]
    """What each stage has cost; empty: not known."""
    events: int
    documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineNode:
    """A pipeline."""

    name: str
    """With the revision."""
    base_name: str
    revision: int
    owner: str
    """Empty: nobody is named."""
    source: str
    timeline: int
    """The timeline that is read."""
    emit: str
    scope: str
    state: PipelineState
    failure: str
    """The error that ended the newest run; empty: none did."""
    started_ms: int
    """The start of the newest run, milliseconds since the epoch."""
    heard_ms: int
    """The time of its newest record, milliseconds since the epoch."""
    ended_ms: int | None
    """Its end, milliseconds since the epoch; None: it has not said that it ends."""
    progress: Progress
    behind_ms: int | None
    """By how much the newest commit of its views is older than that of the newest cut, milliseconds; None:
    not known."""
    batch: VisibleBatch | None
    """None: nothing is visible, as far as is known."""
    state_bytes: Mapping[str, int]
    """Bytes that each stage keeps, by its number; empty: not known."""
    withheld: Mapping[str, int]
    """By view, the number of keys that are withheld because they cannot be evaluated; empty: none ever is."""
    processed_lsn: str | None
    """The commit up to which the newest run has computed its views, visible or not; None: not known."""
    run_events: int
    """Change events in all batches of the newest run."""
    run_documents: int
    """Documents written by it, deletes included."""
    tables: Mapping[str, str]
    """Full name and topic of each table that is read."""
    stages: tuple[RegisteredStage, ...]
    views: tuple[RegisteredView, ...]
    host: str
    pid: int
    version: str
    query_id: str
    checkpoint: str
    run: str
    revision_of: Mapping[str, tuple[str, ...]]
    """Other pipelines that this is the same revision of: their names without it, each with its views here."""

    @property
    def base_names(self) -> tuple[str, ...]:
        """The names of all pipelines that this is a revision of."""
        return (self.base_name, *self.revision_of)


@dataclass(frozen=True, slots=True)
class Link:
    """A view of a pipeline that is a table to another one."""

    pipeline: str
    view: str
    topic: str
    source: str
    """The source whose table the view's output is."""
    table: str
    read_by: str
    """The name of the pipeline that reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Sources, pipelines, and the links between pipelines."""

    made_ms: int
    """The time of the picture, milliseconds since the epoch."""
    sources: tuple[SourceNode, ...]
    """Sources come before those that are made of them, where that is possible; else by name."""
    pipelines: tuple[PipelineNode, ...]
    """By name."""
    links: tuple[Link, ...]

    def of_source(self, source: str) -> "Topology":
        """Returns the part that begins at a source: its pipelines, what they write, and who reads that."""
        names, wanted = {node.name: node for node in self.sources}, list[str]()
        pending = [source]
        written = {p.name: [n.name for n in self.sources if p.name in n.written_by] for p in self.pipelines}
        while pending:
            name = pending.pop()
            if name in wanted or name not in names:
                continue
            wanted.append(name)
            pending += [other for reader in names[name].read_by for other in written[reader]]
        kept = {reader for name in wanted for reader in names[name].read_by}
        return replace(
            self,
            sources=tuple(node for node in self.sources if node.name in wanted),
            pipelines=tuple(node for node in self.pipelines if node.name in kept),
            links=tuple(link for link in self.links if link.pipeline in kept and link.read_by in kept),
        )


def make_topology(
    entries: Iterable[PipelineEntry],
    cuts: Mapping[str, Cut],
    now_ms: int,
    sources: Iterable[str] = (),
    *,
    written_ms: Mapping[str, int] = NOT_KNOWN,
) -> Topology:
    """Computes the picture from the topic of pipelines, in any order, at a time in ms since the epoch.

    Of each source its newest cut is given, and when that was written, as far as they are known. The given
    sources are shown although no pipeline may read them.
    """
    known = known_pipelines(entries, now_ms)
    registrations = [each.registration for each in known]
    return Topology(
        made_ms=now_ms,
        sources=_sources(registrations, cuts, written_ms, [*sources, *cuts]),
        pipelines=tuple(_pipeline(each, cuts.get(each.registration.source), now_ms) for each in known),
        links=tuple(_links(registrations)),
    )


def _sources(
    registrations: Sequence[PipelineRegistration],
    cuts: Mapping[str, Cut],
    written_ms: Mapping[str, int],
    others: Iterable[str],
) -> tuple[SourceNode, ...]:
    tables: dict[str, dict[str, str]] = {name: {} for name in others}
    read_by: dict[str, list[str]] = {}
    written_by: dict[str, dict[str, None]] = {}
    for each in registrations:
        tables.setdefault(each.source, {}).update(each.tables)
        read_by.setdefault(each.source, []).append(each.pipeline)
        for view in each.views:
            if view.output_source:
                tables.setdefault(view.output_source, {})[_table_of(view)] = view.output
                written_by.setdefault(view.output_source, {})[each.pipeline] = None
    nodes = {
        name: SourceNode(
            name=name,
            cut=_cut(cuts.get(name), written_ms.get(name)),
            tables=dict(sorted(tables[name].items())),
            read_by=tuple(read_by.get(name, ())),
            written_by=tuple(written_by.get(name, ())),
        )
        for name in sorted(tables)
    }
    return tuple(_in_order(nodes, {each.pipeline: each.source for each in registrations}))


def _in_order(nodes: Mapping[str, SourceNode], source_of: Mapping[str, str]) -> Iterable[SourceNode]:
    """Puts sources before those that are made of them; a cycle, which nothing forbids, is cut anywhere."""
    done: dict[str, SourceNode] = {}

    def visit(name: str, above: frozenset[str]) -> None:
        if name in done or name in above:
            return
        for writer in nodes[name].written_by:
            visit(source_of[writer], above | {name})
        done.setdefault(name, nodes[name])

    for name in nodes:
        visit(name, frozenset())
    return done.values()


def _cut(cut: Cut | None, written_ms: int | None) -> SourceCut | None:
    if cut is None:
        return None
    return SourceCut(
        timeline=cut.timeline,
        commit_lsn=format_position(cut.lsn),
        commit_ts_ms=cut.commit_ts_ms,
        ended_ms=cut.ended_ms or None,
        written_ms=written_ms or None,
        previous_lsn=format_position(cut.previous_lsn),
    )


def _table_of(view: RegisteredView) -> str:
    """Returns the full name of the table that an output is to its readers."""
    return view.output.removeprefix(f"{view.output_source}.")


def _links(registrations: Sequence[PipelineRegistration]) -> Iterable[Link]:
    """Finds the views that others read by their topics: a table may be routed to any."""
    written = {
        (view.output_source, view.output): (each.pipeline, view.name)
        for each in registrations
        for view in each.views
        if view.output_source
    }
    for reader in registrations:
        for table, topic in reader.tables.items():
            if (writer := written.get((reader.source, topic))) is not None:
                yield Link(*writer, topic, reader.source, table, reader.pipeline)


def _pipeline(known: KnownRun, cut: Cut | None, now_ms: int) -> PipelineNode:
    own = known.registration
    report = known.report or _nothing_yet(own)
    end, lsn = report.end, report.processed_lsn
    found = {
        "name": own.pipeline,
        "state": known.state(now_ms),
        "failure": "" if end is None else end.failure,
        "heard_ms": known.heard_ms,
        "ended_ms": None if end is None else end.ended_ms,
        "progress": _progress(own, report, cut),
        "behind_ms": _behind_ms(report, cut),
        "batch": None if report.batch_id < 0 else _batch(report),
        "processed_lsn": None if lsn is None else format_position(lsn),
    }
    return PipelineNode(**_same(PipelineNode, report) | _same(PipelineNode, own) | found)


def _nothing_yet(run: PipelineRegistration) -> PipelineReport:
    return PipelineReport(pipeline=run.pipeline, run=run.run, batch_id=-1, timeline=0, commit_lsn=0)


def _same(kind: type[PipelineNode | VisibleBatch], record: object) -> dict[str, Any]:
    """Returns the fields of a record that a picture of it has under the same names."""
    own = {each.name for each in fields(record)}  # type: ignore[arg-type]
    return {each.name: getattr(record, each.name) for each in fields(kind) if each.name in own}


def _batch(report: PipelineReport) -> VisibleBatch:
    return VisibleBatch(**{**_same(VisibleBatch, report), "commit_lsn": format_position(report.commit_lsn)})


def _progress(registration: PipelineRegistration, report: PipelineReport, cut: Cut | None) -> Progress:
    if cut is not None and registration.timeline < cut.timeline:
        return Progress.TIMELINE_OVER
    if report.batch_id < 0:
        return Progress.NOTHING_YET
    if cut is None:
        return Progress.UNKNOWN
    shown = (report.timeline, report.commit_lsn)
    return Progress.UP_TO_DATE if shown >= (cut.timeline, cut.lsn) else Progress.BEHIND


def _behind_ms(report: PipelineReport, cut: Cut | None) -> int | None:
    if cut is None or report.batch_id < 0 or report.timeline < cut.timeline:
        return None
    if (report.timeline, report.commit_lsn) >= (cut.timeline, cut.lsn):
        return 0
    return None if report.commit_ts_ms is None else max(0, cut.commit_ts_ms - report.commit_ts_ms)


def topology_schema() -> dict[str, Any]:
    """Returns the JSON Schema of what ``slackwater topology --json`` prints."""
    return msgspec.json.schema(Topology)
