"""The picture of a cluster, which is read again when a request finds it out of date, and the requests."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Generic, Literal, TypeVar

import msgspec

from slackwater.cli.commands.source import Decision, Plan, decisions_in, plan_skip, plan_timeline, refusal_in
from slackwater.cli.commands.status import SourceReport, make_report
from slackwater.cli.diagnosis import diagnose
from slackwater.cli.examination import Sources, examine, open_sources
from slackwater.cli.pipelines import BarrierReader, signs_of_topology, topology_of
from slackwater.cli.revisions import (
    Registered,
    RevisionStatus,
    follow_one_database,
    readers_of,
    revision_status,
    switch_readers,
)
from slackwater.client import NotVisibleError, end_lease
from slackwater.command.invocation import ANSWERS_WITHIN, kafka_settings, lsn_of, sources_of
from slackwater.control import (
    DelayCourse,
    DelayHistory,
    Delays,
    LeaseStanding,
    LeaseState,
    SourceSigns,
    SourceSnapshot,
    Topology,
    find_snapshots,
    lease_standings,
    measure_delays,
)
from slackwater.cuts import CutLog, LeaseLog, PipelineLog, TopicUnavailableError
from slackwater.protocol import (
    Clock,
    ConfigError,
    InputError,
    PublishedCut,
    StateError,
    SystemClock,
    UnavailableError,
    epoch_ms,
)
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import Settings


class DecisionKind(StrEnum):
    """What is decided about a source."""

    SKIP = "skip"
    """Every transaction up to a commit LSN passes, complete or not."""
    NEW_TIMELINE = "new-timeline"
    """Continue where the LSNs went back."""


class DecisionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A decision about a source, as ``slackwater source skip`` and ``new-timeline`` record it."""

    kind: DecisionKind
    to_lsn: str = ""
    """Of a skip: a commit LSN, as PostgreSQL writes it."""
    without_snapshot: bool = False
    """Of a new timeline: although no new snapshot was seen."""
    reason: str = ""
    """Kept with the decision."""
    dry_run: bool = False
    """Only say what it would do."""


class LeaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What becomes of a lease: it is ended, as ``slackwater lease end`` does."""

    end: Literal[True]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionAnswer:
    """What a decision does, or would do."""

    lines: tuple[str, ...]
    """For people."""
    cut_log_offset: int | None
    """Where it is recorded; None: it was not."""


class SwitchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A switch of a pipeline's readers, as ``slackwater revise switch`` makes it."""

    revision: int
    """The revision to be read."""
    schema: str | None = None
    """Of tables in PostgreSQL: where the views of readers are."""
    accept_earlier: bool = False
    """Also to a revision that is behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchAnswer:
    """What was switched."""

    pipeline: str
    """What is read now, with its revision."""
    commit: str
    """The commit from which on, timeline and LSN."""
    before: str | None
    """What was read before; None: nothing was said about it."""


T = TypeVar("T")

PICTURE_AGE = timedelta(seconds=0.5)
"""The maximum age of an answer: however many clients ask, Kafka is queried twice a second."""
_PICTURES = 20
"""The number of pictures over which the catch-up rate is measured."""
_SWITCH_TIMEOUT = timedelta(seconds=10)
"""How long a switch waits for a common commit, and for readers in a transaction."""
REPORT_AGE = timedelta(seconds=5)
"""The age of the doctor's report on a source, for which it reads everything that Kafka has of it."""


class Fresh(Generic[T]):
    """A value that is computed on request unless it is recent enough. Thread-safe.

    Callers wait while it is computed. An error counts as a value, which later callers also get.

    It is made by one thread at a time, and its age is the maximum.
    """

    def __init__(self, make: Callable[[], T], age: timedelta, clock: Clock) -> None:
        self._make = make
        self._age = age.total_seconds()
        self._clock = clock
        self._turn = threading.Lock()
        self._made_at = float("-inf")
        self._made: Future[T]

    def forget(self) -> None:
        """Makes the next request read it again."""
        with self._turn:
            self._made_at = float("-inf")

    def __call__(self) -> T:
        """Returns the value.

        Raises:
            Exception: what making it raised.
        """
        with self._turn:
            if self._clock.monotonic() - self._made_at >= self._age:
                self._made = Future()
                try:
                    self._made.set_result(self._make())
                except Exception as error:  # noqa: BLE001 - every caller gets it
                    self._made.set_exception(error)
                self._made_at = self._clock.monotonic()
            return self._made.result()


class ClusterPicture:
    """The topology of a cluster, and the doctor's report on each of its sources. Thread-safe.

    Connections stay open for as long as the process lives. What Kafka is asked for raises an UnavailableError
    if it does not answer.

    The sources of the settings are shown although no pipeline may read them.

    Raises:
        CommandConfigError: Brokers or sources were not given.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._clock = settings, SystemClock()
        self._kafka = kafka_settings(settings, "where pipelines register")
        self._pipelines = PipelineLog(self._kafka, timeout=ANSWERS_WITHIN)
        self._lease_log = LeaseLog(self._kafka)
        self._followed = sources_of(settings)
        self._cut_logs: dict[str, CutLog] = {}
        self._barriers: dict[str, BarrierReader] = {}
        self._signs: tuple[SourceSigns, ...] = ()
        self._history = DelayHistory()
        self._pictures: deque[Topology] = deque(maxlen=_PICTURES)
        self._examined_sources: dict[str, _ExaminedSource] = {}
        self._turn = threading.Lock()
        self._open = ExitStack()
        self.topology = Fresh(self._read_topology, PICTURE_AGE, self._clock)
        """The whole picture."""
        self.leases = Fresh(self._read_leases, PICTURE_AGE, self._clock)
        """The leases that are not over."""
        self.snapshots = Fresh(self._find_snapshots, PICTURE_AGE, self._clock)
        """The commit at which the pipelines of each source can be read together."""
        self.delays = Fresh(self._measure_delays, PICTURE_AGE, self._clock)
        """How late each view is, and who is to blame."""

    def report(self, source: str) -> SourceReport:
        """Returns what the doctor says of a source. Takes seconds."""
        return self._examined(source).report()

    def decide(self, source: str, request: DecisionRequest, client: str) -> DecisionAnswer:
        """Records a decision about a source, or says what it would do.

        Raises:
            InputError: it does not fit the facts; nothing was recorded.
            UnavailableError: Kafka does not answer.
        """
        return self._examined(source).decide(request, client)

    def end_lease(self, lease_id: str) -> bool:
        """Ends a lease; returns whether there was one."""
        with self._turn:
            is_ended = end_lease(self._lease_log, lease_id)
        self.leases.forget()
        return is_ended

    def delay_history(self, pipeline: str) -> DelayCourse:
        """Returns how late the views of a pipeline were, as far as :meth:`remember_delays` was called."""
        with self._turn:
            return self._history.of(pipeline)

    def remember_delays(self) -> None:
        """Takes a sample of all delays; if Kafka does not answer there is none."""
        with suppress(UnavailableError):
            delays = self.delays()
            with self._turn:
                self._history.add(delays)

    def _measure_delays(self) -> Delays:
        topology = self.topology()
        self._signs = signs_of_topology(self._settings, topology, self._signs)
        return measure_delays(topology, self._signs)

    def _find_snapshots(self) -> tuple[SourceSnapshot, ...]:
        topology = self.topology()
        found = {}
        for node in topology.sources:
            if node.name not in self._barriers:
                self._barriers[node.name] = BarrierReader(self._cut_log(node.name))
            try:
                found[node.name] = self._barriers[node.name].read()
            except (TopicUnavailableError, StateError):  # which a recreated log raises each time
                del self._barriers[node.name]
        return find_snapshots(topology, found)

    def _read_leases(self) -> tuple[LeaseStanding, ...]:
        with self._turn:
            known = lease_standings(self._lease_log.read(), epoch_ms(self._clock.now()))
        return tuple(each for each in known if each.state is not LeaseState.OVER)

    def revisions(self, pipeline: str) -> tuple[RevisionStatus, ...]:
        """Returns the revisions of a pipeline, and which one is read.

        Raises:
            UnavailableError: Kafka, or a server with outputs, does not answer.
            CommandConfigError: Nothing says where the outputs are.
        """
        now = self.topology()
        return revision_status(self._pictures[0], now, pipeline, readers_of(self._settings, now, pipeline))

    def switch(self, pipeline: str, request: SwitchRequest) -> SwitchAnswer:
        """Lets readers of a pipeline read another revision.

        Raises:
            InputError: It does not fit the facts; nothing was changed.
            UnavailableError: Kafka, or a server with outputs, does not answer.
            CommandConfigError: Nothing says where the outputs are.
        """
        with self._turn:
            now_ms = epoch_ms(self._clock.now())
            registered = Registered(self._pipelines.read(), now_ms, partial(follow_one_database, self._kafka))
        wanted = registered.revision(pipeline, request.revision)
        try:
            _, done = switch_readers(
                self._settings,
                registered,
                pipeline,
                request.revision,
                request.schema,
                accept_earlier=request.accept_earlier,
                timeout=_SWITCH_TIMEOUT,
            )
        except CommandConfigError:
            raise
        except (NotVisibleError, ConfigError, StateError) as error:
            raise InputError(error.problem, error.hint) from error
        return SwitchAnswer(pipeline=wanted.pipeline, commit=str(done.position), before=done.before)

    def _cut_log(self, source: str) -> CutLog:
        return CutLog(source, self._kafka, timeout=ANSWERS_WITHIN)

    def _read_topology(self) -> Topology:
        with self._turn:
            entries = self._pipelines.read()
        found = topology_of(entries, self._newest_cut, epoch_ms(self._clock.now()), self._followed)
        self._pictures.append(found)
        return found

    def _newest_cut(self, source: str) -> PublishedCut | None:
        if source not in self._cut_logs:
            self._cut_logs[source] = self._cut_log(source)
        return self._cut_logs[source].newest()

    def _examined(self, source: str) -> "_ExaminedSource":
        with self._turn:
            if source not in self._examined_sources:
                sources = self._open.enter_context(open_sources(self._settings, source))
                self._examined_sources[source] = _ExaminedSource(sources, self._clock)
            return self._examined_sources[source]


class _ExaminedSource:
    """A source that is examined and decided about, by one thread at a time."""

    def __init__(self, sources: Sources, clock: Clock) -> None:
        self._sources = sources
        self._turn = threading.Lock()
        self.report = Fresh(self._examine, REPORT_AGE, clock)

    def decide(self, request: DecisionRequest, client: str) -> DecisionAnswer:
        """See :meth:`ClusterPicture.decide`."""
        with self._turn:
            facts, log = examine(self._sources), self._sources.log
            plan: Plan[Decision]
            if request.kind is DecisionKind.SKIP:
                plan = plan_skip(facts, lsn_of(request.to_lsn, "to_lsn"), refusal_in(log))
            else:
                plan = plan_timeline(facts, decisions_in(log), without_snapshot=request.without_snapshot)
            offset = None if request.dry_run else plan.record(self._sources, client, request.reason)
            return DecisionAnswer(lines=plan.lines, cut_log_offset=offset)

    def _examine(self) -> SourceReport:
        with self._turn:
            facts = examine(self._sources)
        return make_report(facts, diagnose(facts))
