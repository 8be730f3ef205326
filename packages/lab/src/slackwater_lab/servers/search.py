"""One node of OpenSearch, from its jars, with its own start-up and its module for HTTP."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import ClassVar

from slackwater.dev.java import (
    Collector,
    JarSet,
    JavaProgram,
    JavaServer,
    cache_folder,
    find_java,
    resolve_pinned,
)
from slackwater.dev.processes import Launch
from slackwater.dev.server import LOOPBACK
from slackwater_lab.servers.storage import ask_json

_JARS = resources.files("slackwater_lab.servers") / "data" / "opensearch"
_MODULE = "transport-netty4"
_DESCRIPTOR = """\
description=HTTP and transport
version={version}
opensearch.version={version}
name=transport-netty4
classname=org.opensearch.transport.Netty4Plugin
java.version=11
"""
_LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1} %m%n
"""


class SearchNode(JavaServer):
    """A cluster of one node, which asks nobody who they are; what is indexed survives a restart."""

    name: ClassVar[str] = "opensearch"
    stop_patience: ClassVar[timedelta] = timedelta(seconds=1)
    """It takes long to end by itself, and everything that it has acknowledged is on disk."""

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def _prepare(self) -> None:
        jars = resolve_pinned(_JARS, cache_folder() / "opensearch", self.progress)
        self.version = jars.version_of("opensearch")
        home = self._folder()
        self._write_home(home, jars)
        self._program = JavaProgram(
            java=find_java(),
            jars=JarSet(jars.folder, tuple(jar for jar in jars.jars if "netty" not in jar.name)),
            main="org.opensearch.bootstrap.OpenSearch",
            heap="512m",
            collector=Collector.SERIAL,
            options=(
                "-XX:TieredStopAtLevel=1",
                "-Djava.security.manager=allow",
                f"-Dopensearch.path.home={home}",
                f"-Dopensearch.path.conf={home / 'config'}",
                "-Dopensearch.distribution.type=tar",
                f"-Djava.io.tmpdir={home / 'tmp'}",
                # Without native code, the start-up does not refuse to run as root.
                "-Djna.nounpack=true",
                "-Djna.nosys=true",
            ),
        )

    def _write_home(self, home: Path, jars: JarSet) -> None:
        """Lays out what an installation has: modules are loaded from jars below the home folder only."""
        module = home / "modules" / _MODULE
        for folder in (home / "config", home / "tmp", module):
            folder.mkdir(parents=True, exist_ok=True)
        for jar in jars.jars:
            if "netty" in jar.name:
                shutil.copy(jars.folder / jar.name, module)
        descriptor = _DESCRIPTOR.format(version=self.version)
        (module / "plugin-descriptor.properties").write_text(descriptor)
        (module / "plugin-security.policy").write_text("grant { permission java.security.AllPermission; };\n")
        (home / "config" / "log4j2.properties").write_text(_LOGGING)
        lines = (f"{name}: {value}\n" for name, value in self._settings().items())
        (home / "config" / "opensearch.yml").write_text("".join(lines))

    def _settings(self) -> Mapping[str, object]:
        return {
            "discovery.type": "single-node",
            "network.host": LOOPBACK,
            "http.port": self.port,
            "transport.port": self._port("transport"),
            # How full this machine's disk is says nothing about the tests.
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }

    def _launch(self) -> Launch:
        return without_archive(super()._launch())  # it is killed, so it never writes one

    def _arguments(self) -> tuple[str, ...]:
        return ()

    def _is_ready(self) -> bool:
        return ask_json(self.port, "/_cluster/health").get("status") in ("green", "yellow")


def without_archive(launch: Launch) -> Launch:
    """Returns how a server of Java is started that records no archive of its classes when it ends."""
    archived = "-XX:ArchiveClassesAtExit"
    return replace(launch, argv=tuple(each for each in launch.argv if not each.startswith(archived)))
