"""What Slackwater keeps beside Spark's own files in a checkpoint folder, and what it reads of them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.errors import IncompatibleCheckpointError
from slackwater_spark.scope import Scope

FINGERPRINT_FILE = "slackwater.json"
_VERSION = 1
_BEFORE_SCOPES = {"scope": str(Scope.STRICT)}
"""What fingerprints mean that do not name a scope."""


@dataclass(frozen=True, slots=True)
class PipelineFingerprint:
    """What a checkpoint's state depends on; two pipelines with equal ones can continue each other."""

    pipeline: str
    source: str
    timeline: int
    scope: str
    emit: str
    buckets: int
    output: str
    view: str
    """Fingerprint of the compiled view: differs when the view's meaning or the kept columns differ."""

    @classmethod
    def of(cls, definition: PipelineDefinition, timeline: int) -> "PipelineFingerprint":
        """The fingerprint of a pipeline that reads a timeline."""
        return cls(
            pipeline=definition.name,
            source=definition.source,
            timeline=timeline,
            scope=str(definition.scope),
            emit=str(definition.emit),
            buckets=definition.buckets,
            output=definition.topic,
            view=definition.view.fingerprint,
        )

    def fields(self) -> dict[str, str]:
        """By the name a person knows."""
        return {
            "version": str(_VERSION),
            "name": self.pipeline,
            "source": self.source,
            "timeline": str(self.timeline),
            "scope": self.scope,
            "emit": self.emit,
            "buckets": str(self.buckets),
            "output topic": self.output,
            "view or schema (fingerprint)": self.view,
        }


class Checkpoint:
    """A checkpoint folder on a file system of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def query_id(self) -> str | None:
        """Spark's query id; None while no query was ever started with this checkpoint."""
        try:
            return str(json.loads((self.folder / "metadata").read_text(encoding="utf-8"))["id"])
        except FileNotFoundError:
            return None

    def check(self, fingerprint: PipelineFingerprint) -> None:
        """Whether a pipeline may use this checkpoint; changes nothing.

        Raises:
            IncompatibleCheckpointError: the checkpoint belongs to a pipeline that means something else.
        """
        now, before = fingerprint.fields(), self._stored()
        if before is None:
            if self.query_id() is not None:
                origin = ("its origin", "a Spark query of another kind", "a pipeline")
                raise IncompatibleCheckpointError(str(self.folder), (origin,))
        elif before != now:
            changes = tuple(
                (name, before.get(name, "absent"), now.get(name, "absent"))
                for name in sorted({*before, *now})
                if before.get(name) != now.get(name)
            )
            raise IncompatibleCheckpointError(str(self.folder), changes)

    def claim(self, fingerprint: PipelineFingerprint) -> None:
        """Writes the fingerprint into a new checkpoint; otherwise like :meth:`check`. Idempotent."""
        self.check(fingerprint)
        if self._stored() is None:
            self._store(fingerprint.fields())

    def _stored(self) -> dict[str, str] | None:
        try:
            text = (self.folder / FINGERPRINT_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return _BEFORE_SCOPES | {str(name): str(value) for name, value in json.loads(text).items()}

    def _store(self, fields: dict[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / FINGERPRINT_FILE
        draft = target.with_name(f".{FINGERPRINT_FILE}.{os.getpid()}")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(fields, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
