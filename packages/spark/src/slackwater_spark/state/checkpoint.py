"""What the files of a Spark checkpoint say, without Spark; the folder is on a file system of this machine."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater_spark.state.errors import NotACheckpointError

_NO_OFFSET = "-"
"""What Spark writes of a source that it has not asked yet."""
_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Where a checkpoint stands."""

    folder: Path
    last_batch: int
    """The newest one begun."""
    committed: int
    """The newest one that ended."""
    partitions: int
    """Of the newest committed batch."""
    unfinished_partitions: int | None
    """Of the newest batch, if that is not committed and has another number: a rescaling was interrupted."""

    @property
    def is_settled(self) -> bool:
        """Every batch that was begun is committed."""
        return self.last_batch == self.committed


def checkpoint_facts(folder: Path) -> CheckpointFacts:
    """Where the checkpoint in a folder stands.

    Raises:
        NotACheckpointError: it is none, or has no committed batch.
    """
    last, committed = _known(folder, "offsets"), _known(folder, "commits")
    partitions, newest = _partitions(folder, committed), _partitions(folder, last)
    if partitions is None:
        raise NotACheckpointError(str(folder), f"number of partitions in offsets/{committed}")
    return CheckpointFacts(folder, last, committed, partitions, None if newest == partitions else newest)


def is_checkpoint(folder: Path) -> bool:
    """Whether Spark has kept a query's progress here."""
    return (folder / "metadata").is_file() and (folder / "offsets").is_dir()


def batches_without_input(folder: Path) -> frozenset[int]:
    """The batches that have neither input nor output, of those whose offsets Spark still keeps.

    A first one that began before the source had anything to read; those that changed only the number of
    partitions. Empty for a new checkpoint.
    """
    numbers = _numbers(folder, "offsets")
    planned = {number: _Planned.read(folder, number) for number in numbers}
    return frozenset(number for number, batch in planned.items() if batch.is_empty(planned.get(number - 1)))


def begun_batch(folder: Path) -> int | None:
    """The batch that a run has begun and none has ended; not one that only changes the partitions."""
    begun, ended = newest_batch(folder, "offsets"), newest_batch(folder, "commits")
    if begun is None or begun == ended:
        return None
    is_rescaling = _Planned.read(folder, begun).is_rescaled(_Planned.read(folder, begun - 1))
    return None if is_rescaling else begun


def drop_begun_batch(folder: Path, batch: int) -> None:
    """Removes the batch that was begun last, so that Spark plans it anew; may be repeated at any point.

    Tasks that had ended have kept the batch's state. It goes first: a snapshot of it would count as what lies
    under the changes of later batches.
    """
    if newest_batch(folder, "commits") is None:
        # No state counts yet, and Spark begins with batch 0 only where there is none.
        shutil.rmtree(folder / "state", ignore_errors=True)
    for path in (folder / "state").rglob("*"):
        # <operator>/<partition>/<version>.changelog or .zip, with sums in .<version>.zip.crc; batch n makes
        # version n + 1.
        version = path.name.removeprefix(".").partition(".")[0]
        if path.parent.name.isdecimal() and version.isdecimal() and int(version) > batch and path.is_file():
            path.unlink()
    for name in (str(batch), f".{batch}.crc"):
        (folder / "offsets" / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A batch in Spark's offset log: a version, a line of metadata, a line per source."""

    partitions: int | None = None
    offsets: tuple[Any, ...] = ()

    @classmethod
    def read(cls, folder: Path, batch: int) -> "_Planned":
        """A file that is gone or is none of Spark's says nothing."""
        try:
            lines = (folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
            partitions = json.loads(lines[1])["conf"].get(_PARTITIONS)
            offsets = tuple(None if line == _NO_OFFSET else json.loads(line) for line in lines[2:])
        except (FileNotFoundError, IndexError, KeyError, ValueError):
            return cls()
        return cls(None if partitions is None else int(partitions), offsets)

    def is_empty(self, before: "_Planned | None") -> bool:
        """Whether it reads nothing; `before` is None for the first batch, and where Spark has removed it."""
        if before is None:
            return bool(self.offsets) and all(_is_beginning(offset) for offset in self.offsets)
        return self.is_rescaled(before) or (bool(self.offsets) and before.offsets == self.offsets)

    def is_rescaled(self, before: "_Planned") -> bool:
        """Whether it has another number of partitions than the one before."""
        return None not in (before.partitions, self.partitions) and before.partitions != self.partitions


def _is_beginning(offset: Any) -> bool:
    """Of either scope of our source; other sources' offsets say nothing."""
    if not isinstance(offset, dict) or offset.keys().isdisjoint(("lsn", "lsns")):
        return False
    return not any((offset.get("lsn"), *offset.get("lsns", ())))


def newest_batch(folder: Path, log: str) -> int | None:
    """In ``offsets``, the newest batch that was begun; in ``commits``, that ended."""
    return max(_numbers(folder, log), default=None)


def _known(folder: Path, log: str) -> int:
    newest = newest_batch(folder, log)
    if newest is None:
        raise NotACheckpointError(str(folder), f"batch in {log}/")
    return newest


def _numbers(folder: Path, log: str) -> list[int]:
    try:
        return sorted(int(path.name) for path in (folder / log).iterdir() if path.name.isdecimal())
    except FileNotFoundError:
        return []


def _partitions(folder: Path, batch: int) -> int | None:
    return _Planned.read(folder, batch).partitions
