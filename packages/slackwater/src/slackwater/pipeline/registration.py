"""The description of a pipeline that a run registers when it begins."""

import os
import socket
import uuid
from dataclasses import replace
from importlib.metadata import version

from slackwater.outputs import SinkKind
from slackwater.pipeline.definition import PipelineDefinition, ViewOutput, stage_inputs
from slackwater.pipeline.settings import revision_name
from slackwater.protocol import (
    Clock,
    PipelineRegistration,
    RegisteredStage,
    RegisteredView,
    SourceTopics,
    epoch_ms,
)
from slackwater.sql.plan import EnginePlan, PublishedView

_FUNCTION = "function"
"""The kind of an output that passes documents to a function; a folder cannot specify it."""


def make_registration(
    definition: PipelineDefinition, *, timeline: int, checkpoint: str, calls_function: bool, clock: Clock
) -> PipelineRegistration:
    """Returns the description of a run of this process that begins now, without the id of its checkpoint.

    Args:
        definition: The pipeline.
        timeline: The timeline that is read.
        checkpoint: The address of the checkpoint, without credentials.
        calls_function: Whether a function receives the documents.
        clock: Provides the start time.
    """
    topics = SourceTopics(definition.source, definition.topics)
    views = zip(definition.plan.views, definition.outputs, strict=True)
    return PipelineRegistration(
        pipeline=definition.name,
        base_name=definition.name.removesuffix(revision_name("", definition.revision)),
        revision=definition.revision,
        owner=definition.owner,
        source=definition.source,
        timeline=timeline,
        emit=str(definition.emit),
        scope=str(definition.scope),
        tables={table: topics.data(table) for table in definition.tables},
        stages=_stages(definition.plan),
        views=tuple(
            _view(definition.plan, view, output, calls_function=calls_function) for view, output in views
        ),
        query_id="",
        checkpoint=checkpoint,
        run=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("slackwater"),
        started_ms=epoch_ms(clock.now()),
    )


def with_checkpoint(registration: PipelineRegistration, query_id: str) -> PipelineRegistration:
    """Returns the registration of a run with the checkpoint of this id.

    Functions that receive the documents of one pipeline are separate pipelines, so the id is part of their
    names.
    """
    name = registration.pipeline
    if any(view.kind == _FUNCTION for view in registration.views):
        name = f"{registration.base_name}/{query_id[:8]}"
    return replace(registration, pipeline=name, query_id=query_id)


def _stages(plan: EnginePlan) -> tuple[RegisteredStage, ...]:
    level_of = {number: level for level, numbers in enumerate(plan.levels, 1) for number in numbers}
    earlier: dict[int, list[int]] = {stage.number: [] for stage in plan.stages}
    for stage in plan.stages:
        for receiver in stage.receivers:
            if receiver != stage.number:
                earlier[receiver].append(stage.number)
    return tuple(
        RegisteredStage(
            number=stage.number,
            level=level_of[stage.number],
            key=tuple(dict(stage.labels).get(column.name, column.name) for column in stage.key),
            tables=_tables(plan, (stage.number,)),
            stages=tuple(earlier[stage.number]),
            why=stage.why,
            identity=stage.identity,
        )
        for stage in plan.stages
    )


def _view(
    plan: EnginePlan, view: PublishedView, output: ViewOutput, *, calls_function: bool
) -> RegisteredView:
    is_topic = output.kind is SinkKind.KAFKA and not calls_function
    return RegisteredView(
        name=view.name,
        output=output.name,
        kind=_FUNCTION if calls_function else str(output.kind),
        format=str(output.format) if is_topic else "",
        output_source=output.prefix if output.is_source else "",
        tables=_tables(plan, view.stages),
        stages=view.stages,
    )


def _tables(plan: EnginePlan, stages: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(sorted({each.table.full_name for each in stage_inputs(plan, stages)}))
