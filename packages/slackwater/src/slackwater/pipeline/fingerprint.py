"""The meaning of a pipeline, recorded in the checkpoint by the first run, so that changes are detected."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.outputs.contract import Format, KeyFormat
from slackwater.pipeline.definition import PipelineDefinition, ViewOutput, view_inputs
from slackwater.sql.plan import EnginePlan, InputPlan, PublishedView, fingerprint

VERSION = 3
"""The version of the state as a whole. Version 3 has segments and manifests."""

_NOT_THERE = "no part of it"

Change = tuple[str, str, str]
"""The name of a fact, its value in the checkpoint, and its value now. If the latter is empty, the former is a
sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFingerprint:
    """A view's topic and meaning, which must not change, and facts that show a person what has changed."""

    topic: str
    fingerprint: str
    facts: Mapping[str, str] = field(default_factory=dict)
    """The facts by name: types of the columns that it uses, its record key, the types of its outputs."""

    @classmethod
    def take(cls, plan: EnginePlan, view: PublishedView, topic: str) -> "ViewFingerprint":
        """Returns the fingerprint of a view of a plan."""
        facts = {"record key": ", ".join(view.key)}
        facts |= {f"output {each.name}": each.type for each in view.outputs}
        for each in view_inputs(plan, view):
            facts |= _table_facts(each)
        return cls(topic=topic, fingerprint=view.fingerprint, facts=facts)

    def changes(self, name: str, now: "ViewFingerprint") -> Iterator[Change]:
        """Yields the differences."""
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
    """Pipelines with equal fingerprints can continue each other."""

    pipeline: str
    revision: int
    """The revision, for messages; it is also part of the name."""
    source: str
    timeline: int
    scope: str
    emit: str
    buckets: int
    stages: str
    """The fingerprint of everything that stages keep. It differs if another version plans the views
    differently."""
    views: Mapping[str, ViewFingerprint]

    @classmethod
    def take(cls, definition: PipelineDefinition, timeline: int) -> "PipelineFingerprint":
        """Returns the fingerprint of a pipeline that reads a timeline."""
        plan = definition.plan
        assert definition.buckets is not None  # noqa: S101 - a run chooses before it compares
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
                view.name: ViewFingerprint.take(plan, view, _place(output))
                for view, output in zip(plan.views, definition.outputs, strict=True)
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the form that the checkpoint contains."""
        views = {
            name: {"topic": view.topic, "fingerprint": view.fingerprint, "facts": dict(view.facts)}
            for name, view in self.views.items()
        }
        return {"version": str(VERSION), **self._fields(), "stages": self.stages, "views": views}

    def changes_since(self, before: Mapping[str, Any]) -> tuple[Change, ...]:
        """Returns what has changed since another fingerprint; empty if the state matches.

        Args:
            before: The other fingerprint, as :meth:`to_json` returned it, possibly in an older version.
        """
        if before.get("version") != str(VERSION):
            return (("the form of the state", str(before.get("version")), str(VERSION)),)
        fields = [(name, str(before.get(name)), now) for name, now in self._fields().items()]
        changes = [change for change in fields if change[1] != change[2]]
        changes += self._view_changes(before["views"])
        if not changes and before["stages"] != self.stages:
            changes.append(("the stages", "", "are planned differently by this version"))
        return tuple(changes)

    def _fields(self) -> dict[str, str]:
        """Returns the simple fields by the names that users know."""
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


def _place(output: ViewOutput) -> str:
    """Returns the name of an output, with the form of its documents if it is not plain JSON."""
    forms = [] if output.format is Format.JSON else [str(output.format)]
    forms += [] if output.key_format is KeyFormat.JSON else [f"keys {output.key_format}"]
    return f"{output.name} ({', '.join(forms)})" if forms else output.name


def _table_facts(item: InputPlan) -> dict[str, str]:
    table = item.table.full_name
    facts = {
        f"column {table}.{column.name}": str(column.type) + ("" if column.nullable else " NOT NULL")
        for column in item.columns
    }
    return {**facts, f"primary key of {table}": ", ".join(item.table.primary_key)}
