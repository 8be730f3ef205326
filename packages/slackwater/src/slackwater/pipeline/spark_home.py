"""Spark homes: the folders that Spark's scripts and its JVM use as the installation, and archives of classes.

With an archive, Spark's JVM starts in half the CPU time. It contains the classes that small batches with
Python tasks load, as those of pipelines are. A JVM accepts it only with exactly the class path with which it
was made. A Spark home is therefore stored beside the archive, and a JVM that uses the archive is started from
it.
"""

import hashlib
import logging
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyspark
from pyspark import SparkContext

from slackwater.pipeline.jvm import collect, end_jvm, explain_exit
from slackwater.pipeline.settings import RunSettings
from slackwater.protocol import NO_SERVERS, UnavailableError, make_private_folder, user_cache

_ARCHIVE_PATTERN = "classes-*.jsa"
_HOME: Final = "home"
"""The Spark home with which an archive was made, in the folder of the archive."""
_TASKS = 2
_LEAST_JAVA: Final = 17
JAVA_HINT: Final = f"install Java {_LEAST_JAVA} or newer, and set JAVA_HOME to its folder or put it on PATH"
_JAVA_VERSION: Final = re.compile(r'^JAVA_VERSION="(?P<text>(?P<major>\d+)[^"]*)"', re.MULTILINE)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SparkHome:
    """A folder from which a JVM is started."""

    folder: Path
    java_options: tuple[str, ...] = ()
    """Java options in addition to those of the session's configuration."""


def link_spark_home(folder: Path) -> Path:
    """Creates a Spark home of links to the installed PySpark, with an empty work folder and no archives.

    Masters ``local-cluster[...]`` start executors in ``work`` of the Spark home, which for PySpark is among
    the installed packages: it may not be writable, and is never cleared. In addition, the Python processes
    that Spark starts search ``python/lib/pyspark.zip`` of the home before the installed PySpark. An archive
    contains no byte code, which costs each of them a second, and Spark waits at most ten seconds for the
    process that plans.
    """
    shutil.rmtree(folder, ignore_errors=True)  # links, and logs of the executors of the run before
    (folder / "work").mkdir(parents=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("work", "python"):
            (folder / entry.name).symlink_to(entry)
    return folder


def started_from(home: SparkHome | None) -> AbstractContextManager[None]:
    """Makes a JVM that is launched within the block use this home; None leaves the choice to PySpark."""
    if home is None:
        return nullcontext()
    options = [*map(shlex.quote, home.java_options), os.environ.get("SPARK_SUBMIT_OPTS", "")]
    return environment(SPARK_HOME=str(home.folder), SPARK_SUBMIT_OPTS=" ".join(options).strip())


@contextmanager
def environment(**own: str) -> Iterator[None]:
    """Sets variables that processes inherit which are started within the block."""
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def default_class_archives(environment: Mapping[str, str]) -> Path | None:
    """Returns ``slackwater/spark`` in the user's cache folder; None if the account has no home folder."""
    cache = user_cache(environment)
    return None if cache is None else cache / "spark"


def _archive_place(archives: Path) -> Path | None:
    """Returns the folder for the archive of the installed Spark and Java; None if there is no Java.

    It depends on everything that Java compares, so an archive that no longer matches is not tried.
    """
    java = _find_java()
    if java is None:
        return None
    jars = sorted((Path(pyspark.__file__).parent / "jars").iterdir())
    digest = hashlib.sha256()
    for path in (java, *jars):
        found = path.stat()
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return archives / digest.hexdigest()[:16]


def _whole_archive(place: Path) -> Path | None:
    """Returns the archive if the file is complete, because Java would crash with a truncated one."""
    return next((path for path in place.glob(_ARCHIVE_PATTERN) if path.name == _archive_name(path)), None)


def _archive_name(archive: Path) -> str:
    """Returns the name of a complete archive, which contains the size of the file."""
    return f"classes-{archive.stat().st_size}.jsa"


def archived_home(archives: Path) -> SparkHome | None:
    """Returns the Spark home with an archive for the installed Spark and Java; None if there is none."""
    try:
        if not _is_private(archives) or (place := _archive_place(archives)) is None:
            return None
        archive = _whole_archive(place)
    except OSError as error:
        _log.info("starting without an archive of Spark's classes: %s", error)
        return None
    if archive is None:
        return None
    # Without the check, Java crashes when bytes of the file have changed; it takes no measurable time.
    return SparkHome(place / _HOME, ("-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}"))


def fault_of_java() -> str | None:
    """Returns why Spark cannot be started with the Java that its scripts find; None if nothing is known.

    The version is read from a file of the installation: to run Java takes a tenth of a second.
    """
    home, java = os.environ.get("JAVA_HOME"), _find_java()
    if java is None:
        return f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on PATH"
    try:
        release = (java.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _JAVA_VERSION.search(release)
    if found is None or int(found["major"]) >= _LEAST_JAVA:
        return None
    return f"{java} is Java {found['text']}"


def _find_java() -> Path | None:
    """Returns the Java that Spark's scripts start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(found).resolve() if found and Path(found).is_file() else None


def _is_private(folder: Path) -> bool:
    """Returns whether nobody else could have put a file there, because an archive contains code."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return True
    _log.warning("%s is not used, because it is not a folder that only this account can open", folder)
    return False


def make_class_archive(archives: Path) -> Path:
    """Starts Spark, runs small batches as pipelines do, and stores the classes that were loaded.

    It takes 40 seconds of CPU and 180 MB, or nothing if there is an archive for the installed Spark and Java.
    Several processes may do this at the same time. Spark must not have been started in this process.

    Raises:
        UnavailableError: Java or Spark does not start, or no archive could be created.
    """
    try:
        make_private_folder(archives)
        place = _archive_place(archives)
        if place is None:
            raise _no_archive("there is no Java on PATH or in JAVA_HOME")
        if (found := _whole_archive(place)) is not None:
            return found
        place.mkdir(exist_ok=True)
        with TemporaryDirectory(prefix="making-", dir=place) as scratch:
            _make_home(place / _HOME, Path(scratch))
            recorded = _record(place / _HOME, Path(scratch))
            with recorded.open("rb") as file:  # under its final name, it is whole even after a power failure
                os.fsync(file.fileno())
            archive = recorded.rename(place / _archive_name(recorded))
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
    from slackwater.pipeline.session import starting_spark  # which uses this module

    with starting_spark("archive of classes", settings, own) as started:
        run_small_batches(started())
    code = end_jvm()
    if code != 0 or not archive.is_file():
        raise _no_archive(f"Java did not write it ({explain_exit(code)})")
    return archive


def _remove_replaced(archives: Path, place: Path) -> None:
    """Removes archives that were made before this PySpark or Java was replaced, or of a PySpark that is gone.

    The links stay, because a run that was started with them may read them at any time. It has the archive
    itself open.
    """
    jars = (place / _HOME / "jars").resolve()
    for other in archives.iterdir():
        linked = (other / _HOME / "jars").resolve()
        if other != place and (linked == jars or not linked.exists()):
            for archive in other.glob(_ARCHIVE_PATTERN):
                archive.unlink(missing_ok=True)


def run_small_batches(context: SparkContext) -> int:
    """Runs a small and a divided batch through a stage, as pipelines do; returns the number of rows."""
    rows = collect(context.parallelize([0], 1).mapPartitions(lambda numbers: [b"row" for _ in numbers]))
    divided = context.parallelize(range(_TASKS), _TASKS).mapPartitionsWithIndex(
        lambda number, numbers: [(to, b"row") for _ in numbers for to in range(number + 1)]
    )
    exchanged = divided.partitionBy(_TASKS, int).mapPartitionsWithIndex(
        lambda number, found: [(number, row) for _, row in found]
    )
    return len(rows) + len(collect(exchanged.values()))


def _no_archive(reason: str) -> UnavailableError:
    return UnavailableError(f"the archive of Spark's classes could not be created: {reason}")
