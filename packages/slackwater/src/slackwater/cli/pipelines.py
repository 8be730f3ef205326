"""The picture of a cluster, and what its sidecars report, for commands and the control plane."""

import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from slackwater.cli.given_pipelines import NamedPipeline, named_pipelines
from slackwater.cli.revisions import Registered, follow_one_database, named_pipeline
from slackwater.command.invocation import ANSWERS_WITHIN, kafka_settings, redis_settings
from slackwater.command.output import ago, aligned, utc
from slackwater.control import (
    DelayCause,
    PipelineNode,
    PipelineState,
    Progress,
    SourceNode,
    SourceSigns,
    SourceSnapshot,
    Topology,
    find_snapshots,
    make_topology,
    sidecar_absence,
)
from slackwater.control.topology import VisibleBatch
from slackwater.cuts import (
    CutLog,
    FrontierStatus,
    MarkerStoreUnavailableError,
    PipelineLog,
    RedisMarkerStore,
    TopicUnavailableError,
)
from slackwater.kafka.retry import is_silence
from slackwater.protocol import (
    Clock,
    CommitPosition,
    KafkaSettings,
    PipelineEntry,
    PublishedCut,
    StateError,
    SystemClock,
    epoch_ms,
)
from slackwater.protocol.keys import quarantine_of
from slackwater.settings.errors import CommandConfigError, unknown
from slackwater.settings.model import Settings

_SETTLES_WITHIN = timedelta(seconds=2.5)
"""A sidecar reports every second, and leaves a Redis that was away alone for at most one and a half."""
_LOOK_AGAIN_SECONDS = 0.2
T = TypeVar("T")

OF_ONE_SOURCE = click.option("--source", metavar="NAME", help="Only this source and what is derived from it.")
"""The option of commands that show a topology."""


def settled(
    look: Callable[[], T], is_settled: Callable[[T], bool], clock: Clock, pause: Callable[[float], object]
) -> T:
    """Looks until what is seen is settled, or for two and a half seconds; returns what was seen last."""
    deadline = clock.monotonic() + _SETTLES_WITHIN.total_seconds()
    while not is_settled(found := look()) and clock.monotonic() < deadline:
        pause(_LOOK_AGAIN_SECONDS)
    return found


def reported_status(store: RedisMarkerStore, source: str) -> FrontierStatus | None:
    """Returns the newest report of a source's sidecar; None if there is none in time.

    A restarted Redis is empty until the next report of a sidecar, and one that was silent has an old report.
    The sidecar is not at fault.

    Raises:
        MarkerStoreUnavailableError: the store is away.
    """
    clock = SystemClock()

    def is_settled(said: FrontierStatus | None) -> bool:
        return not sidecar_absence(SourceSigns(source=source, status=said), epoch_ms(clock.now()))

    return settled(lambda: store.status(source), is_settled, clock, threading.Event().wait)


def read_signs(
    store: RedisMarkerStore, sources: Iterable[str], silent: Container[str] = ()
) -> Iterator[SourceSigns]:
    """Yields the signs of sources. If Redis is away, the signs of one source say so, and no more follow.

    Silent sources, whose sidecars were absent the last time, are not waited for.
    """
    for source in sources:
        try:
            status = store.status(source) if source in silent else reported_status(store, source)
            yield SourceSigns(source=source, status=status)
        except MarkerStoreUnavailableError as error:
            yield SourceSigns(source=source, redis_error=str(error))
            return


def open_marker_store(settings: Settings, purpose: str) -> AbstractContextManager[RedisMarkerStore]:
    """Connects with the Redis of the settings for the time of a block."""
    redis = redis_settings(settings, purpose)
    return closing(RedisMarkerStore.connect(redis.url, password=redis.password, timeout=ANSWERS_WITHIN))


def signs_of_topology(
    settings: Settings, topology: Topology, before: Iterable[SourceSigns] = ()
) -> tuple[SourceSigns, ...]:
    """Returns the signs of the sources that somebody reads; nothing if the settings name no Redis.

    Repeated callers pass what it returned last: servers that were silent are not waited for.
    """
    if settings.redis.url is None:
        return ()
    now_ms = epoch_ms(SystemClock().now())
    silent = {each.source for each in before if not each.redis_error and sidecar_absence(each, now_ms)}
    with open_marker_store(settings, "where sidecars report") as store:
        # An output that nobody reads as a source needs no sidecar.
        watched = [node.name for node in topology.sources if node.read_by or not node.written_by]
        return tuple(read_signs(store, watched, silent))


def cause_lines(causes: Iterable[DelayCause]) -> Iterator[str]:
    """Writes each cause with its evidence and a remedy."""
    for cause in causes:
        yield cause.evidence
        if cause.views:
            yield f"  delays  {', '.join(cause.views)}"
        yield f"  try     {cause.advice}"


def open_pipeline_log(settings: Settings) -> AbstractContextManager[PipelineLog]:
    """Opens the topic of pipelines for the time of a block."""
    return closing(PipelineLog(_registry(settings), timeout=ANSWERS_WITHIN))


def _registry(settings: Settings) -> KafkaSettings:
    return kafka_settings(settings, "where pipelines register")


def read_registered(settings: Settings) -> Registered:
    """Reads the topic of pipelines.

    Raises:
        TopicUnavailableError: It cannot be read.
    """
    with open_pipeline_log(settings) as log:
        follow = partial(follow_one_database, _registry(settings))
        return Registered(log.read(), epoch_ms(SystemClock().now()), follow)


def pipelines_of(
    settings: Settings, folders: Sequence[Path], names: Sequence[str], kind: str, source: str | None
) -> list[NamedPipeline]:
    """Returns the pipelines that a command was given, or all that derive from a source.

    Raises:
        CommandConfigError, InputError, ConfigError: As ``named_pipelines``; or there is no such source.
    """
    if source is None:
        return named_pipelines(folders, names, kind)
    if folders or names:
        raise CommandConfigError("--source was combined with pipelines", "omit one of the two")
    return [named_pipeline(each) for each in read_registered(settings).derived_from(source)]


def read_topology(settings: Settings, source: str | None = None, *, is_known: bool = False) -> Topology:
    """Reads the topic of pipelines and the newest cut of each source.

    With a source, it contains only what begins there, although no pipeline may read it. A source that a
    sidecar has reported is known, whatever Kafka says.

    Raises:
        UnavailableError: the topic cannot be read, or Kafka is silent. A cut log that cannot be read for
            another reason is passed over.
        InputError: there is no such source.
    """
    now_ms = epoch_ms(SystemClock().now())
    with open_pipeline_log(settings) as log:
        entries = log.read()

    def newest_cut(name: str) -> PublishedCut | None:
        with closing(CutLog(name, _registry(settings), timeout=ANSWERS_WITHIN)) as cuts:
            return cuts.newest()

    found = topology_of(entries, newest_cut, now_ms, () if source is None else (source,))
    if source is None:
        return found
    node = next(each for each in found.sources if each.name == source)
    if not (is_known or node.cut or node.read_by or node.written_by):
        names = (each.name for each in make_topology(entries, {}, now_ms).sources)
        more = f"it has no cut, and no pipeline reads it; `slackwater sidecar --source {source}` follows it"
        raise unknown("source", source, names, more)
    return found.of_source(source)


def topology_of(
    entries: Sequence[PipelineEntry],
    newest_cut: Callable[[str], PublishedCut | None],
    now_ms: int,
    sources: Sequence[str] = (),
) -> Topology:
    """Returns the picture, and asks for the newest cut of each source that is in it.

    The given sources are shown although no pipeline may read them. A log that cannot be read is skipped.

    Raises:
        TopicUnavailableError: Kafka is silent, so that asking for the next cut would take as long again.
    """
    found: dict[str, PublishedCut] = {}
    for node in make_topology(entries, {}, now_ms, sources).sources:
        try:
            published = newest_cut(node.name)
        except (TopicUnavailableError, StateError) as error:
            if is_silence(error):
                raise
        else:
            found |= {node.name: published} if published else {}
    cuts = {name: published.cut for name, published in found.items()}
    written_ms = {name: published.written_ms for name, published in found.items()}
    return make_topology(entries, cuts, now_ms, sources, written_ms=written_ms)


_LOOK_BACK = 4_000
"""The number of records of a cut log that are first searched for barriers."""
_KEPT_BARRIERS = 3_600
"""An hour of them, one a second."""


class BarrierReader:
    """The newest barriers of a source: the first look reads the end of its cut log, others what is new."""

    def __init__(self, log: CutLog) -> None:
        self._log = log
        self._offset: int | None = None
        self._barriers: deque[CommitPosition] = deque(maxlen=_KEPT_BARRIERS)

    def read(self) -> Sequence[CommitPosition]:
        """Returns them, ascending.

        Raises:
            TopicUnavailableError, StateError: The log cannot be read, or was recreated.
        """
        if self._offset is None:
            self._offset = max(-1, self._log.end() - _LOOK_BACK)
        for published in self._log.tail(self._offset):
            self._offset = published.log_offset
            cut = published.cut
            barrier = CommitPosition(cut.timeline, cut.barrier_lsn)
            if cut.barrier_lsn and (not self._barriers or self._barriers[-1] < barrier):
                self._barriers.append(barrier)
        return list(self._barriers)


def read_snapshots(settings: Settings, topology: Topology) -> tuple[SourceSnapshot, ...]:
    """Reads the newest barriers of each source of a topology; cut logs that cannot be read are skipped."""
    found = {}
    for node in topology.sources:
        with (
            closing(CutLog(node.name, _registry(settings))) as log,
            suppress(TopicUnavailableError, StateError),
        ):
            found[node.name] = BarrierReader(log).read()
    return find_snapshots(topology, found)


def pipeline_table(pipelines: Sequence[PipelineNode], now_ms: int) -> list[str]:
    """Writes a line per pipeline, below a heading."""
    if not pipelines:
        return ["pipelines: none"]
    rows = [("pipeline", "state", "shows", "batch", "heard of", "")]
    for each in pipelines:
        shown = (each.batch.commit_lsn, str(each.batch.batch_id)) if each.batch else ("-", "-")
        heard, remarks = ago(each.heard_ms, now_ms), ", ".join(remarks_on(each))
        rows.append((each.name, each.state, *shown, heard, remarks))
    return aligned(rows)


def topology_lines(topology: Topology) -> list[str]:
    """Writes the whole picture, for people: sources in the order of the data, each with its pipelines."""
    if not topology.sources:
        return ["no pipeline has registered yet; `slackwater run` registers its pipeline"]
    lines: list[str] = []
    for source in topology.sources:
        lines += ["", *_source_lines(source, topology)]
        for pipeline in topology.pipelines:
            if pipeline.source == source.name:
                lines += ["", *_pipeline_lines(pipeline, topology)]
    return lines[1:]


def _source_lines(source: SourceNode, topology: Topology) -> Iterator[str]:
    newest, cut = "no cut is known", source.cut
    if cut is not None:
        at = ago(cut.commit_ts_ms, topology.made_ms)
        newest = f"newest cut {cut.commit_lsn} on timeline {cut.timeline}, committed {at}"
    written = f", written by {', '.join(source.written_by)}" if source.written_by else ""
    yield f"source {source.name}{written}: {newest}"
    if source.tables:
        yield f"  tables {', '.join(source.tables)}"
    if not source.read_by:
        yield "  no pipeline reads it"


def _pipeline_lines(pipeline: PipelineNode, topology: Topology) -> Iterator[str]:
    owner = f", owner {pipeline.owner}" if pipeline.owner else ""
    text = ", ".join([pipeline.state, *remarks_on(pipeline)])
    yield f"  pipeline {pipeline.name}{owner}: {text}"
    rows = [
        ("    run", _run(pipeline, topology.made_ms)),
        *([] if pipeline.batch is None else [("    shows", _shown(pipeline, pipeline.batch))]),
        *(("    reads", table) for table in pipeline.tables),
    ]
    for stage in pipeline.stages:
        taken = ", ".join([*stage.tables, *(f"stage {number}" for number in stage.stages)])
        what = f"level {stage.level}, by {', '.join(stage.key) or 'nothing'}: {taken}; {stage.why}"
        rows.append((f"    stage {stage.number}", what))
    for view in pipeline.views:
        form = f" ({view.format})" if view.format else ""
        own = (pipeline.name, view.name)
        readers = [link.read_by for link in topology.links if (link.pipeline, link.view) == own]
        source = f", a table of source {view.output_source}" if view.output_source else ""
        read = f", read by {', '.join(readers)}" if readers else ""
        rows.append(("    view", f"{view.name} to {view.kind} {view.output}{form}{source}{read}"))
    yield from aligned(rows)


def _run(pipeline: PipelineNode, now_ms: int) -> str:
    where = f"{pipeline.host} process {pipeline.pid}, version {pipeline.version}"
    text = f"{where}, began {utc(pipeline.started_ms)}, "
    if pipeline.ended_ms is None:
        return f"{text}last report {ago(pipeline.heard_ms, now_ms)}"
    return f"{text}ended {ago(pipeline.ended_ms, now_ms)}"


def _shown(pipeline: PipelineNode, batch: VisibleBatch) -> str:
    text = f"{batch.commit_lsn}, batch {batch.batch_id}"
    if batch.commit_ts_ms is None or batch.visible_ms is None:
        return text
    seconds = (batch.visible_ms - batch.commit_ts_ms) / 1000
    work = f"{pipeline.run_events:,} change events, {pipeline.run_documents:,} documents"
    return f"{text}, visible {seconds:.3f} s after its newest commit; this run: {work}"


def remarks_on(pipeline: PipelineNode) -> Iterator[str]:
    """Yields how far a pipeline is beside its source, and the error that ended it."""
    match pipeline.progress:
        case Progress.UP_TO_DATE:
            yield "up to date"
        case Progress.BEHIND if pipeline.behind_ms is not None:
            yield f"{pipeline.behind_ms / 1000:,.1f} s behind the newest cut"
        case Progress.BEHIND:
            yield "behind the newest cut"
        case Progress.NOTHING_YET:
            yield "has shown nothing yet"
        case Progress.TIMELINE_OVER:
            yield f"timeline {pipeline.timeline} has ended: start over on the newest one"
        case Progress.UNKNOWN:
            pass
    for view, count in pipeline.withheld.items():
        if count:
            read = f"slackwater read --pipeline {pipeline.name} --views {quarantine_of(view)}"
            yield f"{count:,} keys of view {view} are withheld: {read}"
    if pipeline.state is PipelineState.FAILED:
        first, *_ = pipeline.failure.splitlines() or [""]
        yield first
