"""The same servers in containers: started with testcontainers, with the interfaces of those on this machine.

A container is on this machine's network, and sees the folder of its server under the same path. So ports,
addresses, files of properties and logs are those of a process, and proxies before it work, too. That takes a
daemon of this machine.
"""

import atexit
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import resources
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

import docker
import psutil
from testcontainers.core.container import DockerContainer

from slackwater.dev.java import Collector, JarSet, JavaProgram, PinnedJar, Properties, cache_folder
from slackwater.dev.kafka import ConnectWorker, KafkaBroker
from slackwater.dev.postgres import USER, PostgresServer
from slackwater.dev.processes import (
    InstalledProgram,
    Launch,
    ManagedProcess,
    Version,
    wrong_setting,
)
from slackwater.dev.redis_server import RedisServer
from slackwater.dev.server import Server
from slackwater_lab.servers.stack import LabBroker, SecondBroker, ServerKinds

if TYPE_CHECKING:
    from docker.models.containers import Container

_UNIX = "unix://"
_DAEMON = f"{_UNIX}/var/run/docker.sock"
_ALL_JARS = "*"
_POSTGRES_DATA = "/var/lib/postgresql/slackwater"
_KAFKA_LIBS = Path("/opt/kafka/libs")
_CONNECT_LIBS = Path("/kafka/libs")
_CONNECT_PLUGINS = "/kafka/connect"
_LOGGED = 'exec "$@" >>"$0" 2>&1'
_INITIALISED = (
    'if [ ! -e "$0.initialised" ]; then rm -rf "$0"; '
    f'initdb -D "$0" -U {USER} -A trust -E UTF8 --locale=C --no-sync --no-instructions; '
    'touch "$0.initialised"; fi; exec postgres -D "$0" "$@"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerImages:
    """The images of the servers, and the bases of our own.

    Testcontainers puts TESTCONTAINERS_HUB_IMAGE_NAME_PREFIX before those of the servers.
    """

    postgres: str = "postgres:17.7-bookworm"
    """Has ``initdb`` and ``postgres`` on PATH, an account ``postgres``, and its home /var/lib/postgresql."""
    kafka: str = "apache/kafka:4.3.1"
    """Has ``java`` on PATH and the jars in /opt/kafka/libs."""
    connect: str = "debezium/connect:3.7.0.Final"
    """Has ``java`` on PATH, the jars in /kafka/libs, and Debezium's connector below /kafka/connect."""
    redis: str = "redis:8.2.2-bookworm"
    """Has ``redis-server`` on PATH."""
    python: str = "python:3.11.14-slim-bookworm"
    """The base of our images: Python with ``venv``."""
    java: str = "eclipse-temurin:17.0.17_10-jre-jammy"
    """Has a Java at /opt/java/openjdk."""

    def with_names(self, names: Sequence[str]) -> "ContainerImages":
        """Returns the images with some exchanged.

        Args:
            names: ``server=image`` each.

        Raises:
            ConfigError: there is no such server, or the form is another one.
        """
        given = dict(name.partition("=")[::2] for name in names)
        known = [field.name for field in fields(self)]
        for server, image in given.items():
            if server not in known or not image:
                raise wrong_setting(
                    "images", f"{server}={image}", f"NAME=IMAGE with a name of {', '.join(known)}"
                )
        return replace(self, **given)


def container_kinds(images: ContainerImages) -> ServerKinds:
    """Returns the servers of a stack that run in containers of these images."""
    return {
        PostgresServer: partial(ContainerPostgres, image=images.postgres),
        KafkaBroker: partial(ContainerKafka, image=images.kafka),
        SecondBroker: partial(ContainerSecondKafka, image=images.kafka),
        RedisServer: partial(ContainerRedis, image=images.redis),
        ConnectWorker: partial(ContainerConnect, image=images.connect),
    }


def why_not_here() -> str | None:
    """Says why containers cannot be used on this machine; None if they can."""
    address = os.environ.get("DOCKER_HOST") or _DAEMON
    if not address.startswith(_UNIX):
        return f"containers need a Docker daemon of this machine, and DOCKER_HOST is {address}"
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.connect(address.removeprefix(_UNIX))
    except OSError as error:
        return f"containers need a Docker daemon, and none answers at {address}: {error.strerror}"
    client = docker.from_env()
    try:
        found = client.info()
    finally:
        client.close()
    if any("rootless" in option for option in found.get("SecurityOptions") or ()):
        return "containers need a Docker daemon whose host network is this machine's: this one is rootless"
    if found.get("OperatingSystem") == "Docker Desktop":
        return "containers need a Docker daemon of this machine: Docker Desktop runs in one of its own"
    return None


class ContainerProcess(ManagedProcess):
    """A container as the process of a server: what happens to it happens to all processes in it."""

    _container: "Container"

    def __init__(self, container: "Container") -> None:
        object.__setattr__(self, "_container", container)
        pid, created = _first_process(container)
        super().__init__(pid=pid, created_at=datetime.fromtimestamp(created, UTC))

    @property
    def is_paused(self) -> bool:
        if not self.is_alive:
            return False
        self._container.reload()
        return bool(self._container.status == "paused")

    def stop(self, stop_signal: Signals, patience: timedelta) -> bool:
        """Ask its first process to end, then insist; whether it ended by itself. Idempotent."""
        process = self.find()
        if process is None:
            return False
        self.resume()
        self._container.kill(signal=stop_signal.name)
        try:
            process.wait(patience.total_seconds())
        except psutil.TimeoutExpired:
            self.kill()
            return False
        self._container.wait()
        return True

    def kill(self) -> None:
        """SIGKILL all that runs in it; returns when it is gone; idempotent."""
        if self.is_alive:
            self.resume()  # a frozen container takes no signal
            self._container.kill()
        self._container.wait()

    def settled(self) -> "ManagedProcess":
        """The same: a container tells itself from others."""
        return self

    def pause(self) -> None:
        if self.is_alive and not self.is_paused:
            self._container.pause()

    def resume(self) -> None:
        if self.is_paused:
            self._container.unpause()


def _first_process(container: "Container") -> tuple[int, float]:
    """Its first process, as this machine sees it; without arguments, since a shell becomes the program."""
    container.reload()
    pid = int(container.attrs["State"]["Pid"])
    try:
        created = psutil.Process(pid).create_time() if pid else 0.0
    except psutil.NoSuchProcess:  # it has ended already
        created = 0.0
    return pid, created


class InContainer(Server):
    """Runs what its server class launches in a container; the container lasts until the data is deleted."""

    def __init__(self, *args: Any, image: str, **named: Any) -> None:
        super().__init__(*args, **named)
        self.image = image
        self.user = f"{os.getuid()}:{os.getgid()}"
        """The user in the container: the owner of the folder."""
        self._container: Container | None = None

    def delete_data(self) -> None:
        """Remove the container and what it stored; it must not run."""
        if self._container is not None:
            atexit.unregister(self._remove_at_exit)
            self._container.remove(force=True, v=True)
            self._container = None
        super().delete_data()

    def _run(self) -> ManagedProcess:
        self.version = self.image
        if self._container is None:
            self._container = self._create(self._launch())
            atexit.register(self._remove_at_exit, os.getpid())
        else:
            self._container.start()
        return ContainerProcess(self._container)

    def _create(self, order: Launch) -> "Container":
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.log_path.touch()
        self.log_path.chmod(0o666)  # the account in the container may be another one
        container = DockerContainer(self.image).with_kwargs(
            network_mode="host",
            user=self.user,
            working_dir=str(order.cwd),
            entrypoint=["sh", "-c", _LOGGED, str(self.log_path)],
        )
        container.with_command(list(order.argv)).with_envs(**order.environment)
        for path in (str(self._shared), str(self.log_path)):
            container.with_volume_mapping(path, path, "rw")
        for folder in (str(resources.files("slackwater.dev") / "data"), str(cache_folder())):
            container.with_volume_mapping(folder, folder, "ro")
        return container.start().get_wrapped_container()

    @property
    def _shared(self) -> Path:
        """What the container sees of this machine, besides the log."""
        return self.folder

    def _remove_at_exit(self, owner: int) -> None:
        if os.getpid() == owner and self._container is not None:
            self._container.remove(force=True, v=True)


class ContainerRedis(InContainer, RedisServer):
    """Redis in a container."""

    def _find_program(self) -> InstalledProgram:
        return _in_image("redis-server")


class ContainerPostgres(InContainer, PostgresServer):
    """PostgreSQL in a container, which keeps the data."""

    def __init__(self, *args: Any, image: str, **named: Any) -> None:
        super().__init__(*args, image=image, **named)
        self.user = USER

    def data_folder(self) -> Path:
        """An empty folder: the data is in the container."""
        return self.folder / "postgres"

    @property
    def _shared(self) -> Path:
        return self.data_folder()  # the account in the container need not reach the folder of the stack

    def _prepare(self) -> None:
        self.data_folder().mkdir(parents=True, exist_ok=True)

    def _launch(self) -> Launch:
        argv = ("sh", "-ec", _INITIALISED, _POSTGRES_DATA, *self._options())
        return Launch(argv=argv, cwd=Path("/"), environment={"LC_ALL": "C"})


class _JavaInContainer(InContainer):
    """A server that is a class of Kafka."""

    libs: Path

    def _find_program(
        self, main: str, heap: str, collector: Collector, options: tuple[str, ...]
    ) -> JavaProgram:
        jars = JarSet(self.libs, (PinnedJar(_ALL_JARS, 0, ""),))
        java = _in_image("java")
        return _ProgramInImage(
            java=java, jars=jars, main=main, heap=heap, collector=collector, options=options
        )


class ContainerKafka(_JavaInContainer, LabBroker):
    """A broker in a container."""

    libs = _KAFKA_LIBS


class ContainerSecondKafka(_JavaInContainer, SecondBroker):
    """A further broker in a container."""

    libs = _KAFKA_LIBS


class ContainerConnect(_JavaInContainer, ConnectWorker):
    """A Connect worker in a container, with the connector of its image."""

    libs = _CONNECT_LIBS

    def _worker_properties(self, folder: Path) -> Properties:
        plugins = {"plugin.path": _CONNECT_PLUGINS, "plugin.discovery": "hybrid_warn"}
        return {**super()._worker_properties(folder), **plugins}


class _ProgramInImage(JavaProgram):
    """A program that has no archive of classes: the jars are not on this machine."""

    def _sharing(self, folder: Path) -> tuple[str, ...]:
        return ()

    def publish_recording(self, folder: Path) -> None:
        """Nothing was recorded."""


def _in_image(name: str) -> InstalledProgram:
    return InstalledProgram(Path(name), Version("", 0))


if __name__ == "__main__":  # for scripts that ask before they start tests
    sys.stdout.write(why_not_here() or "")
