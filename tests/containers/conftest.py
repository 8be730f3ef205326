"""Our images, built from wheels made now, and containers of them as Kubernetes would restrict them."""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import pytest

from slackwater.dev.server import Deadline
from slackwater_lab.servers.containers import ContainerImages

if TYPE_CHECKING:
    from docker.models.containers import Container

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # `infra` is no member and is run from the repository's folder

PREFIX = "slackwater-test"
Start = Callable[..., "Container"]


@pytest.fixture(scope="session")
def daemon(container_images: ContainerImages) -> Iterator[Any]:
    """A client of the Docker daemon; without one the tests are skipped."""
    client = docker.from_env(timeout=900)
    yield client
    client.close()


@pytest.fixture(scope="session")
def build(
    daemon: Any, container_images: ContainerImages, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """Builds one of our images by the name of its folder, from wheels made now; returns the image's name."""
    from infra.wheels.build import build_wheels

    context = tmp_path_factory.mktemp("context")
    build_wheels(context / "dist")
    shutil.copy(ROOT / "requirements.lock", context)
    (context / "infra" / "bootstrap").mkdir(parents=True)
    shutil.copy(ROOT / "infra" / "bootstrap" / "uv.lock", context / "infra" / "bootstrap")
    shutil.copytree(ROOT / "infra" / "images", context / "infra" / "images")
    bases = {"PYTHON_IMAGE": container_images.python, "JAVA_IMAGE": container_images.java}

    def run(name: str) -> str:
        tag = f"{PREFIX}/{name}"
        daemon.images.build(
            path=str(context),
            dockerfile=f"infra/images/{name}/Dockerfile",
            tag=tag,
            buildargs=bases,
            network_mode="host",
            rm=True,
        )
        return tag

    return run


@pytest.fixture(scope="session")
def sidecar_image(build: Callable[[str], str]) -> str:
    return build("sidecar")


@pytest.fixture(scope="session")
def spark_image(build: Callable[[str], str]) -> str:
    return build("spark")


@pytest.fixture
def start(daemon: Any) -> Iterator[Start]:
    """Starts containers with the restrictions of the chart, on this machine's network, for one test."""
    with ExitStack() as running:

        def run(
            image: str,
            *command: str,
            environment: Mapping[str, str],
            volumes: Mapping[str, Mapping[str, str]] | None = None,
        ) -> "Container":
            container = daemon.containers.run(
                image,
                list(command),
                detach=True,
                environment=dict(environment),
                volumes=dict(volumes or {}),
                network_mode="host",
                read_only=True,
                tmpfs={"/tmp": "mode=1777"},  # noqa: S108 - in the container
                cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
            )
            running.callback(container.remove, force=True, v=True)
            return container

        yield run


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], "Container"], None]:
    """Waits for a condition while a container runs."""

    def wait(condition: Callable[[], bool], container: "Container") -> None:
        deadline, pause = Deadline(timedelta(minutes=15)), threading.Event()
        while not condition():
            container.reload()
            assert container.status == "running", container.logs().decode()
            assert not deadline.is_expired, container.logs().decode()
            pause.wait(0.1)

    return wait
