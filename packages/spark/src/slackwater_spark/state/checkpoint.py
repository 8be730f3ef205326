"""What the files of a Spark checkpoint say, without Spark; the folder is on a file system of this machine."""

import json
from dataclasses import dataclass
from pathlib import Path

from slackwater_spark.state.errors import NotACheckpointError

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


def rescaled_batches(folder: Path) -> frozenset[int]:
    """The batches that only changed the number of partitions: they have no input and no output.

    Of those whose offsets Spark still keeps; empty for a new checkpoint.
    """
    numbers = _numbers(folder, "offsets")
    partitions = {number: _partitions(folder, number) for number in numbers}
    return frozenset(
        number
        for number in numbers
        if number - 1 in partitions
        and None not in (partitions[number], partitions[number - 1])
        and partitions[number] != partitions[number - 1]
    )


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
    """Spark's offset log: a version, a line of metadata, a line per source."""
    try:
        lines = (folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        value = json.loads(lines[1])["conf"].get(_PARTITIONS)
    except (FileNotFoundError, IndexError, KeyError, ValueError):
        return None
    return None if value is None else int(value)
