"""Java servers: the pinned jars of Kafka, Connect and Debezium, and how one of them is run and configured.

The Ivy inside PySpark downloads the jars once into a user cache. What counts is ``data/jars.sha256``: a
folder of the cache is used only if every jar has the SHA-256 written there. An archive of loaded classes
beside them halves the start time of the servers.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar

from slackwater.dev.processes import (
    InstalledProgram,
    Launch,
    missing_prerequisite,
    not_running,
    version_of,
    with_tail,
)
from slackwater.dev.server import Server
from slackwater.protocol import UnavailableError, user_cache

logger = logging.getLogger(__name__)
Progress = Callable[[str], None]
"""Called with one line for a person, from the thread that resolves."""
Properties = dict[str, str]
"""The content of a Java properties file."""

Fetch = Callable[[Path, Progress], None]
"""Puts all jars into a folder that does not exist yet."""
_DATA = resources.files("slackwater.dev") / "data"
_PATTERN = "[artifact]-[revision](-[classifier]).[ext]"
LEAST_JAVA = 17
JAVA_VERSION = re.compile(r'version "(?P<text>(?:1\.)?(?P<major>\d+)[^"]*)"')
_TAIL_LINES = 15
_PROGRESS_STEP = 20


@dataclass(frozen=True, slots=True)
class PinnedJar:
    """One line of the manifest."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class JarSet:
    """A folder with all jars that a manifest names, such as those of broker and Connect."""

    folder: Path
    jars: tuple[PinnedJar, ...]

    @property
    def classpath(self) -> str:
        """All jars in a fixed order, so that an archive of loaded classes stays valid."""
        return os.pathsep.join(str(self.folder / jar.name) for jar in self.jars)

    def version_of(self, artifact: str) -> str:
        """The pinned version of an artifact, for example of ``kafka_2.13``; empty when it is not there."""
        begin = f"{artifact}-"
        found = (jar.name for jar in self.jars if jar.name.startswith(begin))
        return next(found, "").removeprefix(begin).removesuffix(".jar")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns where downloads are kept, see :func:`slackwater.protocol.user_cache`.

    Raises:
        UnavailableError: the account has no home folder, and no other place was named.
    """
    found = user_cache(environment)
    if found is None:
        what = "a folder for downloads"
        raise missing_prerequisite(what, "this account has no home folder", "set SLACKWATER_CACHE")
    return found


def parse_manifest(text: str) -> tuple[PinnedJar, ...]:
    """The jars of a manifest: lines of SHA-256, size in bytes, file name."""
    fields = (line.split() for line in text.splitlines() if line.strip())
    return tuple(PinnedJar(name, int(size), digest) for digest, size, name in fields)


def resolve_jars(cache: Path | None = None, progress: Progress | None = None) -> JarSet:
    """The jars, downloaded if the cache has them not. Safe in several processes at once; blocks them.

    Every jar is read and compared with its checksum each time, since others may write to the cache; one that
    differs is fetched again.

    Raises:
        UnavailableError: the download failed or brought other bytes than the pinned ones, or there is
            no suitable Java, or a PySpark without Ivy, and the cache is empty.
    """
    return resolve_pinned(_DATA, (cache or cache_folder()) / "jars", progress)


def resolve_pinned(pinned: Traversable, root: Path, progress: Progress | None = None) -> JarSet:
    """The jars that a folder pins by its manifest; otherwise as :func:`resolve_jars`.

    The manifest is ``jars.sha256`` beside ``ivy-pinned.xml``, and names their folder below the root.

    Raises:
        UnavailableError: as of :func:`resolve_jars`.
    """
    manifest = (pinned / "jars.sha256").read_text()
    key = hashlib.sha256(manifest.encode()).hexdigest()[:12]
    wanted = JarSet(root / key, parse_manifest(manifest))

    tell = progress or (lambda line: logger.info("%s", line))
    ensure_jars(wanted, ivy_fetch(pinned / "ivy-pinned.xml"), tell)
    return wanted


def ensure_jars(wanted: JarSet, fetch: Fetch, tell: Progress) -> None:
    """Fill the set's folder unless it is complete. One process fetches, the others wait for it.

    The folder appears at once and only with jars that have the pinned checksums.
    """
    if find_damage(wanted) is None:
        return
    wanted.folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(wanted.folder.with_name(f"{wanted.folder.name}.lock"), tell):
        problem = find_damage(wanted)
        if problem is None:
            return
        if wanted.folder.exists():
            tell(problem)
        _fill(wanted, fetch, tell)


def find_damage(found: JarSet) -> str | None:
    """Reads every jar and compares it with the manifest.

    Returns:
        Why the set cannot be used; None if every jar is there with the pinned bytes.
    """
    for jar in found.jars:
        path = found.folder / jar.name
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return f"{jar.name} is missing in {found.folder}"
        except OSError as error:
            return f"{path} cannot be read: {error}"
        if digest != jar.sha256:
            return f"{path} has SHA-256 {digest}, pinned is {jar.sha256}"
    return None


@contextlib.contextmanager
def _lock(path: Path, tell: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another process is downloading the jars; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks


def _fill(wanted: JarSet, fetch: Fetch, tell: Progress) -> None:
    """Runs under the lock, so leftovers of a killed download are nobody's."""
    incoming = wanted.folder.with_name(f".{wanted.folder.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    tell(f"downloading {len(wanted.jars)} jars into {wanted.folder}")
    fetch(incoming, tell)
    problem = find_damage(JarSet(incoming, wanted.jars))
    if problem is not None:
        raise _unresolved(problem, f"delete {wanted.folder.parent} and try again")
    shutil.rmtree(wanted.folder, ignore_errors=True)
    incoming.rename(wanted.folder)
    tell(f"{len(wanted.jars)} jars are there and have the pinned checksums")


def ivy_fetch(ivy: Traversable) -> Fetch:
    """A download of exactly the artifacts that an Ivy file names, for :func:`ensure_jars`."""

    def fetch(target: Path, tell: Progress) -> None:
        ivy_cache = target.with_name(f"{target.name}.ivy")  # outlives a failure, so that a retry continues
        settings = resources.as_file(_DATA / "ivysettings-pinned.xml")
        with resources.as_file(ivy) as file, settings as settings_file:
            _run_ivy(file, settings_file, ivy_cache, target, tell)
        shutil.rmtree(ivy_cache, ignore_errors=True)

    return fetch


def _run_ivy(ivy: Path, settings: Path, ivy_cache: Path, target: Path, tell: Progress) -> None:
    argv = [str(find_java().path), "-Xmx256m", "-jar", str(_find_ivy_jar())]
    argv += ["-settings", str(settings), "-ivy", str(ivy), "-cache", str(ivy_cache)]
    argv += ["-retrieve", f"{target}/{_PATTERN}", "-types", "jar", "bundle"]
    lines: list[str] = []
    done = 0
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            done += "[SUCCESSFUL ]" in line
            if "[SUCCESSFUL ]" in line and done % _PROGRESS_STEP == 0:
                tell(f"{done} jars downloaded")
    failed = any("UNRESOLVED DEPENDENCIES" in line or "[FAILED" in line for line in lines)
    if process.returncode != 0 or failed:
        reason = f"the download failed (exit code {process.returncode})"
        raise _unresolved(reason, "is the network there?", "\n".join(lines[-_TAIL_LINES:]))


def _unresolved(reason: str, hint: str, log_tail: str = "") -> UnavailableError:
    problem = f"the jars of Kafka, Debezium or a plugin could not be resolved: {reason}"
    return UnavailableError(problem, with_tail(hint, log_tail))


def _find_ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        hint = "install slackwater[dev]"
        raise missing_prerequisite("PySpark", "it is not installed", hint)
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not found:
        where = f"{Path(spec.origin).parent} has none"
        raise missing_prerequisite("the Ivy jar of PySpark", where, "install `pyspark`, not `pyspark-client`")
    return found[-1]


def find_java(environment: Mapping[str, str] = os.environ) -> InstalledProgram:
    """Finds the Java of JAVA_HOME, else of PATH.

    Raises:
        UnavailableError: there is none, it does not run, or it is too old.
    """
    what = f"Java {LEAST_JAVA} or newer"
    remedy = f"install a JDK or JRE {LEAST_JAVA} or newer and put `java` on PATH or set JAVA_HOME"
    home = environment.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise missing_prerequisite(what, "there is no `java` on PATH", remedy)
    path = Path(found).absolute()
    version = version_of(path, "-version", JAVA_VERSION)
    if isinstance(version, str):
        raise missing_prerequisite(what, f"{found} {version}", remedy)
    if version.major < LEAST_JAVA:
        raise missing_prerequisite(what, f"{found} is version {version.text}", remedy)
    return InstalledProgram(path, version)


class Collector(Enum):
    """Garbage collector of a Java server."""

    SERIAL = "-XX:+UseSerialGC"
    """Smallest footprint."""
    PARALLEL = "-XX:+UseParallelGC"
    """Half as fast again under load; give it a heap of 1g."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProgram:
    """A main class with all that is needed to run it."""

    java: InstalledProgram
    jars: JarSet
    main: str
    heap: str
    collector: Collector = Collector.SERIAL
    options: tuple[str, ...] = ()
    """Further options of the JVM. They must not change which classes it loads: an archive is shared by
    programs that differ in nothing else."""

    def command(self, arguments: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        """The argument list. Uses the class archive, or records one into the folder when there is none."""
        log4j = resources.files("slackwater.dev") / "data" / "log4j2.properties"
        return (
            str(self.java.path),
            f"-Xmx{self.heap}",
            self.collector.value,
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            *self.options,
            f"-Dlog4j2.configurationFile={Path(str(log4j)).as_uri()}",
            *self._sharing(folder),
            "-cp",
            self.jars.classpath,
            self.main,
            *arguments,
        )

    def _sharing(self, folder: Path) -> tuple[str, ...]:
        archive = self.archive()
        if archive is None:
            return (f"-XX:ArchiveClassesAtExit={self.recording(folder)}",)
        # Without the check, Java crashes when bytes of the file have changed.
        return "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}"

    def archive(self) -> Path | None:
        """The class archive of this Java, these jars and this program, if it was recorded and is whole.

        Java crashes with a file that lacks its end, so the file's name tells how long it must be.
        """
        recorded = self._archives().glob(f"{self._archive_stem()}-*.jsa")
        return next((path for path in recorded if path.name == self._archive_name(path)), None)

    def recording(self, folder: Path) -> Path:
        """The file to which a run without archive writes one when it ends in order."""
        return folder / "classes.jsa"

    def publish_recording(self, folder: Path) -> None:
        """Move a recorded archive into the cache.

        Only after the program ended by itself: otherwise the archive may be half written.
        """
        recorded = self.recording(folder)
        with contextlib.suppress(OSError):  # another file system or no space: next time
            if recorded.is_file() and self.archive() is None:
                self._archives().mkdir(parents=True, exist_ok=True)
                recorded.rename(self._archives() / self._archive_name(recorded))
        recorded.unlink(missing_ok=True)

    def _archives(self) -> Path:
        return self.jars.folder.parent.parent / "classes"

    def _archive_name(self, archive: Path) -> str:
        return f"{self._archive_stem()}-{archive.stat().st_size}.jsa"

    def _archive_stem(self) -> str:
        parts = (
            str(self.java.path.resolve()),
            self.java.version.text,
            str(self.jars.folder),
            self.main,
            self.collector.name,
        )
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
        return f"{self.main.rpartition('.')[2]}-{key}"


class JavaServer(Server):
    """A server that Java runs, with a folder of its name for its files."""

    stop_patience: ClassVar[timedelta] = timedelta(seconds=20)

    _program: JavaProgram | None = None
    """Is set when the server has been prepared."""

    def stop(self) -> None:
        """End it in order; kill it when that takes too long. Nothing happens when it does not run."""
        if self._end() and self._program is not None:
            self._program.publish_recording(self._folder())

    def _folder(self) -> Path:
        return self.folder / self.name

    def _find_program(
        self, main: str, heap: str, collector: Collector, options: tuple[str, ...]
    ) -> JavaProgram:
        """Find Java and the jars; downloads them the first time."""
        jars = resolve_jars(cache_folder(os.environ), self.progress)
        return JavaProgram(
            java=find_java(), jars=jars, main=main, heap=heap, collector=collector, options=options
        )

    @abstractmethod
    def _arguments(self) -> tuple[str, ...]:
        """The arguments of the program."""

    def _launch(self) -> Launch:
        if self._program is None:
            raise not_running(self.name, "launch")
        folder = self._folder()
        return Launch(argv=self._program.command(self._arguments(), folder), cwd=folder)


def render_properties(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file; the values arrive unchanged."""
    return "".join(f"{_escaped(key, key=True)}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(text: str, *, key: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if key:
        escaped = re.sub(r"([=: #!])", r"\\\1", escaped)
    elif escaped.startswith(" "):
        escaped = "\\" + escaped
    return _unicode_escaped(escaped)


def _unicode_escaped(text: str) -> str:
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)
