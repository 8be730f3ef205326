"""Apicurio Registry, which speaks Confluent's protocol, from the archive of its release."""

import json
import tempfile
from contextlib import suppress
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote
from zipfile import ZipFile

from slackwater.dev.java import (
    JarSet,
    JavaProgram,
    JavaServer,
    PinnedJar,
    cache_folder,
    find_java,
    resolve_pinned,
)
from slackwater.dev.processes import Launch
from slackwater.dev.server import LOOPBACK
from slackwater.kafka.registry import over_http
from slackwater.protocol import RegistrySettings
from slackwater_lab.errors import RunFailedError
from slackwater_lab.servers.search import without_archive
from slackwater_lab.servers.storage import ask_json

_ARCHIVE = resources.files("slackwater_lab.servers") / "data" / "apicurio"


class RegistryNode(JavaServer):
    """A registry that asks nobody who they are; what it knows is in its memory."""

    name: ClassVar[str] = "apicurio"

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """Where it speaks Confluent's protocol."""
        return f"{self.address}/apis/ccompat/v7"

    @property
    def subjects(self) -> list[str]:
        found: list[str] = self._ask("GET", "/subjects")
        return found

    def clear(self) -> None:
        """Forgets all subjects."""
        for subject in self.subjects:
            self._ask("DELETE", f"/subjects/{quote(subject, safe='')}")

    def compare_versions(self, subject: str) -> None:
        """Refuses schemas of a subject from now on that cannot read what its newest one wrote."""
        self._ask("PUT", f"/config/{quote(subject, safe='')}", {"compatibility": "BACKWARD"})

    def _ask(self, method: str, path: str, fields: dict[str, str] | None = None) -> Any:
        body = None if fields is None else json.dumps(fields).encode()
        status, answer = over_http(RegistrySettings(url=self.url), method, self.url, path, body)
        if status != HTTPStatus.OK:
            raise RunFailedError("the registry", f"{method} {path}: HTTP {status}: {answer.decode()}")
        return json.loads(answer)

    def _prepare(self) -> None:
        archive = resolve_pinned(_ARCHIVE, cache_folder() / "apicurio", self.progress)
        (file,) = (each.name for each in archive.jars)
        home = _unpacked(archive.folder / file)
        runner = PinnedJar(file.replace("-all.zip", "-runner.jar"), 0, "")  # names all others
        self._folder().mkdir(parents=True, exist_ok=True)
        self._program = JavaProgram(
            java=find_java(),
            jars=JarSet(home, (runner,)),
            main="io.quarkus.runner.GeneratedMain",
            heap="512m",
            options=(f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={self.port}"),
        )

    def _launch(self) -> Launch:
        return without_archive(super()._launch())  # recording takes longer than all starts of a session

    def _arguments(self) -> tuple[str, ...]:
        return ()

    def _is_ready(self) -> bool:
        return ask_json(self.port, "/health/ready").get("status") == "UP"


def _unpacked(archive: Path) -> Path:
    """Returns a folder beside that of the archive, which appears with everything that it contains."""
    home = archive.parent.with_name(f"{archive.parent.name}.unpacked")
    if not home.exists():
        incoming = Path(tempfile.mkdtemp(dir=home.parent))
        with ZipFile(archive) as opened:
            opened.extractall(incoming)
        with suppress(OSError):  # another process was faster
            incoming.rename(home)
    return home
