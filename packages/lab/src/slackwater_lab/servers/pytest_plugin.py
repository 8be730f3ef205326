"""Fixtures with real servers, started only when a test asks for them: as processes, or in containers.

``--stack containers`` puts all of them into containers; tests do not differ. Redis and a broker are started
once per session, a whole stack once per module: idle JVMs take a share of every core.

Loaded with ``-p slackwater_lab.servers.pytest_plugin``. When a test that uses one of them fails, the last
lines of the servers' logs are in its report.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # the plugin is loaded in every run: importing it must cost nothing
    from slackwater.dev import Server
    from slackwater_lab.servers.containers import ContainerImages
    from slackwater_lab.servers.stack import LabStack, ServerKinds
    from slackwater_lab.servers.storage import NameNode

    DevStackFactory = Callable[..., LabStack]

_FIXTURES = frozenset(
    {
        "redis_server", "kafka_broker", "postgres_server", "object_store", "search_node", "registry_node",
        "hdfs", "dev_stack",
    }
)  # fmt: skip
_SERVERS = pytest.StashKey[list[Callable[[], "tuple[Server, ...]"]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say where the servers run, and in which images."""
    group = parser.getgroup("slackwater")
    group.addoption(
        "--stack",
        choices=["embedded", "containers"],
        default="embedded",
        help="Run servers as processes of this machine, or in containers.",
    )
    group.addoption(
        "--image",
        action="append",
        metavar="NAME=IMAGE",
        default=[word for word in os.environ.get("DEVSTACK_IMAGES", "").split(",") if word],
        help="The image of postgres, kafka, connect or redis, or python or java as bases of our own; "
        "also DEVSTACK_IMAGES, comma-separated.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the list of what to report about, and JVMs that start in half the CPU time."""
    config.stash[_SERVERS] = []
    # No test lasts so long that the second compiler pays. Reaches JVMs of child processes, too.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add the servers' last words to the report of a failed test."""
    report = yield
    if report.failed and not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        from slackwater.dev.server import log_tail

        for servers in item.config.stash[_SERVERS]:
            for server in servers():
                report.sections.append(
                    (f"log of {server.name}: {server.log_path}", log_tail(server.log_path))
                )
    return report


@pytest.fixture(scope="session")
def container_images(pytestconfig: pytest.Config) -> "ContainerImages":
    """The images that ``--image`` names; skips the test where no container can be started."""
    from slackwater_lab.servers.containers import ContainerImages, why_not_here

    reason = why_not_here()
    if reason is not None:
        pytest.skip(reason)
    return ContainerImages().with_names(pytestconfig.getoption("image"))


@pytest.fixture(scope="session")
def server_kinds(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> "ServerKinds":
    """Makes servers where ``--stack`` says."""
    from slackwater_lab.servers.stack import EMBEDDED_KINDS

    if pytestconfig.getoption("stack") == "embedded":
        return EMBEDDED_KINDS
    from slackwater_lab.servers.containers import container_kinds

    return container_kinds(request.getfixturevalue("container_images"))


def _shared(kind: str, folder: str) -> Any:
    """Returns a fixture that runs one server of a class for all tests of the session."""

    @pytest.fixture(scope="session")
    def server(
        tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, server_kinds: "ServerKinds"
    ) -> "Iterator[Server]":
        found = resolve_name(kind)
        yield from _running(server_kinds.get(found, found)(tmp_path_factory.mktemp(folder)), pytestconfig)

    return server


redis_server = _shared("slackwater.dev:RedisServer", "redis")
"""Use keys or a source name of your own."""
kafka_broker = _shared("slackwater.dev:KafkaBroker", "kafka")
"""Use topics and groups of your own."""
postgres_server = _shared("slackwater.dev:PostgresServer", "postgres")
"""Use schemas or a database of your own."""
object_store = _shared("slackwater_lab.servers.storage:ObjectStore", "objects")
"""Use folders of your own."""

search_node = _shared("slackwater_lab.servers.search:SearchNode", "search")
"""Use pipelines and indexes of your own."""

registry_node = _shared("slackwater_lab.servers.registry:RegistryNode", "registry")
"""Clear it before you use it."""


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> "Iterator[NameNode]":
    """A file system of Hadoop for all tests of the session: use folders of your own."""
    from slackwater_lab.servers.storage import DataNode, NameNode

    folder = tmp_path_factory.mktemp("hdfs")
    for name_node in _running(NameNode(folder), pytestconfig):
        for _ in _running(DataNode(folder, name_node=name_node), pytestconfig):
            yield name_node


@pytest.fixture(scope="module")
def dev_stack(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, server_kinds: "ServerKinds"
) -> "Iterator[DevStackFactory]":
    """Call it with fields of LabStackSettings, without ``folder``, for a started stack.

    It ends with the module.
    """
    from slackwater_lab.servers.stack import LabStack, LabStackSettings

    with ExitStack() as running:

        def start(**settings: Any) -> LabStack:
            folder: Path = tmp_path_factory.mktemp("devstack")
            chosen = LabStackSettings(folder=folder, **{"keep_data": False, **settings})
            stack = LabStack(chosen, kinds=server_kinds)
            pytestconfig.stash[_SERVERS].append(lambda: stack.servers)
            return running.enter_context(stack)

        yield start


def _running(server: "Any", config: pytest.Config) -> "Iterator[Any]":
    config.stash[_SERVERS].append(lambda: (server,))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        server.delete_data()
