"""What is known of pipelines from their topic: who they are, whether they run, who holds a name."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from slackwater_protocol import PipelineEntry, PipelineRegistration, PipelineReport

VANISHED_AFTER = timedelta(seconds=30)
"""A run has vanished that is silent for so long and did not say that it ends; it reports every 10 s."""
HELD_FOR = timedelta(minutes=1)
"""A name is held for so long after its pipeline was heard of, unless it said that it ends."""


class PipelineState(StrEnum):
    """What a pipeline does, as far as it has told."""

    RUNNING = "running"
    LEFT = "left"
    """Its newest run ended in order."""
    FAILED = "failed"
    """Its newest run ended with an error."""
    VANISHED = "vanished"
    """Its newest run is silent and did not say that it ends: killed, cut off, or its machine is gone."""


@dataclass(frozen=True, slots=True)
class KnownPipeline:
    """A checkpoint of a pipeline, with what its newest run has told."""

    registration: PipelineRegistration
    offset: int
    """The registration's, in the topic of pipelines."""
    report: PipelineReport | None
    """The run's newest; None: it has not reported yet."""
    heard_ms: int
    """The time of the newest word of the run, milliseconds since the epoch."""

    def state(self, now_ms: int) -> PipelineState:
        """Returns what the pipeline does at a time."""
        end = None if self.report is None else self.report.end
        if end is not None:
            return PipelineState.FAILED if end.failure else PipelineState.LEFT
        is_silent = now_ms - self.heard_ms > VANISHED_AFTER / timedelta(milliseconds=1)
        return PipelineState.VANISHED if is_silent else PipelineState.RUNNING

    def holds_name(self, now_ms: int) -> bool:
        """Says whether the newest run may still go on at a time, so that nobody else may use its name."""
        has_ended = self.report is not None and self.report.end is not None
        return not has_ended and now_ms - self.heard_ms <= HELD_FOR / timedelta(milliseconds=1)

    def _rank(self, now_ms: int) -> tuple[bool, int]:
        return self.state(now_ms) is PipelineState.RUNNING, self.offset


def known_checkpoints(entries: Iterable[PipelineEntry]) -> list[KnownPipeline]:
    """Returns every checkpoint of every name, by name and id; the order of entries does not matter.

    A report counts only for the run that wrote it: one that was overtaken, and does not know it yet, says
    nothing of the run that goes on.
    """
    registrations: dict[tuple[str, str], PipelineEntry] = {}
    reports: dict[tuple[str, str], PipelineEntry] = {}
    for entry in entries:
        record = entry.record
        newest = registrations if isinstance(record, PipelineRegistration) else reports
        key = (record.pipeline, record.query_id)
        if key not in newest or newest[key].offset < entry.offset:
            newest[key] = entry
    return [_known(registrations[key], reports.get(key)) for key in sorted(registrations)]


def known_pipelines(entries: Iterable[PipelineEntry], now_ms: int) -> list[KnownPipeline]:
    """Returns one checkpoint for each name, by name: the one that runs, else the one registered last."""
    chosen: dict[str, KnownPipeline] = {}
    for known in known_checkpoints(entries):
        name = known.registration.pipeline
        if name not in chosen or chosen[name]._rank(now_ms) < known._rank(now_ms):  # noqa: SLF001 - same class
            chosen[name] = known
    return list(chosen.values())


def holder_of(
    registration: PipelineRegistration,
    entries: Iterable[PipelineEntry],
    now_ms: int,
    *,
    before: int | None = None,
) -> KnownPipeline | None:
    """Returns who keeps a run from using its name; None: nobody.

    Another checkpoint holds the name while it runs; and for good if it has other outputs, or reads another
    source, for it is then another pipeline. One whose outputs are functions holds it only while it runs.

    Args:
        registration: Of the run; its checkpoint never keeps it from anything.
        entries: Of the topic.
        now_ms: The time, milliseconds since the epoch.
        before: Only runs count that registered below this offset. Of several that begin in one moment, all
            of which register before they ask, exactly the first one finds nobody.
    """
    end = float("inf") if before is None else before
    for other in _others_of(registration, entries):
        is_another = _is_another_pipeline(other.registration, registration)
        if other.offset < end and (is_another or other.holds_name(now_ms)):
            return other
    return None


def superseded(
    registration: PipelineRegistration, entries: Iterable[PipelineEntry], before: int
) -> list[KnownPipeline]:
    """Returns other checkpoints of a run's name, registered below an offset: it takes their place."""
    return [other for other in _others_of(registration, entries) if other.offset < before]


def _others_of(
    registration: PipelineRegistration, entries: Iterable[PipelineEntry]
) -> Iterator[KnownPipeline]:
    """Yields the other checkpoints of the same name."""
    for other in known_checkpoints(entries):
        is_same_name = other.registration.pipeline == registration.pipeline
        if is_same_name and other.registration.query_id != registration.query_id:
            yield other


def _known(entry: PipelineEntry, reported: PipelineEntry | None) -> KnownPipeline:
    registration, report = entry.record, None if reported is None else reported.record
    assert isinstance(registration, PipelineRegistration)  # noqa: S101 - sorted by kind
    if reported is None or not isinstance(report, PipelineReport) or report.run != registration.run:
        return KnownPipeline(registration, entry.offset, None, entry.written_ms)
    heard_ms = max(entry.written_ms, reported.written_ms)
    return KnownPipeline(registration, entry.offset, report, heard_ms)


def _is_another_pipeline(one: PipelineRegistration, other: PipelineRegistration) -> bool:
    places = _places(one)
    return bool(places) and (one.source != other.source or places != _places(other))


def _places(registration: PipelineRegistration) -> set[tuple[str, str]]:
    return {(view.kind, view.output) for view in registration.views if view.kind != "function"}
