"""Plans what a run of a changed folder does, before it does it. A run with a plan does nothing else."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from slackwater.cdc.batch import OffsetSpan
from slackwater.engine.state.inspection import find_state
from slackwater.engine.state.manifest import history
from slackwater.outputs.contract import REQUEST_TIMEOUT
from slackwater.pipeline.checkpoint import Checkpoint, fingerprint_changes, listed_changes
from slackwater.pipeline.copied_state import EarlierRevisions
from slackwater.pipeline.definition import PipelineDefinition, ViewOutput, pipeline_fingerprint
from slackwater.pipeline.folder import load_pipeline
from slackwater.pipeline.settings import RunSettings, revision_checkpoint
from slackwater.pipeline.source.kafka_reader import partition_spans
from slackwater.pipeline.source.position import Position
from slackwater.protocol import ConfigError, StateError

_VERSION: Final = 1


class Begins(StrEnum):
    """How a run begins."""

    KEPT = "kept"
    """With the state of its checkpoint, all of whose stages stay as they are."""
    COPIED = "copied"
    """With the rows in the state of another revision, from which all stages are built."""
    TOPICS = "topics"
    """At the beginning of the source's topics."""
    REFUSED = "refused"


class Change(StrEnum):
    """What becomes of a stage or an output."""

    KEPT = "kept"
    REBUILT = "rebuilt"
    ADDED = "added"
    REMOVED = "removed"
    LEFT = "left alone"


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of the changed pipeline, or of the earlier one."""

    change: Change
    why: str
    """The work that it does."""


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """An output of the changed pipeline, or of another revision."""

    change: Change
    pipeline: str
    kind: str
    name: str
    readers: tuple[str, ...] = ()
    """Those that are known: chained pipelines, leases, and readers that were switched to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBasis:
    """What a plan was made of, which a run compares."""

    meaning: Mapping[str, Any]
    """The fingerprint of the pipeline, without a number of buckets that the first run chooses."""
    outputs: Mapping[str, str]
    """By view the kind and the place of its output, and what else it is made with."""
    checkpoint: str
    checkpoint_id: str
    """Empty: it is new."""
    copied_id: str
    """The id of the checkpoint whose state is copied; empty if none is."""
    first_offsets: Mapping[str, tuple[int, ...]]
    """Where the topics of the tables begin, by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """What a run will do."""

    version: int = _VERSION
    pipeline: str
    begins: Begins
    changes: tuple[str, ...] = ()
    """Why the checkpoint no longer fits, or why a state cannot be copied."""
    stages: tuple[PlannedStage, ...] = ()
    outputs: tuple[PlannedOutput, ...] = ()
    records: int = 0
    """The number of records to read from the topics."""
    state_bytes: int = 0
    """The size of the state to copy, before compression."""
    events_per_second: float | None = None
    """The rate at which the newest batch was processed; None: not known."""
    command: str
    problems: tuple[str, ...] = ()
    """What else the run would find, as with --dry-run."""
    basis: PlanBasis = field(repr=False)

    @property
    def minutes(self) -> float | None:
        """The expected duration; None: not known."""
        if not self.events_per_second or self.state_bytes or self.begins is Begins.REFUSED:
            return None
        return self.records / self.events_per_second / 60


@dataclass(frozen=True, slots=True)
class Known:
    """What pipelines and readers have registered, as far as a plan needs it."""

    stages: Mapping[str, str] = field(default_factory=dict)
    """The stages of the newest revision so far: by identity what each does."""
    outputs: tuple[PlannedOutput, ...] = ()
    """The outputs of all revisions so far, with their readers."""
    events_per_second: float | None = None


def plan_change(
    definition: PipelineDefinition, settings: RunSettings, known: Known, folder: str
) -> ChangePlan:
    """Returns what a run with these settings will do; nothing is written.

    Raises:
        SlackwaterError: Kafka or a store does not answer.
    """
    checkpoint, spans = _checkpoint(definition.revision, settings), _spans(definition, settings)
    stages, size = known.stages, 0
    begins, changes = Begins.TOPICS, tuple[str, ...]()
    position = Position(source=definition.source, timeline=settings.timeline, scope=definition.scope)
    identity = checkpoint.identity()
    fitting = replace(definition, buckets=definition.buckets or (identity.buckets if identity else 1))
    if found := checkpoint.changes(pipeline_fingerprint(fitting, settings.timeline)):
        begins, changes = Begins.REFUSED, (listed_changes(found),)
    elif history(checkpoint.store):
        begins, data = Begins.KEPT, find_state(checkpoint.store).state.position or {}
        position = Position.from_json(
            data, source=definition.source, timeline=settings.timeline, scope=definition.scope
        )
    elif settings.copy_state_of:
        earlier = [load_pipeline(each) for each in settings.copy_state_of]
        stages = {stage.identity: stage.why for each in earlier for stage in each.plan.stages}
        begins, changes, position, size = _copied(earlier, fitting, settings, position)
    records = sum(
        max(0, each.to_offset - max(each.from_offset, position.start_in(each.topic, each.partition)))
        for each in spans
    )
    return ChangePlan(
        pipeline=definition.name,
        begins=begins,
        changes=changes,
        stages=tuple(_stages(definition, begins, stages)),
        outputs=tuple(_outputs(definition, begins, known.outputs)),
        records=0 if begins is Begins.REFUSED else records,
        state_bytes=size,
        events_per_second=known.events_per_second,
        command=_command(definition, settings, begins, folder),
        basis=_basis(definition, settings, spans),
    )


def _basis(definition: PipelineDefinition, settings: RunSettings, spans: Iterable[OffsetSpan]) -> PlanBasis:
    """Returns what a plan depends on, as it is now."""
    checkpoint = _checkpoint(definition.revision, settings)
    identity, copied_id = checkpoint.identity(), ""
    if settings.copy_state_of and identity is None:
        earlier = [load_pipeline(each) for each in settings.copy_state_of]
        copied = [each.identity() for each in EarlierRevisions(earlier, definition, settings).checkpoints]
        copied_id = " ".join(each.query_id for each in copied if each is not None)
    firsts: dict[str, tuple[int, ...]] = {}
    for span in sorted(spans, key=lambda span: (span.topic, span.partition)):
        firsts[span.topic] = (*firsts.get(span.topic, ()), span.from_offset)
    return PlanBasis(
        meaning=pipeline_fingerprint(replace(definition, buckets=definition.buckets or 1), settings.timeline),
        outputs={each.view: _place(each) for each in definition.outputs},
        checkpoint=checkpoint.store.address,
        checkpoint_id="" if identity is None else identity.query_id,
        copied_id=copied_id,
        first_offsets=firsts,
    )


def check_plan(definition: PipelineDefinition, settings: RunSettings) -> None:
    """Does nothing if the plan of the settings still holds, or there is none.

    A run that was killed may be started again with its plan.

    Raises:
        ConfigError: The file is no plan. StateError: Something has changed since, which is named.
    """
    if settings.plan is None:
        return
    plan = read_plan(settings.plan)
    now = _basis(definition, settings, _spans(definition, settings))
    changed = [*plan.changes, *basis_changes(plan, now)]
    if changed:
        raise StateError(
            f"plan {settings.plan} does not hold: {'; '.join(changed)}",
            f"make it again (`slackwater plan DIR … --out {settings.plan}`), and read it before you run it",
        )


def read_plan(path: Path) -> ChangePlan:
    """Reads a plan from its file.

    Raises:
        ConfigError: It is not there, or no plan of this version.
    """
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=ChangePlan)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"plan {path} cannot be read: {error}", "`slackwater plan --out` writes one"
        ) from error
    if plan.version != _VERSION:
        raise ConfigError(f"plan {path} has version {plan.version}, expected {_VERSION}", "make it again")
    return plan


def basis_changes(plan: ChangePlan, now: PlanBasis) -> Iterator[str]:
    """Yields what is no longer as it was when the plan was made."""
    then = plan.basis
    if meaning := tuple(fingerprint_changes(then.meaning, now.meaning)):
        yield listed_changes(meaning)
    for view in sorted(then.outputs.keys() & now.outputs.keys()):
        if then.outputs[view] != now.outputs[view]:
            yield f"output of view {view} was {then.outputs[view]}, is {now.outputs[view]}"
    if then.checkpoint != now.checkpoint:
        yield f"checkpoint was {then.checkpoint}, is {now.checkpoint}"
    if then.checkpoint_id and then.checkpoint_id != now.checkpoint_id:
        was, found = then.checkpoint_id, now.checkpoint_id or "gone"
        yield f"the id of checkpoint {then.checkpoint} was {was}, is {found}"
    if not now.checkpoint_id:
        yield from _beginning_changes(plan, now)


def _beginning_changes(plan: ChangePlan, now: PlanBasis) -> Iterator[str]:
    """Yields what is no longer as it was, for a run that has not begun."""
    if plan.basis.copied_id != now.copied_id:
        was, found = (each or "none" for each in (plan.basis.copied_id, now.copied_id))
        yield f"the id of the checkpoint whose state is copied was {was}, is {found}"
    for topic, first in sorted(plan.basis.first_offsets.items()) if plan.begins is Begins.TOPICS else ():
        begins = now.first_offsets.get(topic, ())
        if first != begins[: len(first)]:
            yield f"topic {topic} began at offsets {list(first)}, begins at {list(begins)}"


def plan_lines(plan: ChangePlan) -> Iterator[str]:
    """Yields the lines of the text."""
    yield f"pipeline {plan.pipeline}: {_BEGINS[plan.begins]}"
    yield from (f"  {each}" for each in plan.changes)
    yield from (f"stage     {each.change:<10}  {each.why}" for each in plan.stages)
    for output in plan.outputs:
        readers = f"; read by {', '.join(output.readers)}" if output.readers else ""
        yield f"output    {output.change:<10}  {output.kind} {output.name} of {output.pipeline}{readers}"
    if plan.begins is not Begins.REFUSED:
        copied = f"{plan.state_bytes:,} bytes of state to copy, then " if plan.state_bytes else ""
        yield f"to read   {copied}{plan.records:,} records"
        yield f"duration  {_duration(plan)}"
    yield f"command   {plan.command}"


_BEGINS: Final = {
    Begins.KEPT: "the run continues with its state",
    Begins.COPIED: "the run builds its views from the rows in the state of another revision",
    Begins.TOPICS: "the run builds its views from the beginning of the source's topics",
    Begins.REFUSED: "the run is refused",
}


def _duration(plan: ChangePlan) -> str:
    if plan.minutes is None:
        return "not known: no run has measured a rate for this"
    return (
        f"about {plan.minutes:,.1f} min, at the {plan.events_per_second:,.0f} records/s of the newest batch"
    )


def _place(output: ViewOutput) -> str:
    more = [f"{output.partitions} partitions"] if output.partitions else []
    more += [name for name in ("history", "cloudevents") if getattr(output, name)]
    return ", ".join((f"{output.kind} {output.name}", *more))


def _checkpoint(revision: int, settings: RunSettings) -> Checkpoint:
    return Checkpoint(revision_checkpoint(settings.checkpoint, revision), settings.spark_conf)


def _spans(definition: PipelineDefinition, settings: RunSettings) -> list[OffsetSpan]:
    return partition_spans(settings.servers.kafka, definition.input_topics, REQUEST_TIMEOUT)


def _copied(
    earlier: Sequence[PipelineDefinition],
    definition: PipelineDefinition,
    settings: RunSettings,
    beginning: Position,
) -> tuple[Begins, tuple[str, ...], Position, int]:
    try:
        revisions = EarlierRevisions(earlier, definition, settings)
        position = revisions.check()
    except (ConfigError, StateError) as error:
        return Begins.REFUSED, (error.problem,), beginning, 0
    sizes = [find_state(each.store).state.stage_bytes() for each in revisions.checkpoints]
    return Begins.COPIED, (), position, sum(sum(each.values()) for each in sizes)


def _stages(
    definition: PipelineDefinition, begins: Begins, before: Mapping[str, str]
) -> Iterator[PlannedStage]:
    for stage in definition.plan.stages:
        rebuilt = Change.REBUILT if stage.identity in before else Change.ADDED
        yield PlannedStage(Change.KEPT if begins is Begins.KEPT else rebuilt, stage.why)
    now = {stage.identity for stage in definition.plan.stages}
    if begins is not Begins.KEPT:
        yield from (
            PlannedStage(Change.REMOVED, why) for identity, why in before.items() if identity not in now
        )


def _outputs(
    definition: PipelineDefinition, begins: Begins, known: Iterable[PlannedOutput]
) -> Iterator[PlannedOutput]:
    by_place = {(each.pipeline, each.kind, each.name): each for each in known}
    for output in definition.outputs:
        place = (definition.name, str(output.kind), output.name)
        was = by_place.pop(place, PlannedOutput(Change.ADDED, *place))
        yield replace(was, change=Change.KEPT if begins is Begins.KEPT else Change.ADDED)
    yield from (replace(each, change=Change.LEFT) for each in by_place.values())


def _command(definition: PipelineDefinition, settings: RunSettings, begins: Begins, folder: str) -> str:
    place = f"slackwater run {folder} --checkpoint {settings.checkpoint}"
    if begins is Begins.COPIED:
        return " ".join((place, *(f"--copy-state-of {each}" for each in settings.copy_state_of)))
    if begins is not Begins.REFUSED:
        return place
    if settings.copy_state_of:
        return f"{place}, which builds the views from the topics; plan it without --copy-state-of"
    return (
        f"set `revision = {definition.revision + 1}` in pipeline.toml, then: slackwater plan {folder} "
        "--copy-state-of OLD, where OLD is the folder as it was"
    )
