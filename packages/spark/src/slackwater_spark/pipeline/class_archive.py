"""An archive of Spark's classes, with which its JVM starts in half the CPU time.

A JVM takes an archive only with the class path that it was made with, file by file. So a Spark home lies
beside the archive, and whoever uses the one starts from the other. Runs only read: :func:`make_class_archive`
writes.
"""

import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from slackwater_engine.index.folders import make_private_folder
from slackwater_protocol import NO_SERVERS, user_cache
from slackwater_spark.pipeline.errors import ClassArchiveError
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.pipeline.spark_home import SparkHome, link_spark_home

_ARCHIVES = "classes-*.jsa"

_log = logging.getLogger(__name__)


def default_class_archives(environment: Mapping[str, str]) -> Path | None:
    """``slackwater/spark`` in the user's cache folder; None if the account has no home folder."""
    cache = user_cache(environment)
    return None if cache is None else cache / "spark"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the archive of the installed Spark and Java is, or would be."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def archive(self) -> Path | None:
        """Only a whole file: Java would crash with one that lacks its end, and checks the rest itself."""
        whole = (path for path in self.folder.glob(_ARCHIVES) if path.name == _name(path))
        return next(whole, None)


def archived_home(archives: Path) -> SparkHome | None:
    """The Spark home with an archive for the installed Spark and Java; None if there is none to be used."""
    try:
        if not _is_private(archives) or (place := _place(archives)) is None:
            return None
        archive = place.archive()
    except OSError as error:
        _log.info("starting without an archive of Spark's classes: %s", error)
        return None
    if archive is None:
        return None
    # Without the check, Java crashes when bytes of the file have changed; it takes no measurable time.
    return SparkHome(place.home, ("-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}"))


def make_class_archive(archives: Path) -> Path:
    """Starts Spark, runs a small query as pipelines have them, and keeps the classes that it took.

    Takes 40 seconds of CPU and 180 MB, and nothing if there is an archive for the installed Spark and Java.
    Several processes may do this at once. Spark must not have been started in this process.

    Raises:
        ClassArchiveError: why none could be made.
        SessionStartError: Java or Spark does not start.
    """
    try:
        make_private_folder(archives)
        place = _place(archives)
        if place is None:
            raise ClassArchiveError("there is no Java on PATH or in JAVA_HOME")
        if (found := place.archive()) is not None:
            return found
        place.folder.mkdir(exist_ok=True)
        with TemporaryDirectory(prefix="making-", dir=place.folder) as scratch:
            _make_home(place.home, Path(scratch))
            archive = _publish(_record(place.home, Path(scratch)), place.folder)
        _remove_replaced(archives, place)
    except OSError as error:
        raise ClassArchiveError(str(error)) from error
    return archive


def _place(archives: Path) -> _Place | None:
    """Changes with all that Java compares, so that an archive which no longer fits is not even tried."""
    import pyspark

    java = _java()
    if java is None:
        return None
    jars = sorted((Path(pyspark.__file__).parent / "jars").iterdir())
    digest = hashlib.sha256()
    for path in (java, *jars):
        found = path.stat()
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return _Place(archives / digest.hexdigest()[:16])


def _java() -> Path | None:
    """The one that Spark's scripts start."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(found).resolve() if found and Path(found).is_file() else None


def _is_private(folder: Path) -> bool:
    """Whether nobody else could have put a file there: an archive is code."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return True
    _log.warning("%s is not used: it must be a folder that only this account can open", folder)
    return False


def _name(archive: Path) -> str:
    """Tells the size that the file must have."""
    return f"classes-{archive.stat().st_size}.jsa"


def _make_home(home: Path, scratch: Path) -> None:
    """Under the name that the archive will remember; another process may be about to do the same."""
    if not home.is_dir():
        made = link_spark_home(scratch / "home")
        with suppress(OSError):
            made.rename(home)


def _record(home: Path, scratch: Path) -> Path:
    """Runs Spark in a JVM that writes an archive when it ends."""
    from pyspark import SparkContext

    from slackwater_spark.pipeline.jvm_process import end_jvm, explain_exit
    from slackwater_spark.pipeline.session import spark_session
    from slackwater_spark.pipeline.warm_up import run_small_query

    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark's name for the JVM of this process
        raise ClassArchiveError("this process has started Spark already")
    archive = scratch / "classes.jsa"
    # Java warns of each of hundreds of classes that no archive can have.
    own = SparkHome(home, ("-Xlog:cds=error,cds+dynamic=error", f"-XX:ArchiveClassesAtExit={archive}"))
    settings = RunSettings(servers=NO_SERVERS, checkpoint=scratch / "checkpoint", master="local[2]")
    with spark_session("archive of classes", settings, scratch / "spark.log", own) as session:
        run_small_query(session, scratch)
    code = end_jvm()
    if code != 0 or not archive.is_file():
        raise ClassArchiveError(f"Java wrote none ({explain_exit(code)})")
    return archive


def _publish(recorded: Path, folder: Path) -> Path:
    """Under its final name the file is whole, even after a power failure."""
    with recorded.open("rb") as file:
        os.fsync(file.fileno())
    return recorded.rename(folder / _name(recorded))


def _remove_replaced(archives: Path, place: _Place) -> None:
    """Archives of the same PySpark before it or Java was replaced, and of a PySpark that is gone.

    The links stay: a run that was started with them may look for them at any time. The archive itself it
    has open.
    """
    jars = (place.home / "jars").resolve()
    for other in archives.iterdir():
        linked = (other / "home" / "jars").resolve()
        if other != place.folder and (linked == jars or not linked.exists()):
            for archive in other.glob(_ARCHIVES):
                archive.unlink(missing_ok=True)
