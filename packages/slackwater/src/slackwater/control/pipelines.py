"""What is known of pipelines from their topic: who they are, whether they run, who holds a name."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from slackwater.protocol import PipelineEntry, PipelineRegistration, PipelineReport

VANISHED_AFTER = timedelta(seconds=30)
"""A run that is silent for longer, and did not say that it ends, has vanished; it reports every 3 s."""
HELD_FOR = timedelta(minutes=1)
"""How long a name is held after its pipeline reported last, unless it said that it ends."""


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
class KnownRun:
    """A run of a pipeline, with what it has told."""

    registration: PipelineRegistration
    offset: int
    """The registration's, in the topic of pipelines."""
    report: PipelineReport | None
    """The newest one; None: it has not reported yet."""
    last_offset: int
    """Of its newest word."""
    heard_ms: int
    """The time of its newest word, milliseconds since the epoch."""

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
    another source, for it is then of another pipeline.

    Args:
        registration: Of the run; runs with its checkpoint never keep it from anything.
        entries: Of the topic.
        now_ms: The time, milliseconds since the epoch.
        before: Only runs count that registered below this offset. Of several that begin in one moment, all
            of which register before they ask, exactly the first one finds nobody.
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
