"""The delay of each view since the commit in the database, and its cause.

Behind the newest cut of a database everything is measured in its commit times: a component's delay is by how
much the newest commit behind it is older than the newest one before it. So clocks of different hosts do not
matter, and the components of a view add up to its delay. What lies before that cut, the connector and the
sidecar, is measured for the cut's newest commit, by the clocks of three hosts: no such time is less than
nothing.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from slackwater.control.health import ComponentKind, DelayCause, SourceSigns, fault_of_run, faults_of_source
from slackwater.control.topology import PipelineNode, PipelineState, SourceCut, SourceNode, Topology
from slackwater.protocol import StageWork, parse_position

STARTS_WITHIN = timedelta(seconds=10)
"""A run that has shown nothing for less than this is starting."""
ARRIVED_WITHIN = timedelta(seconds=10)
"""How long the late arrival of the newest commit in its cut counts as a cause of delay."""
LATE_AFTER = timedelta(seconds=2)
"""Below, a delay is what batches take, and nobody's fault."""


@dataclass(frozen=True, slots=True)
class ComponentDelay:
    """A part of the way from the database's commit to a view."""

    kind: ComponentKind
    name: str
    """Of the pipeline, or of the source."""
    delay_ms: int | None
    """None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How the newest commit of a database has arrived in a cut."""

    source: str
    age_ms: int
    """How old it is, by this machine's clock."""
    connector_ms: int | None
    """From the commit to its END in Kafka, by the clocks of database and connector; None: not known."""
    sidecar_ms: int | None
    """From there to the cut, by the clocks of connector and sidecar; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDelay:
    """The delay of a view."""

    pipeline: str
    view: str
    source: str
    """The database's source that it is made of in the end."""
    delay_ms: int | None
    """By how much its newest commit is older than the newest cut of that source; None: not known."""
    components: tuple[ComponentDelay, ...]
    """In the order of the data; what is known of them adds up to the delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """All delays at one moment."""

    made_ms: int
    """The time of the picture, milliseconds since the epoch."""
    arrivals: tuple[Arrival, ...]
    """Of each database's source with a cut."""
    views: tuple[ViewDelay, ...]
    """The latest first; those of which nothing is known at the end."""
    causes: tuple[DelayCause, ...]
    """What has stopped first, then what makes views wait longest; empty if nothing is late."""
    signs: tuple[SourceSigns, ...] = ()
    """What the sidecars of the sources have last said."""


def measure_delays(topology: Topology, signs: Iterable[SourceSigns] = ()) -> Delays:
    """Computes the delay of each view and its cause, without any query; signs are those that are known."""
    graph = _Graph(topology, known := tuple(signs))
    views = sorted(graph.views(), key=lambda view: (view.delay_ms is None, -(view.delay_ms or 0)))
    causes = sorted(graph.causes(views), key=lambda each: (each.delay_ms is not None, -(each.delay_ms or 0)))
    now_ms, cuts = topology.made_ms, ((s.name, s.cut) for s in topology.sources if not s.written_by)
    arrivals = tuple(_arrival(name, cut, now_ms) for name, cut in cuts if cut is not None)
    return Delays(made_ms=now_ms, arrivals=arrivals, views=tuple(views), causes=tuple(causes), signs=known)


def _arrival(source: str, cut: SourceCut, made_ms: int) -> Arrival:
    ended_ms, written_ms = cut.ended_ms, cut.written_ms
    return Arrival(
        source=source,
        age_ms=max(0, made_ms - cut.commit_ts_ms),
        connector_ms=None if ended_ms is None else max(0, ended_ms - cut.commit_ts_ms),
        sidecar_ms=None if ended_ms is None or written_ms is None else max(0, written_ms - ended_ms),
    )


class _Graph:
    """Walks through a topology from a view back to the database."""

    def __init__(self, topology: Topology, signs: Sequence[SourceSigns]) -> None:
        self._made_ms = topology.made_ms
        self._signs = signs
        self._sources = {source.name: source for source in topology.sources}
        self._pipelines = {pipeline.name: pipeline for pipeline in topology.pipelines}

    def views(self) -> Iterator[ViewDelay]:
        for pipeline in self._pipelines.values():
            root, components = self._way_to(pipeline, frozenset())
            known = [component.delay_ms for component in components if component.delay_ms is not None]
            for view in pipeline.views:
                yield ViewDelay(
                    pipeline=pipeline.name,
                    view=view.name,
                    source=root,
                    delay_ms=sum(known) if len(known) == len(components) else None,
                    components=components,
                )

    def causes(self, views: list[ViewDelay]) -> Iterator[DelayCause]:
        """Yields what has stopped, and each component that delays all views that need nothing of that."""
        faults = tuple(self._faults(views))
        yield from faults
        waiting = {view for cause in faults for view in cause.views}
        broken = {cause.name for cause in faults}
        yield from (late for late in self._late_arrivals(views) if late.name not in broken)
        behind: dict[ComponentDelay, list[ViewDelay]] = {}
        for view in views:
            for component in () if waiting.issuperset(_names([view])) else view.components:
                behind.setdefault(component, []).append(view)
        for component, late in behind.items():
            is_pipeline = component.kind is ComponentKind.PIPELINE
            why = self._fault_of_pipeline(component) if is_pipeline else self._fault_of_sidecar(component)
            if why is not None:
                late_ms, views_of = component.delay_ms, _names(late)
                yield DelayCause(component.kind, component.name, *why, delay_ms=late_ms, views=views_of)

    def _faults(self, views: list[ViewDelay]) -> Iterator[DelayCause]:
        """Yields what has stopped, whether views are delayed by now or not."""
        for signs in self._signs:
            made_of = _names(view for view in views if self._needs(view, signs.source))
            for cause in faults_of_source(signs, self._made_ms):
                yield replace(cause, views=made_of)
        signs_of = {signs.source: signs for signs in self._signs}
        for pipeline in self._pipelines.values():
            found = fault_of_run(pipeline, signs_of.get(pipeline.source), self._made_ms)
            if found is not None:
                behind = _names(view for view in views if self._needs(view, pipeline.name))
                delay_ms = self._behind(pipeline, self._sources.get(pipeline.source))
                yield replace(found, delay_ms=delay_ms, views=behind)

    def _needs(self, view: ViewDelay, name: str) -> bool:
        """Returns whether a view is made of a source, or with a pipeline."""
        return name in (view.source, *(component.name for component in view.components))

    def _late_arrivals(self, views: list[ViewDelay]) -> Iterator[DelayCause]:
        """Blames what lies before a database's newest cut."""
        for source in self._sources.values():
            if source.cut is None or source.written_by or self._is_over(source.cut):
                continue
            made_of = _names(view for view in views if view.source == source.name)
            arrival = _arrival(source.name, source.cut, self._made_ms)
            for kind, delay_ms in (
                (ComponentKind.CONNECTOR, arrival.connector_ms),
                (ComponentKind.SIDECAR, arrival.sidecar_ms),
            ):
                if delay_ms is not None and delay_ms > _ms(LATE_AFTER):
                    known = {"source": source.name, "seconds": f"{delay_ms / 1000:,.1f}"}
                    evidence, advice = (text.format(**known) for text in _ARRIVES_LATE[kind])
                    yield DelayCause(kind, source.name, evidence, advice, delay_ms=delay_ms, views=made_of)

    def _is_over(self, cut: SourceCut) -> bool:
        """Returns whether a cut is so old that what was late with it may be late no more: nobody commits."""
        return cut.written_ms is None or self._made_ms - cut.written_ms > _ms(ARRIVED_WITHIN)

    def _way_to(
        self, pipeline: PipelineNode, above: frozenset[str]
    ) -> tuple[str, tuple[ComponentDelay, ...]]:
        """Returns the database's source, and the components up to a pipeline; a cycle is cut anywhere."""
        source = self._sources.get(pipeline.source)
        own = ComponentDelay(ComponentKind.PIPELINE, pipeline.name, self._behind(pipeline, source))
        writers = () if source is None else source.written_by
        name = next((each for each in writers if each in self._pipelines and each not in above), None)
        if name is None or source is None or name == pipeline.name:
            return pipeline.source, (own,)
        writer = self._pipelines[name]
        root, before = self._way_to(writer, above | {pipeline.name})
        between = ComponentDelay(ComponentKind.SIDECAR, source.name, _waits(writer, source))
        return root, (*before, between, own)

    def _behind(self, pipeline: PipelineNode, source: SourceNode | None) -> int | None:
        """Returns by how much a pipeline is behind; of one that has shown nothing it is not known."""
        if pipeline.behind_ms is not None:
            return pipeline.behind_ms
        cut, batch = None if source is None else source.cut, pipeline.batch
        if cut is None or batch is None or batch.commit_ts_ms is None:
            return None
        return max(0, cut.commit_ts_ms - batch.commit_ts_ms)

    def _fault_of_pipeline(self, component: ComponentDelay) -> tuple[str, str] | None:
        pipeline = self._pipelines[component.name]
        where = f"pipeline {pipeline.name} on {pipeline.host} (process {pipeline.pid})"
        if pipeline.state is PipelineState.LEFT:
            return (f"{where} was stopped", "start it again") if component.delay_ms else None
        if component.delay_ms == 0:
            return None
        if pipeline.batch is None:
            began_ms = self._made_ms - pipeline.started_ms
            if began_ms <= _ms(STARTS_WITHIN):
                return None
            text = f"{where} has shown nothing since it started {began_ms / 1000:,.1f} s ago"
            return text, "it reads its source from the beginning; its log shows the progress"
        if (component.delay_ms or 0) <= _ms(LATE_AFTER) or self._lacks_only_news(pipeline):
            return None
        longest, helps = _longest_part(pipeline)
        return f"{where} is {(component.delay_ms or 0) / 1000:,.1f} s behind its source{longest}", helps

    def _lacks_only_news(self, pipeline: PipelineNode) -> bool:
        """Returns whether all that a pipeline has not shown is new, after a time without commits."""
        source, batch = self._sources.get(pipeline.source), pipeline.batch
        cut = None if source is None else source.cut
        if cut is None or cut.written_ms is None or batch is None or batch.timeline != cut.timeline:
            return False
        is_new = self._made_ms - cut.written_ms <= _ms(LATE_AFTER)
        return is_new and parse_position(batch.commit_lsn) >= parse_position(cut.previous_lsn)

    def _fault_of_sidecar(self, component: ComponentDelay) -> tuple[str, str] | None:
        cut = self._sources[component.name].cut
        if cut is None:
            text = f"source {component.name} has no cut although its pipeline has published"
            return text, f"start its sidecar: slackwater sidecar --source {component.name}"
        if component.delay_ms is None or component.delay_ms <= _ms(LATE_AFTER):
            return None
        late = f"{component.delay_ms / 1000:,.1f} s"
        text = f"the newest cut of source {component.name} is {late} behind what was published"
        return text, f"slackwater doctor --source {component.name} shows what its sidecar is waiting for"


def _names(views: Iterable[ViewDelay]) -> tuple[str, ...]:
    return tuple(f"{view.pipeline}/{view.view}" for view in views)


def _waits(writer: PipelineNode, source: SourceNode) -> int | None:
    if writer.batch is None or writer.batch.commit_ts_ms is None or source.cut is None:
        return None
    return max(0, writer.batch.commit_ts_ms - source.cut.commit_ts_ms)


_ARRIVES_LATE = {
    ComponentKind.CONNECTOR: (
        "the connector of source {source} wrote the newest commit to Kafka {seconds} s after the commit, by "
        "the clocks of database and connector",
        "check its delay and its tasks: a large transaction, a snapshot, or a slow broker may delay it",
    ),
    ComponentKind.SIDECAR: (
        "the sidecar of source {source} published the newest cut {seconds} s after its last transaction was "
        "in Kafka",
        "`slackwater doctor --source {source}` shows what it is waiting for",
    ),
}
"""Evidence and advice."""
_PARTS = {
    "plan": ("planning, which waits for Kafka and Redis", "check the brokers and Redis"),
    "read": (
        "reading changes from Kafka",
        "check the brokers; more partitions and cores read more in parallel",
    ),
    "evaluate": (
        "evaluating the stages",
        "`slackwater explain` shows the stages; more cores evaluate more buckets in parallel",
    ),
    "schedule": ("scheduling Spark's tasks", "give Spark's driver more of a core"),
    "state": ("writing the state", "check the checkpoint's disk or object store"),
    "produce": ("writing documents", "check the brokers, or the database, of the outputs"),
    "commit": ("committing the output", "check the brokers, or the database, of the outputs"),
}
"""What a part of a batch does, and what makes it faster."""
_SKEWED = 2
"""A task that takes this many times as long as the others has more than its share."""
_LOOK = "`slackwater topology` shows what it is doing"


def _longest_part(pipeline: PipelineNode) -> tuple[str, str]:
    """Says where the newest batch spent most of its time, empty if nothing is known, and what helps."""
    parts = {} if pipeline.batch is None else pipeline.batch.parts_us
    if not parts:
        return "", _LOOK
    name, most = max(parts.items(), key=lambda part: part[1])
    does, helps = _PARTS.get(name, (name, _LOOK))
    took = f"took {sum(parts.values()) / 1e6:.2f} s, {most / 1e6:.2f} s of them: {does}"
    if name == "evaluate" and pipeline.batch is not None and pipeline.batch.stage_work:
        stage, helps = _slowest_stage(pipeline, pipeline.batch.stage_work)
        took += stage
    return f"; its newest batch {took}", helps


def _slowest_stage(pipeline: PipelineNode, work: Sequence[StageWork]) -> tuple[str, str]:
    """Names the stage, and the task of it, that a batch waits for longest, and says what helps."""
    slowest = max(work, key=lambda each: each.slowest_us)
    known = {stage.number: stage for stage in pipeline.stages}
    by = f", by {', '.join(known[slowest.stage].key)}" if slowest.stage in known else ""
    text = f", most of it stage {slowest.stage}{by}"
    if slowest.tasks < 2:
        return text, "`slackwater explain` shows the stage; a larger batch is spread over more tasks"
    text += f", whose task {slowest.slowest_task} of {slowest.tasks} took {slowest.slowest_us / 1e6:.2f} s"
    rest_us = (slowest.total_us - slowest.slowest_us) / (slowest.tasks - 1)
    if slowest.slowest_us > _SKEWED * rest_us:
        text += f" and the others {rest_us / 1e6:.2f} s on average"
        return text, (
            "a few keys have most of the changes: `slackwater state --contents` shows the largest keys; more "
            "cores do not help while one key is in one task"
        )
    return text, "more cores evaluate more buckets in parallel (run.parallelism)"


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


SAMPLES: Final = 720
"""The number of samples: one every 30 seconds makes six hours. Each takes 8 bytes a view."""
_NOT_KNOWN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayCourse:
    """The delays of a pipeline's views over time."""

    pipeline: str
    times_ms: tuple[int, ...]
    """When they were measured, milliseconds since the epoch, ascending."""
    views: Mapping[str, tuple[int | None, ...]]
    """By view, milliseconds at each of the times; None: not known, or the view was not there."""


class DelayHistory:
    """Remembers delays; for one thread at a time."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, array[int]]] = deque(maxlen=SAMPLES)
        self._places: dict[tuple[str, str], int] = {}
        """The place of each view in a sample."""

    def add(self, delays: Delays) -> None:
        """Takes the next sample, and forgets the oldest if there are too many.

        If the clock was set back, samples of times that are yet to come are forgotten, too.
        """
        while self._samples and self._samples[-1][0] >= delays.made_ms:
            self._samples.pop()
        known = {(view.pipeline, view.view): view.delay_ms for view in delays.views}
        for view in known:
            self._places.setdefault(view, len(self._places))
        values = (_NOT_KNOWN if each is None else each for each in map(known.get, self._places))
        self._samples.append((delays.made_ms, array("q", values)))

    def of(self, pipeline: str) -> DelayCourse:
        """Returns the course of a pipeline's views; of one that is not known it is empty."""
        views = {
            view: tuple(_known(sample, place) for _, sample in self._samples)
            for (name, view), place in sorted(self._places.items())
            if name == pipeline
        }
        return DelayCourse(
            pipeline=pipeline,
            times_ms=tuple(made_ms for made_ms, _ in self._samples),
            views={view: course for view, course in views.items() if any(v is not None for v in course)},
        )


def _known(sample: Sequence[int], place: int) -> int | None:
    value = sample[place] if place < len(sample) else _NOT_KNOWN
    return None if value == _NOT_KNOWN else value
