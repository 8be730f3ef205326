"""Creates an archive of Spark's classes, with which its JVM starts in half the CPU time.

The archive contains the classes that small batches with Python tasks load, as those of pipelines are.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark import SparkContext

from slackwater.pipeline.jvm import collect, end_jvm, explain_exit
from slackwater.pipeline.session import starting_spark
from slackwater.pipeline.settings import RunSettings
from slackwater.pipeline.spark_home import (
    ARCHIVE_PATTERN,
    ArchivePlace,
    SparkHome,
    archive_name,
    archive_place,
    link_spark_home,
)
from slackwater.protocol import NO_SERVERS, UnavailableError, make_private_folder

_TASKS = 2


def make_class_archive(archives: Path) -> Path:
    """Starts Spark, runs small batches as pipelines do, and stores the classes that were loaded.

    It takes 40 seconds of CPU and 180 MB, or nothing if there is an archive for the installed Spark and Java.
    Several processes may do this at the same time. Spark must not have been started in this process.

    Raises:
        UnavailableError: Java or Spark does not start, or no archive could be created.
    """
    try:
        make_private_folder(archives)
        place = archive_place(archives)
        if place is None:
            raise _no_archive("there is no Java on PATH or in JAVA_HOME")
        if (found := place.archive()) is not None:
            return found
        place.folder.mkdir(exist_ok=True)
        with TemporaryDirectory(prefix="making-", dir=place.folder) as scratch:
            _make_home(place.home, Path(scratch))
            archive = _publish(_record(place.home, Path(scratch)), place.folder)
        _remove_replaced(archives, place)
    except OSError as error:
        raise _no_archive(str(error)) from error
    return archive


def _make_home(home: Path, scratch: Path) -> None:
    """Creates the home under the name that the archive will contain; another process may do the same."""
    if not home.is_dir():
        made = link_spark_home(scratch / "home")
        with suppress(OSError):
            made.rename(home)


def _record(home: Path, scratch: Path) -> Path:
    """Runs Spark in a JVM that writes an archive when it ends."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark's name for the JVM of this process
        raise _no_archive("this process has started Spark already")
    archive = scratch / "classes.jsa"
    # Java warns of each of hundreds of classes that no archive can have.
    own = SparkHome(home, ("-Xlog:cds=error,cds+dynamic=error", f"-XX:ArchiveClassesAtExit={archive}"))
    settings = RunSettings(
        servers=NO_SERVERS,
        checkpoint=str(scratch / "checkpoint"),
        master="local[2]",
        spark_log=scratch / "spark.log",
    )
    with starting_spark("archive of classes", settings, own) as started:
        run_small_batches(started())
    code = end_jvm()
    if code != 0 or not archive.is_file():
        raise _no_archive(f"Java did not write it ({explain_exit(code)})")
    return archive


def _publish(recorded: Path, folder: Path) -> Path:
    """Moves the file to its final name, under which it is complete even after a power failure."""
    with recorded.open("rb") as file:
        os.fsync(file.fileno())
    return recorded.rename(folder / archive_name(recorded))


def _remove_replaced(archives: Path, place: ArchivePlace) -> None:
    """Removes archives that were made before this PySpark or Java was replaced, or of a PySpark that is gone.

    The links stay, because a run that was started with them may read them at any time. It has the archive
    itself open.
    """
    jars = (place.home / "jars").resolve()
    for other in archives.iterdir():
        linked = (other / "home" / "jars").resolve()
        if other != place.folder and (linked == jars or not linked.exists()):
            for archive in other.glob(ARCHIVE_PATTERN):
                archive.unlink(missing_ok=True)


def run_small_batches(context: SparkContext) -> int:
    """Runs a small and a divided batch through a stage, as pipelines do; returns the number of rows."""
    rows = [collect(context.parallelize([0], 1).mapPartitions(_small_task))]
    divided = context.parallelize(range(_TASKS), _TASKS).mapPartitionsWithIndex(_part)
    exchanged = divided.partitionBy(_TASKS, _as_it_is).mapPartitionsWithIndex(_level)
    rows.append(collect(exchanged.values()))
    return sum(map(len, rows))


def _small_task(numbers: Iterable[int]) -> list[bytes]:
    return [b"row" for _ in numbers]


def _part(number: int, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    return iter([(to, b"row") for _ in numbers for to in range(number + 1)])


def _level(number: int, rows: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    return ((number, row) for _, row in rows)


def _as_it_is(number: int) -> int:
    return number


def _no_archive(reason: str) -> UnavailableError:
    return UnavailableError(f"the archive of Spark's classes could not be created: {reason}")
