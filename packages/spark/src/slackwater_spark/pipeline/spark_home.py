"""Spark homes: what Spark's scripts and its JVM take for the installation, and archives of its classes.

A JVM takes an archive of classes only with the class path that the archive was made with, file by file. So a
Spark home lies beside the archive, and whoever uses the one starts from the other. Runs only read;
:func:`slackwater_spark.pipeline.class_archive.make_class_archive` writes.
"""

import hashlib
import logging
import os
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from slackwater_protocol import user_cache

ARCHIVE_PATTERN = "classes-*.jsa"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SparkHome:
    """A folder that a JVM is started from."""

    folder: Path
    java_options: tuple[str, ...] = ()
    """Beside those of the session's configuration."""


def link_spark_home(folder: Path) -> Path:
    """Makes a Spark home of links to the installed PySpark, with an empty work folder and without archives.

    Masters ``local-cluster[...]`` start executors in ``work`` of the Spark home, which for PySpark is
    among the installed packages: maybe not writable, and never cleared. And the Python processes that Spark
    starts search ``python/lib/pyspark.zip`` of the home before the installed PySpark, but an archive keeps no
    byte code: it costs each of them a second, and Spark waits no longer than ten for the one that plans.
    """
    shutil.rmtree(folder, ignore_errors=True)  # links, and logs of the executors of the run before
    (folder / "work").mkdir(parents=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("work", "python"):
            (folder / entry.name).symlink_to(entry)
    return folder


@contextmanager
def started_from(home: SparkHome | None) -> Iterator[None]:
    """Makes a JVM that is launched within the block take this home; None leaves it to PySpark."""
    if home is None:
        yield
        return
    options = [*map(shlex.quote, home.java_options), os.environ.get("SPARK_SUBMIT_OPTS", "")]
    own = {"SPARK_HOME": str(home.folder), "SPARK_SUBMIT_OPTS": " ".join(options).strip()}
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
    """The folder where the archive of the installed Spark and Java is, or would be."""

    folder: Path

    @property
    def home(self) -> Path:
        """The Spark home that the archive was made with."""
        return self.folder / "home"

    def archive(self) -> Path | None:
        """Finds the archive if the file is whole: Java would crash with one that lacks its end."""
        whole = (path for path in self.folder.glob(ARCHIVE_PATTERN) if path.name == archive_name(path))
        return next(whole, None)


def archive_place(archives: Path) -> ArchivePlace | None:
    """Finds the place for the installed Spark and Java; None if there is no Java.

    The place changes with all that Java compares, so that an archive which no longer fits is not even tried.
    """
    java = _java()
    if java is None:
        return None
    jars = sorted((Path(pyspark.__file__).parent / "jars").iterdir())
    digest = hashlib.sha256()
    for path in (java, *jars):
        found = path.stat()
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return ArchivePlace(archives / digest.hexdigest()[:16])


def archive_name(archive: Path) -> str:
    """Returns the name of a whole archive, which tells the size that the file must have."""
    return f"classes-{archive.stat().st_size}.jsa"


def archived_home(archives: Path) -> SparkHome | None:
    """Finds the Spark home with an archive for the installed Spark and Java; None if there is none to use."""
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


def _java() -> Path | None:
    """Finds the Java that Spark's scripts start."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(found).resolve() if found and Path(found).is_file() else None


def _is_private(folder: Path) -> bool:
    """Tells whether nobody else could have put a file there: an archive is code."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return True
    _log.warning("%s is not used, because it is not a folder that only this account can open", folder)
    return False
