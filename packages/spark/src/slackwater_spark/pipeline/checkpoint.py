"""What Slackwater keeps beside Spark's own files in a checkpoint folder, and what it reads of them."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from slackwater_protocol import ProgressRecord
from slackwater_spark.pipeline.errors import IncompatibleCheckpointError
from slackwater_spark.pipeline.fingerprint import PipelineFingerprint
from slackwater_spark.state.checkpoint import is_checkpoint, is_rescaling, newest_batch

_log = logging.getLogger(__name__)
FINGERPRINT_FILE = "slackwater.json"


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

    def replan_unpublished(self, progress: ProgressRecord | None) -> None:
        """Lets Spark plan the batch anew that it began, but of which nothing was published.

        Else it would be repeated as it was, for ever if it fails for a row that was corrected meanwhile. Only
        for a sink that keeps its progress with its output, after earlier runs were fenced.

        Args:
            progress: The newest batch that was published.
        """
        if not is_checkpoint(self.folder):
            return
        begun, ended = newest_batch(self.folder, "offsets"), newest_batch(self.folder, "commits")
        if begun is None or begun == ended:
            return
        is_published = progress is not None and progress.batch_id >= begun
        if not is_published and not is_rescaling(self.folder, begun):
            _log.info("batch %d was begun, but not published: it is planned anew", begun)
            if ended is None:
                # No state counts yet, and Spark begins with batch 0 only where there is none.
                shutil.rmtree(self.folder / "state", ignore_errors=True)
            for name in (str(begun), f".{begun}.crc"):
                (self.folder / "offsets" / name).unlink(missing_ok=True)

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
