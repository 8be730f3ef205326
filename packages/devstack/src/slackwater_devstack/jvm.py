"""Command lines of the Java servers, with an archive of loaded classes that halves their start time."""

import contextlib
import hashlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from slackwater_devstack.jars import JarSet, Progress, cache_folder, resolve_jars
from slackwater_devstack.programs import InstalledProgram, find_java
from slackwater_devstack.settings import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProgram:
    """A main class with all that is needed to run it."""

    java: InstalledProgram
    jars: JarSet
    main: str
    heap: str
    collector: Collector = Collector.SERIAL

    def command(self, arguments: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        """The argument list. Uses the class archive, or records one into the folder when there is none."""
        log4j = resources.files("slackwater_devstack") / "data" / "log4j2.properties"
        archive = self.archive()
        # Without the check, Java crashes when bytes of the file have changed.
        sharing = (
            (f"-XX:ArchiveClassesAtExit={self.recording(folder)}",)
            if archive is None
            else ("-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}")
        )
        return (
            str(self.java.path),
            f"-Xmx{self.heap}",
            self.collector.value,
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={Path(str(log4j)).as_uri()}",
            *sharing,
            "-cp",
            self.jars.classpath,
            self.main,
            *arguments,
        )

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


def java_program(main: str, heap: str, collector: Collector, progress: Progress | None = None) -> JavaProgram:
    """Find Java and the jars; downloads them the first time.

    Raises:
        DevStackUnavailableError: Java is missing or too old, or the jars could not be downloaded.
    """
    java = find_java()
    jars = resolve_jars(cache_folder(os.environ), progress)
    return JavaProgram(java=java, jars=jars, main=main, heap=heap, collector=collector)
