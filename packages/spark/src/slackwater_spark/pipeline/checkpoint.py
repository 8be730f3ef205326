"""What Slackwater keeps beside Spark's own files in a checkpoint folder, and what it reads of them."""

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from slackwater_protocol import ProgressRecord
from slackwater_spark.pipeline.errors import IncompatibleCheckpointError
from slackwater_spark.pipeline.fingerprint import PipelineFingerprint
from slackwater_spark.state.checkpoint import begun_batch, drop_begun_batch
from slackwater_spark.state.hold import CheckpointHold

_log = logging.getLogger(__name__)
FINGERPRINT_FILE = "slackwater.json"
FAILED_FILE = "slackwater.failed"
"""The number of the batch in which the last run failed."""


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
        before = self._stored()
        if before is not None:
            changes = fingerprint.changes_since(before)
        elif self.query_id() is not None:
            changes = (("its origin", "a Spark query of another kind", "a pipeline"),)
        else:
            changes = ()
        if changes:
            raise IncompatibleCheckpointError(str(self.folder), changes, fingerprint.revision)

    def claim(self, fingerprint: PipelineFingerprint) -> None:
        """Writes the fingerprint into a new checkpoint; otherwise like :meth:`check`. Idempotent."""
        self.check(fingerprint)
        if self._stored() is None:
            self._store(fingerprint.to_json())

    def batch_failed(self) -> None:
        """Notes that the newest batch failed, and that the run, with all tasks of the batch, ends for it."""
        batch = begun_batch(self.folder)
        if batch is not None:
            with suppress(OSError):  # a full disk; the batch is then repeated as it was
                (self.folder / FAILED_FILE).write_text(str(batch), encoding="utf-8")

    def replan_failed(self, progress: ProgressRecord | None, hold: CheckpointHold) -> None:
        """Lets Spark plan the batch anew in which the last run failed, if nothing of it was published.

        Else it would be repeated as it was, for ever if it fails for a row that was corrected meanwhile. A
        batch during which a run was killed is always repeated as it was: tasks of that run may still write
        state, and must not write any that differs. Only for a sink that keeps its progress with its output,
        after earlier runs were fenced.

        Args:
            progress: The newest batch that was published.
            hold: Of this run.
        """
        try:
            failed = (self.folder / FAILED_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        with hold.alone() as is_alone:
            (self.folder / FAILED_FILE).unlink()
            batch = begun_batch(self.folder)
            if not is_alone or batch is None or failed != str(batch):
                return
            if progress is None or progress.batch_id < batch:
                _log.info("batch %d failed, and nothing of it was published: it is planned anew", batch)
                drop_begun_batch(self.folder, batch)

    def _stored(self) -> dict[str, Any] | None:
        try:
            text = (self.folder / FINGERPRINT_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return dict(json.loads(text))

    def _store(self, fields: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / FINGERPRINT_FILE
        draft = target.with_name(f".{FINGERPRINT_FILE}.{os.getpid()}")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(fields, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
