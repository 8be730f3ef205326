"""The meaning of a pipeline, noted in its checkpoint by the first run, so that later runs notice changes."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slackwater_spark.errors import PipelineStateError
from slackwater_spark.pipeline.definition import PipelineDefinition, view_inputs
from slackwater_spark.state import Checkpoint
from slackwater_sql.plan import EnginePlan, InputPlan, PublishedView, fingerprint

FINGERPRINT_FILE = "slackwater.json"
VERSION = 2
"""The version of the form of the state as a whole: 2 has stages."""

_NOT_THERE = "no part of it"

Change = tuple[str, str, str]
"""The name of a fact, its value in the checkpoint, its value now; an empty value: the last is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFingerprint:
    """A view's topic and meaning, which must not change, and facts that tell a person what has changed."""

    topic: str
    fingerprint: str
    facts: Mapping[str, str] = field(default_factory=dict)
    """By name: types of the columns it uses, its record key, the types of its outputs."""

    @classmethod
    def take(cls, plan: EnginePlan, view: PublishedView, topic: str) -> "ViewFingerprint":
        """Takes the fingerprint of a view of a plan."""
        facts = {"record key": ", ".join(view.key)}
        facts |= {f"output {each.name}": each.type for each in view.outputs}
        for each in view_inputs(plan, view):
            facts |= _table_facts(each)
        return cls(topic=topic, fingerprint=view.fingerprint, facts=facts)

    def changes(self, name: str, now: "ViewFingerprint") -> Iterator[Change]:
        """Yields what differs."""
        if self.topic != now.topic:
            yield f"output topic of view {name}", self.topic, now.topic
        if self.fingerprint == now.fingerprint:
            return
        found = [
            (fact, self.facts.get(fact, _NOT_THERE), now.facts.get(fact, _NOT_THERE))
            for fact in sorted({*self.facts, *now.facts})
            if self.facts.get(fact) != now.facts.get(fact)
        ]
        yield f"view {name}", "", "has another " + ("meaning" if found else "SQL")
        yield from found


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFingerprint:
    """Two pipelines with equal ones can continue each other."""

    pipeline: str
    revision: int
    """For people: the name has it, too."""
    source: str
    timeline: int
    scope: str
    emit: str
    buckets: int
    stages: str
    """The fingerprint of all that stages keep; another one if another version plans the views otherwise."""
    views: Mapping[str, ViewFingerprint]

    @classmethod
    def take(cls, definition: PipelineDefinition, timeline: int) -> "PipelineFingerprint":
        """Takes the fingerprint of a pipeline that reads a timeline."""
        plan = definition.plan
        return cls(
            pipeline=definition.name,
            revision=definition.revision,
            source=definition.source,
            timeline=timeline,
            scope=str(definition.scope),
            emit=str(definition.emit),
            buckets=definition.buckets,
            stages=fingerprint(plan.stages),
            views={
                view.name: ViewFingerprint.take(plan, view, output.topic)
                for view, output in zip(plan.views, definition.outputs, strict=True)
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the form that stands in the checkpoint."""
        views = {
            name: {"topic": view.topic, "fingerprint": view.fingerprint, "facts": dict(view.facts)}
            for name, view in self.views.items()
        }
        return {"version": str(VERSION), **self._fields(), "stages": self.stages, "views": views}

    def changes_since(self, before: Mapping[str, Any]) -> tuple[Change, ...]:
        """Returns what has changed since another fingerprint; nothing if the state fits.

        Args:
            before: The other one, as :meth:`to_json` gave it, perhaps of an older version.
        """
        if before.get("version") != str(VERSION):
            return (("the form of the state", str(before.get("version")), str(VERSION)),)
        fields = [(name, str(before.get(name)), now) for name, now in self._fields().items()]
        changes = [change for change in fields if change[1] != change[2]]
        changes += self._view_changes(before["views"])
        if not changes and before["stages"] != self.stages:
            changes.append(("the stages", "", "are planned otherwise by this version"))
        return tuple(changes)

    def _fields(self) -> dict[str, str]:
        """Returns the simple fields by the names that a person knows."""
        return {
            "name": self.pipeline,
            "source": self.source,
            "timeline": str(self.timeline),
            "scope": self.scope,
            "emit": self.emit,
            "buckets": str(self.buckets),
        }

    def _view_changes(self, before: Mapping[str, Any]) -> Iterator[Change]:
        for name in sorted({*before, *self.views}):
            now = self.views.get(name)
            if now is None:
                yield f"view {name}", "", "is gone"
            elif name not in before:
                yield f"view {name}", "", "is new"
            else:
                yield from ViewFingerprint(**before[name]).changes(name, now)


def check_fingerprint(checkpoint: Checkpoint, fingerprint: PipelineFingerprint) -> None:
    """Refuses a pipeline that may not use this checkpoint; changes nothing.

    Raises:
        PipelineStateError: the checkpoint belongs to a pipeline that means something else.
    """
    before = _read(checkpoint.folder)
    if before is not None:
        changes = fingerprint.changes_since(before)
    elif checkpoint.query_id() is not None:
        changes = (("its origin", "a Spark query of another kind", "a pipeline"),)
    else:
        changes = ()
    if changes:
        raise _incompatible(checkpoint.folder, changes, fingerprint.revision)


def claim_checkpoint(checkpoint: Checkpoint, fingerprint: PipelineFingerprint) -> None:
    """Writes the fingerprint into a new checkpoint; otherwise like :func:`check_fingerprint`. Idempotent."""
    check_fingerprint(checkpoint, fingerprint)
    if _read(checkpoint.folder) is None:
        _write(checkpoint.folder, fingerprint.to_json())


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        text = (folder / FINGERPRINT_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return dict(json.loads(text))


def _write(folder: Path, fields: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / FINGERPRINT_FILE
    draft = target.with_name(f".{FINGERPRINT_FILE}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(fields, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)


def _table_facts(item: InputPlan) -> dict[str, str]:
    table = item.table.full_name
    facts = {
        f"column {table}.{column.name}": str(column.type) + ("" if column.nullable else " NOT NULL")
        for column in item.columns
    }
    return {**facts, f"primary key of {table}": ", ".join(item.table.primary_key)}


def _incompatible(folder: Path, changes: Iterable[Change], revision: int) -> PipelineStateError:
    listed = "; ".join(
        f"{name} was {was}, is {now}" if was else f"{name} {now}" for name, was, now in changes
    )
    return PipelineStateError(
        f"checkpoint {folder} does not fit the pipeline any more: {listed}",
        f"undo the change, or write `revision = {revision + 1}` into pipeline.toml: the changed pipeline "
        "then has a checkpoint of its own beside this one and output topics of its own (give new ones where "
        "pipeline.toml names topics), and builds its views from the beginning of the source's topics, while "
        "readers of the old ones are not disturbed",
    )
