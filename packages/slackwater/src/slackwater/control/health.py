"""Finds the cause when something has stopped: a pure function of the newest reports.

Sidecars and runs report every few seconds, so silence is evidence. What a sidecar says of the connector, the
database and the replication slot counts while the sidecar itself speaks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from slackwater.control.topology import PipelineNode, PipelineState
from slackwater.protocol import ConnectorReport, FrontierState, FrontierStatus, SlotReport

_AWAY_AFTER = timedelta(seconds=7)
"""Runs report every three seconds, whatever they do; one that is silent for longer is blamed."""
SIDECAR_AWAY_AFTER = timedelta(seconds=6)
"""Sidecars report every second, and at most five and a half seconds late while a server is silent."""
_SETTLES_WITHIN = timedelta(seconds=3)
"""A state that passes by itself, such as a restart, or one question without an answer, is nobody's fault."""
_CONNECTS_AGAIN_WITHIN = timedelta(seconds=10)
"""Debezium's default of retriable.restart.connector.wait.ms, for which it waits for the database."""
_HEARTBEAT_MS = 10_000
"""The interval that is assumed while it is not known."""
_MISSED_HEARTBEATS = 3
_SHORTEST_SILENCE = timedelta(seconds=9)
_MUCH_WAL = 1 << 30
_RUNBOOK = "docs/runbooks.md#connector-down"


class ComponentKind(StrEnum):
    """The components that move data, and those that they need."""

    PIPELINE = "pipeline"
    """From a cut of its source to what its views show."""
    SIDECAR = "sidecar"
    """From what a pipeline's output shows, or a connector has written, to a cut."""
    CONNECTOR = "connector"
    """From the commit in the database to the END of the transaction in Kafka."""
    CONNECT = "connect"
    """Kafka Connect, which runs the connector."""
    DATABASE = "database"
    """Where transactions are committed."""
    KAFKA = "kafka"
    """What connectors, sidecars and pipelines write to."""
    REDIS = "redis"
    """Where sidecars say how they are."""


@dataclass(frozen=True, slots=True)
class DelayCause:
    """The component that delays views, and the evidence for it."""

    kind: ComponentKind
    name: str
    """Of the pipeline, or of the source."""
    evidence: str
    """A sentence."""
    advice: str
    """The remedy: a sentence."""
    delay_ms: int | None = None
    """The delay that it causes; None if unknown."""
    since_ms: int | None = None
    """Since when, milliseconds since the epoch; None: not known."""
    views: tuple[str, ...] = ()
    """The views that are late because of it, as pipeline/view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSigns:
    """What the sidecar of a source has last said, of itself and of the connector."""

    source: str
    redis_error: str = ""
    """Why Redis could not be asked, so that nothing is known; empty: it could."""
    status: FrontierStatus | None = None
    """Its newest word; None: none has ever reported."""

    @property
    def connector(self) -> ConnectorReport | None:
        """What it knows of the connector; None: nothing."""
        return None if self.status is None else self.status.connector

    def says(self, state: FrontierState) -> bool:
        """Whether the source is in a state."""
        return self.status is not None and self.status.state is state


def faults_of_source(signs: SourceSigns, now_ms: int) -> Iterator[DelayCause]:
    """Yields the components of a source that do not work; none if no fault is known.

    A component that fails only because of another one is not named. While Redis or the sidecar is away,
    nothing is reported that only they could tell, and a connector whose database or worker is away is not.
    """
    if signs.redis_error:
        advice = "nothing is lost: readers use the cut log; docs/runbooks.md#redis-lost"
        yield DelayCause(ComponentKind.REDIS, signs.source, signs.redis_error, advice)
        return
    absent = sidecar_absence(signs, now_ms)
    if absent:
        since_ms = None if signs.status is None else signs.status.wall_ms
        advice = f"start it: slackwater sidecar --source {signs.source}; docs/runbooks.md#sidecar-restart"
        yield DelayCause(ComponentKind.SIDECAR, signs.source, absent, advice, since_ms=since_ms)
    elif signs.connector is not None:
        yield from faults_of_connector(signs, signs.connector, now_ms)


def sidecar_absence(signs: SourceSigns, now_ms: int) -> str:
    """Returns why no sidecar of a source works; empty if one does."""
    said = signs.status
    if said is None:
        return f"no sidecar of source {signs.source} has reported to this Redis"
    where = f"sidecar {said.sidecar} of source {signs.source}"
    if said.state in (FrontierState.STOPPED, FrontierState.FAILED):
        return f"{where} has {said.state}{': ' if said.detail else ''}{said.detail}"
    if now_ms - said.wall_ms > _ms(SIDECAR_AWAY_AFTER):
        return f"{where} last reported {_seconds(now_ms - said.wall_ms)} ago"
    return ""


def faults_of_connector(signs: SourceSigns, report: ConnectorReport, now_ms: int) -> Iterator[DelayCause]:
    """Yields the first cause that explains what a sidecar has seen of a source's connector."""
    for rule in _RULES:
        found = rule(signs, report, now_ms)
        if found is not None:
            kind, evidence, advice = found
            advice = f"{advice}; {_RUNBOOK}"
            yield DelayCause(kind, signs.source, evidence, advice, since_ms=report.since_ms)
            return


_Found = tuple[ComponentKind, str, str] | None


def _silent(signs: SourceSigns, report: ConnectorReport, _: int) -> _Found:
    """Names the most fundamental server that does not answer: it explains what others would see."""
    if not _has_lasted(report):
        return None
    if report.kafka_error:
        evidence = f"Kafka does not answer, from which source {signs.source} is read: {report.kafka_error}"
        return ComponentKind.KAFKA, evidence, "start the brokers; docs/runbooks.md#kafka-away"
    if report.database_error:
        evidence = f"the database of source {signs.source} does not answer: {report.database_error}"
        return ComponentKind.DATABASE, evidence, "start PostgreSQL, or check postgres.url"
    if report.connect_error:
        evidence = f"Kafka Connect, which runs the connector of source {signs.source}: {report.connect_error}"
        return ComponentKind.CONNECT, evidence, "start its workers, or check connect.url"
    return None


def _slot_lost(signs: SourceSigns, report: ConnectorReport, _: int) -> _Found:
    slot = report.slot
    if slot is None or slot.wal_status != "lost":
        return None
    evidence = f"the replication slot {slot.name} of source {signs.source} is lost: the database has removed "
    advice = "drop it, delete the connector's offsets and let the connector take a new snapshot"
    return ComponentKind.CONNECTOR, f"{evidence}WAL that the connector still needs", advice


def _state(signs: SourceSigns, report: ConnectorReport, _: int) -> _Found:
    where = f"connector {report.name or signs.source}"
    match report.state:
        case "ABSENT":
            advice = f"`slackwater connector apply --source {signs.source}` creates it"
            evidence = f"Kafka Connect has no connector of source {signs.source} any more"
            return ComponentKind.CONNECTOR, evidence, advice
        case "PAUSED" | "STOPPED":
            advice = f"resume it: PUT /connectors/{report.name or signs.source}/resume"
            return ComponentKind.CONNECTOR, f"{where} is {report.state.lower()}{_kept(report.slot)}", advice
        case "FAILED":
            return ComponentKind.CONNECTOR, f"{where} has failed: {report.error}", _restart(report)
        case "RUNNING" | "":
            return None
    if not _has_lasted(report):
        return None
    return ComponentKind.CONNECTOR, f"{where} is {report.state.lower()}", "check the workers of Kafka Connect"


def _tasks(signs: SourceSigns, report: ConnectorReport, _: int) -> _Found:
    where = f"connector {report.name or signs.source}"
    for task in report.tasks:
        if task.state == "FAILED":
            text = f"task {task.number} of {where} has failed: {task.error}"
            return ComponentKind.CONNECTOR, text, _restart(report)
    idle = [task for task in report.tasks if task.state != "RUNNING"]
    if report.state != "RUNNING" or (report.tasks and not idle) or not _has_lasted(report):
        return None
    what = f"task {idle[0].number} is {idle[0].state.lower()}" if idle else "no task runs"
    return ComponentKind.CONNECTOR, f"{where} is running, but {what}", _restart(report)


def _slot(signs: SourceSigns, report: ConnectorReport, _: int) -> _Found:
    slot = report.slot
    if slot is None or not (report.name or report.heartbeat_ms):
        return None
    where = f"the replication slot {slot.name} of source {signs.source}"
    if not slot.exists and _has_lasted(report):
        advice = "a connector that creates it again misses commits in between: let it take a new snapshot"
        return ComponentKind.CONNECTOR, f"{where} does not exist", advice
    is_left = slot.exists and not slot.is_active and not _connects_again(report)
    if is_left and _has_lasted(report):
        return ComponentKind.CONNECTOR, f"no connector reads {where}{_kept(slot)}", "start the connector"
    if slot.exists and (slot.wal_status == "unreserved" or slot.retained_bytes > _MUCH_WAL):
        advice = (
            "does the connector keep up? An idle database needs heartbeat.action.query (docs/connector.md)"
        )
        return ComponentKind.CONNECTOR, f"{where} does not advance{_kept(slot)}", advice
    return None


def _heartbeats(signs: SourceSigns, report: ConnectorReport, now_ms: int) -> _Found:
    """A snapshot writes no heartbeats, so they are not missed while the source waits for one.

    Nor did they come while something else was away, so silence begins when that is back.
    """
    if report.heartbeat_ms is None or signs.says(FrontierState.WAITING):
        return None
    interval_ms = _number(report.properties.get("heartbeat.interval.ms")) or report.heartbeat_interval_ms
    patience_ms = max(_MISSED_HEARTBEATS * (interval_ms or _HEARTBEAT_MS), _ms(_SHORTEST_SILENCE))
    silent_ms = now_ms - max(report.heartbeat_ms, report.since_ms + _ms(_CONNECTS_AGAIN_WITHIN))
    if silent_ms <= patience_ms:
        return None
    evidence = f"the connector of source {signs.source} has written no heartbeat for {_seconds(silent_ms)}"
    return ComponentKind.CONNECTOR, evidence, "is it running? its log and the state of its task say why not"


def _refused(signs: SourceSigns, _: ConnectorReport, __: int) -> _Found:
    if signs.status is None or signs.status.state is not FrontierState.MISCONFIGURED:
        return None
    evidence = f"source {signs.source} is refused: {signs.status.detail}"
    return ComponentKind.CONNECTOR, evidence, "change the connector"


_RULES: tuple[Callable[[SourceSigns, ConnectorReport, int], _Found], ...] = (
    _silent,
    _slot_lost,
    _state,
    _tasks,
    _slot,
    _heartbeats,
    _refused,
)
"""The most fundamental first: it explains what the later ones would see."""


def fault_of_run(pipeline: PipelineNode, signs: SourceSigns | None, now_ms: int) -> DelayCause | None:
    """Returns why a run of a pipeline works no more; None if it does, or ended in order.

    A run reports to Kafka, so its silence begins when Kafka is back.

    Without signs, nothing is known of the sidecar of its source.
    """
    where = f"pipeline {pipeline.name} on {pipeline.host} (process {pipeline.pid})"
    silent_ms = now_ms - pipeline.heard_ms
    if pipeline.state is PipelineState.FAILED:
        first, *_ = pipeline.failure.splitlines() or [""]
        evidence = f"{where} ended: {first}"
        advice = "correct this and start it again: docs/runbooks.md#ended"
    elif pipeline.state is PipelineState.LEFT or not _is_silent(pipeline, signs, now_ms):
        return None
    else:
        evidence = f"{where} last reported {_seconds(silent_ms)} ago and did not report its end"
        advice = (
            "was it killed or stopped, or is its machine overloaded or gone? start it again with its "
            "checkpoint: docs/runbooks.md#ended"
        )
    since_ms = pipeline.ended_ms or pipeline.heard_ms
    return DelayCause(ComponentKind.PIPELINE, pipeline.name, evidence, advice, since_ms=since_ms)


def _is_silent(pipeline: PipelineNode, signs: SourceSigns | None, now_ms: int) -> bool:
    report = None if signs is None else signs.connector
    if report is None:
        return now_ms - pipeline.heard_ms > _ms(_AWAY_AFTER)
    return not report.kafka_error and now_ms - max(pipeline.heard_ms, report.since_ms) > _ms(_AWAY_AFTER)


def _has_lasted(report: ConnectorReport) -> bool:
    return report.read_ms - report.since_ms >= _ms(_SETTLES_WITHIN)


def _connects_again(report: ConnectorReport) -> bool:
    """Returns whether the database was away so recently that a connector may still be waiting."""
    answered_ms = report.read_ms - report.database_since_ms
    return report.state in ("RUNNING", "") and answered_ms < _ms(_CONNECTS_AGAIN_WITHIN + _SETTLES_WITHIN)


def _kept(slot: SlotReport | None) -> str:
    if slot is None or not slot.exists:
        return ""
    return f"; the database keeps {slot.retained_bytes / (1 << 20):,.1f} MiB of WAL for it"


def _restart(report: ConnectorReport) -> str:
    return f"correct this and restart it: POST /connectors/{report.name}/restart?includeTasks=true"


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:,.0f} s"


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
