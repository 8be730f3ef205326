"""Command lines of the Java servers, with an archive of loaded classes that halves their start time."""

import contextlib
import hashlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from slackwater_devstack.jars import JarSet, Progress, cache_folder, resolve_jars
from slackwater_devstack.java import Java, find_java
from slackwater_devstack.settings import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProgram:
    """A main class with all that is needed to run it."""

    java: Java
    jars: JarSet
    main: str
    heap: str
    collector: Collector = Collector.SERIAL

    def command(self, arguments: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        """The argument list. Uses the class archive, or records one into the folder when there is none."""
        log4j = resources.files("slackwater_devstack") / "data" / "log4j2.properties"
        archive = self.archive()
        sharing = (
            f"-XX:SharedArchiveFile={archive}"
            if archive.is_file()
            else f"-XX:ArchiveClassesAtExit={self.recording(folder)}"
        )
        return (
            str(self.java.executable),
            f"-Xmx{self.heap}",
            self.collector.value,
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={Path(str(log4j)).as_uri()}",
            sharing,
            "-cp",
            self.jars.classpath,
            self.main,
            *arguments,
        )

    def archive(self) -> Path:
        """Where the class archive of this Java, these jars and this program is, or would be."""
        parts = (
            str(self.java.executable.resolve()),
            self.java.version,
            str(self.jars.folder),
            self.main,
            self.collector.name,
        )
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
        return self.jars.folder.parent.parent / "classes" / f"{self.main.rpartition('.')[2]}-{key}.jsa"

    def recording(self, folder: Path) -> Path:
        """Where a run without archive writes one when it ends in order."""
        return folder / "classes.jsa"

    def publish_recording(self, folder: Path) -> None:
        """Move a recorded archive into the cache.

        Only after the program ended by itself: otherwise the archive may be half written.
        """
        archive, recorded = self.archive(), self.recording(folder)
        with contextlib.suppress(OSError):  # another file system or no space: next time
            if recorded.is_file() and not archive.exists():
                archive.parent.mkdir(parents=True, exist_ok=True)
                recorded.rename(archive)
        recorded.unlink(missing_ok=True)


def java_program(main: str, heap: str, collector: Collector, progress: Progress | None = None) -> JavaProgram:
    """Find Java and the jars; downloads them the first time.

    Raises:
        PrerequisiteError: Java is missing or too old.
        JarResolutionError: the jars could not be downloaded.
    """
    java = find_java()
    jars = resolve_jars(cache_folder(os.environ), progress)
    return JavaProgram(java=java, jars=jars, main=main, heap=heap, collector=collector)
