"""Finds what several pipelines of a source compute and keep, and what merging them would save."""

from collections.abc import Iterable
from dataclasses import dataclass

from slackwater.control.topology import PipelineNode, Topology
from slackwater.protocol import RegisteredStage


@dataclass(frozen=True, slots=True)
class StageCopy:
    """A stage of a pipeline that others have, too."""

    pipeline: str
    stage: int
    emit: str
    """Which states its pipeline publishes. Pipelines that differ in it have to agree on one to become one."""
    state_bytes: int | None
    """What it keeps, before compression; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualStages:
    """Stages of several pipelines that compute the same rows of the same source."""

    source: str
    key: tuple[str, ...]
    """The columns that its rows are spread by."""
    tables: tuple[str, ...]
    """The tables that it reads itself."""
    why: str
    """The work that each of them does."""
    copies: tuple[StageCopy, ...]
    """By pipeline."""
    saved_bytes: int | None
    """What all of them but the largest keep; None: not known of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What is computed twice in a cluster."""

    equal: tuple[EqualStages, ...]
    """What would save most comes first."""
    unknown: tuple[str, ...]
    """Pipelines that do not say what their stages compute: of older versions, or not made of SQL."""


def find_equal_stages(topology: Topology) -> Sharing:
    """Finds stages that could be one if their pipelines were.

    Only pipelines that could be one are compared: of the same source and timeline, with the same scope.
    Pipelines that do not run count, too, since they still have their state. Of the revisions of a
    pipeline only the newest does: the earlier one is there to be left.
    """
    groups: dict[tuple[str, ...], list[tuple[PipelineNode, RegisteredStage]]] = {}
    for pipeline in _newest_revisions(topology.pipelines):
        alike = (pipeline.source, str(pipeline.timeline), pipeline.scope)
        for stage in pipeline.stages:
            if stage.identity:
                groups.setdefault((*alike, stage.identity), []).append((pipeline, stage))
    found = [_equal(group) for group in groups.values() if len(group) > 1]
    found.sort(key=lambda each: (-(each.saved_bytes or 0), each.source, each.copies[0].pipeline))
    unknown = (p.name for p in topology.pipelines if not all(stage.identity for stage in p.stages))
    return Sharing(equal=tuple(found), unknown=tuple(unknown))


def _newest_revisions(pipelines: Iterable[PipelineNode]) -> Iterable[PipelineNode]:
    newest: dict[str, PipelineNode] = {}
    for each in pipelines:
        for name in each.base_names:
            if name not in newest or newest[name].revision < each.revision:
                newest[name] = each
    return {each.name: each for each in newest.values()}.values()


def _equal(group: list[tuple[PipelineNode, RegisteredStage]]) -> EqualStages:
    pipeline, stage = group[0]
    copies = tuple(
        StageCopy(each.name, its.number, each.emit, each.state_bytes.get(str(its.number)))
        for each, its in group
    )
    sizes = [each.state_bytes for each in copies]
    known = [size for size in sizes if size is not None]
    return EqualStages(
        source=pipeline.source,
        key=stage.key,
        tables=stage.tables,
        why=stage.why,
        copies=copies,
        saved_bytes=sum(known) - max(known) if known and len(known) == len(sizes) else None,
    )
