"""A checkpoint folder: what Spark's files in it say, and who works with it. Needs no Spark.

Spark writes a batch's plan into ``offsets/<batch>`` before it runs it, and ``commits/<batch>`` when it has
ended. Slackwater keeps a lock and the number of a failed batch beside them. The folder is on a file system of
this machine.
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from slackwater_spark.errors import PipelineConfigError, PipelineUnavailableError

FAILED_FILE = "slackwater.failed"
"""Holds the number of the batch in which the last run failed."""
HOLD_FILE = "slackwater.lock"

_VERSION = "v1"
_NO_OFFSET = "-"
"""What Spark writes for a source that it has not asked yet."""
_PARTITIONS = "spark.sql.shuffle.partitions"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch in Spark's offset log, which is written before the batch runs and never changed."""

    partitions: int | None = None
    """The number of the state's partitions; None: not known."""
    offsets: tuple[Any, ...] = ()
    """The end of the batch for each source, as the source wrote it; None for a source not asked yet."""

    @classmethod
    def parse(cls, text: str) -> "PlannedBatch":
        """Reads a file of the log: a line with the version, a line of metadata, a line per source.

        Raises:
            ValueError: the file is of another version, or has no metadata.
        """
        lines = text.splitlines()
        version = lines[0][:20] if lines else ""
        if version != _VERSION:
            msg = f"version {version!r}, expected {_VERSION!r}"
            raise ValueError(msg)
        try:
            partitions = json.loads(lines[1])["conf"].get(_PARTITIONS)
        except (IndexError, KeyError) as error:
            msg = "there is no metadata"
            raise ValueError(msg) from error
        return cls(None if partitions is None else int(partitions), tuple(map(_parse_offset, lines[2:])))

    def is_empty(self, before: "PlannedBatch | None") -> bool:
        """Tells whether the batch reads nothing.

        Args:
            before: The batch before; None for the first batch, and where Spark has removed that file.
        """
        if before is None:
            return bool(self.offsets) and all(_is_beginning(offset) for offset in self.offsets)
        return self.is_rescaled(before) or (bool(self.offsets) and before.offsets == self.offsets)

    def is_rescaled(self, before: "PlannedBatch") -> bool:
        """Tells whether the batch has another number of partitions than the one before."""
        return None not in (before.partitions, self.partitions) and before.partitions != self.partitions


def _parse_offset(line: str) -> Any:
    if line == _NO_OFFSET:
        return None
    try:
        return json.loads(line)
    except ValueError:
        return line  # some source's own form


def _is_beginning(offset: Any) -> bool:
    """Recognises the beginning of our source in either scope; other sources' offsets say nothing."""
    if not isinstance(offset, dict) or offset.keys().isdisjoint(("lsn", "lsns")):
        return False
    return not any((offset.get("lsn"), *offset.get("lsns", ())))


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """The batch that a checkpoint stands at."""

    last_batch: int
    """The newest batch that was begun."""
    committed: int
    """The newest batch that ended."""
    partitions: int
    """The number of partitions in the newest committed batch."""
    unfinished_partitions: int | None
    """That of the newest batch, if it is not committed and has another one: a rescaling was interrupted."""

    @property
    def is_settled(self) -> bool:
        """Every batch that was begun is committed."""
        return self.last_batch == self.committed


class CheckpointHold:
    """The right to work with a checkpoint, which may be shared.

    Args:
        file: The locked file.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Shuts others out for the time of the block; False if others hold the checkpoint, too."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The attempt has let go of what was held; those who hold it, too, only share it.
            fcntl.flock(self._file, fcntl.LOCK_SH)
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_SH)


class Checkpoint:
    """A checkpoint folder; it need not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def exists(self) -> bool:
        """Tells whether Spark has kept a query's progress here."""
        return (self.folder / "metadata").is_file() and (self.folder / "offsets").is_dir()

    def query_id(self) -> str | None:
        """Returns Spark's query id; None while no query was ever started with this checkpoint."""
        try:
            return str(json.loads((self.folder / "metadata").read_text(encoding="utf-8"))["id"])
        except FileNotFoundError:
            return None

    def facts(self) -> CheckpointFacts:
        """Reads which batch the checkpoint stands at.

        Raises:
            PipelineConfigError: it is none, or has no committed batch.
        """
        last, committed = self._newest_known("offsets"), self._newest_known("commits")
        partitions, newest = self._planned(committed).partitions, self._planned(last).partitions
        if partitions is None:
            raise _no_state(self.folder, f"number of partitions in offsets/{committed}")
        return CheckpointFacts(last, committed, partitions, None if newest == partitions else newest)

    def batches_without_input(self) -> frozenset[int]:
        """Finds the batches that have neither input nor output, of those whose offsets Spark still keeps.

        These are a first one that began before the source had anything to read, and those that changed only
        the number of partitions. A new checkpoint has none.
        """
        planned = {number: self._planned(number) for number in self._numbers("offsets")}
        return frozenset(
            number for number, batch in planned.items() if batch.is_empty(planned.get(number - 1))
        )

    def begun_batch(self) -> int | None:
        """Finds the batch that was begun and has not ended; not one that only changes the partitions."""
        begun, ended = self._newest("offsets"), self._newest("commits")
        if begun is None or begun == ended:
            return None
        is_rescaling = self._planned(begun).is_rescaled(self._planned(begun - 1))
        return None if is_rescaling else begun

    def drop_begun_batch(self, batch: int) -> None:
        """Removes the batch that was begun last, so that Spark plans it anew; may be repeated at any point.

        Tasks that had ended have kept the batch's state. It goes first: a snapshot of it would count as what
        lies under the changes of later batches.
        """
        if self._newest("commits") is None:
            # No state counts yet, and Spark begins with batch 0 only where there is none.
            shutil.rmtree(self.folder / "state", ignore_errors=True)
        for path in (self.folder / "state").rglob("*"):
            # <operator>/<partition>/<version>.changelog or .zip, with sums in .<version>.zip.crc; batch n
            # makes version n + 1.
            version = path.name.removeprefix(".").partition(".")[0]
            is_numbered = path.parent.name.isdecimal() and version.isdecimal()
            if is_numbered and int(version) > batch and path.is_file():
                path.unlink()
        for name in (str(batch), f".{batch}.crc"):
            (self.folder / "offsets" / name).unlink(missing_ok=True)

    def note_failed_batch(self) -> None:
        """Notes that the newest batch failed, and that the run, with all tasks of the batch, ends for it."""
        batch = self.begun_batch()
        if batch is not None:
            with suppress(OSError):  # a full disk; the batch is then repeated as it was
                (self.folder / FAILED_FILE).write_text(str(batch), encoding="utf-8")

    def replan_failed_batch(self, published: int | None, hold: CheckpointHold) -> None:
        """Lets Spark plan the batch anew in which the last run failed, if nothing of it was published.

        Else it would be repeated as it was, for ever if it fails for a row that was corrected meanwhile. A
        batch during which a run was killed is always repeated as it was: tasks of that run may still write
        state, and must not write any that differs. Only for a sink that keeps its progress with its output,
        after earlier runs were fenced.

        Args:
            published: The newest batch that was published; None: there is none.
            hold: The run's hold of this checkpoint.
        """
        try:
            failed = (self.folder / FAILED_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        with hold.alone() as is_alone:
            (self.folder / FAILED_FILE).unlink()
            batch = self.begun_batch()
            if not is_alone or batch is None or failed != str(batch):
                return
            if published is None or published < batch:
                _log.info("batch %d failed, and nothing of it was published: it is planned anew", batch)
                self.drop_begun_batch(batch)

    @contextmanager
    def hold(self, holder: str, *, alone: bool) -> Iterator[CheckpointHold]:
        """Holds the checkpoint for the time of the block; the system lets go when the process ends.

        Runs share it, since the newest one fences the others; a rescaling has it alone. The folder is made if
        it is not there.

        Args:
            holder: A name, for others who want the checkpoint meanwhile.
            alone: Nobody else may hold it.

        Raises:
            PipelineUnavailableError: somebody else holds it alone, or holds it and `alone` is asked for.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / HOLD_FILE).open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                in_use = f"{self.folder} is in use by {file.read().strip() or 'another process'}"
                raise PipelineUnavailableError(in_use, "stop that first") from error
            file.truncate(0)
            file.write(f"{holder} (process {os.getpid()})\n")
            file.flush()
            yield CheckpointHold(file)

    def _planned(self, batch: int) -> PlannedBatch:
        """Reads a batch's plan; a file that is gone or is none of Spark's says nothing."""
        try:
            return PlannedBatch.parse((self.folder / "offsets" / str(batch)).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return PlannedBatch()

    def _newest(self, log: Literal["offsets", "commits"]) -> int | None:
        return max(self._numbers(log), default=None)

    def _newest_known(self, log: Literal["offsets", "commits"]) -> int:
        newest = self._newest(log)
        if newest is None:
            raise _no_state(self.folder, f"batch in {log}/")
        return newest

    def _numbers(self, log: Literal["offsets", "commits"]) -> list[int]:
        try:
            return sorted(int(path.name) for path in (self.folder / log).iterdir() if path.name.isdecimal())
        except FileNotFoundError:
            return []


def _no_state(folder: Path, lacks: str) -> PipelineConfigError:
    return PipelineConfigError(
        f"{folder} is no checkpoint with state: it has no {lacks}",
        "expected the folder that a pipeline ran with (run.checkpoint), after its first batch",
    )
