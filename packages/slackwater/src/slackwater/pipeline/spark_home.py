"""Spark homes: the folders that Spark's scripts and its JVM use as the installation, and archives of classes.

A JVM accepts an archive of classes only with exactly the class path with which the archive was made. A Spark
home is therefore stored beside the archive, and a JVM that uses the archive is started from it. Runs only
read; :func:`slackwater.pipeline.class_archive.make_class_archive` writes.
"""

import hashlib
import logging
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from slackwater.protocol import user_cache

ARCHIVE_PATTERN = "classes-*.jsa"
LEAST_JAVA: Final = 17
JAVA_HINT: Final = f"install Java {LEAST_JAVA} or newer, and set JAVA_HOME to its folder or put it on PATH"
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


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """The folder for the archive of the installed Spark and Java."""

    folder: Path

    @property
    def home(self) -> Path:
        """The Spark home with which the archive was made."""
        return self.folder / "home"

    def archive(self) -> Path | None:
        """Returns the archive if the file is complete, because Java would crash with a truncated one."""
        whole = (path for path in self.folder.glob(ARCHIVE_PATTERN) if path.name == archive_name(path))
        return next(whole, None)


def archive_place(archives: Path) -> ArchivePlace | None:
    """Returns the place for the installed Spark and Java; None if there is no Java.

    The place depends on everything that Java compares, so an archive that no longer matches is not tried.
    """
    java = find_java()
    if java is None:
        return None
    jars = sorted((Path(pyspark.__file__).parent / "jars").iterdir())
    digest = hashlib.sha256()
    for path in (java, *jars):
        found = path.stat()
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return ArchivePlace(archives / digest.hexdigest()[:16])


def archive_name(archive: Path) -> str:
    """Returns the name of a complete archive, which contains the size of the file."""
    return f"classes-{archive.stat().st_size}.jsa"


def archived_home(archives: Path) -> SparkHome | None:
    """Returns the Spark home with an archive for the installed Spark and Java; None if there is none."""
    try:
        if not _is_private(archives) or (place := archive_place(archives)) is None:
            return None
        archive = place.archive()
    except OSError as error:
        _log.info("starting without an archive of Spark's classes: %s", error)
        return None
    if archive is None:
        return None
    # Without the check, Java crashes when bytes of the file have changed; it takes no measurable time.
    return SparkHome(place.home, ("-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}"))


def fault_of_java() -> str | None:
    """Returns why Spark cannot be started with the Java that its scripts find; None if nothing is known.

    The version is read from a file of the installation: to run Java takes a tenth of a second.
    """
    home, java = os.environ.get("JAVA_HOME"), find_java()
    if java is None:
        return f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on PATH"
    try:
        release = (java.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _JAVA_VERSION.search(release)
    if found is None or int(found["major"]) >= LEAST_JAVA:
        return None
    return f"{java} is Java {found['text']}"


def find_java() -> Path | None:
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
