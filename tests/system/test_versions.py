"""An earlier version of the programs beside this one, over real servers: upgrades need no common moment.

The earlier version is a commit of this repository, run with the libraries of this environment: so the clone
has to have its history.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from slackwater.dev import DevStack
from slackwater.protocol import SystemClock
from slackwater_lab.database.statements import create_tables, current_lsn, write_first, write_last
from slackwater_lab.database.writers import Writers
from slackwater_lab.demo.naive import ORDER_LINES, ORDERS
from slackwater_lab.demo.verdict import demo_specification, judge
from slackwater_lab.programs import Product, slackwater_command, write_run_settings
from slackwater_lab.watching import Visibility
from slackwater_lab.workloads.huge import MixedWorkload

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

EARLIER = "f4d6cfdf"
"""The version before all packages of the product became one."""
ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "pipelines" / "orders"
TOPIC = "orders_with_lines"
WORKLOAD = MixedWorkload(5, 200)
SECONDS = 300.0
ENV = shutil.which("env") or "/usr/bin/env"

Command = Callable[..., Sequence[str]]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Makes command lines of the earlier version."""
    folder = tmp_path_factory.mktemp("earlier")
    archive = folder / "earlier.tar"
    made = subprocess.run(
        ("git", "archive", "--output", archive, EARLIER),
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )
    assert made.returncode == 0, f"this clone does not have commit {EARLIER}: {made.stderr.decode()}"
    shutil.unpack_archive(archive, folder)
    for project in folder.glob("packages/*/pyproject.toml"):  # whose versions it asks for
        name, version = re.findall(r'^(?:name|version) = "(.+)"$', project.read_text(), re.MULTILINE)
        info = project.parent / "src" / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sources = ":".join(map(str, [*folder.glob("packages/*/src"), folder / "sidecar" / "src"]))

    def command(*arguments: str) -> Sequence[str]:
        return (ENV, f"PYTHONPATH={sources}", *slackwater_command(*arguments))

    asked = (
        ENV,
        f"PYTHONPATH={sources}",
        sys.executable,
        "-c",
        "import slackwater; print(slackwater.__file__)",
    )
    used = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=SECONDS)
    assert used.stdout.startswith(str(folder)), "the earlier version is what runs"
    return command


class World:
    """A database that is written to, and the programs of two versions."""

    def __init__(self, stack: DevStack, product: Product, local: Path) -> None:
        self.stack, self.product, self.local = stack, product, local
        self.dsn = stack.postgres.dsn()
        self._settings = write_run_settings(product.folder / "run.toml", local)

    def start_sidecar(self, command: Command) -> None:
        self.product.start("sidecar", command("sidecar", "--source", "inv", *self._servers))

    def start_pipeline(self, command: Command) -> None:
        run = ("--config", str(self._settings), "run", str(PIPELINE), "--master", "local[1]")
        checkpoint = ("--checkpoint", str(self.product.folder / "checkpoint"))
        connect = ("--connect-url", self.stack.connect.address)
        self.product.start("pipeline", command(*run, *self._servers, *connect, *checkpoint))

    def wait_until_visible(self, visible: Visibility) -> None:
        """Waits until what was committed up to now can be read; others continue writing."""
        now = current_lsn(self.dsn)
        assert self.product.wait_until(lambda: visible.newest_lsn > now, SECONDS)

    def judge(self) -> None:
        certificate = judge(
            demo_specification(PIPELINE, TOPIC),
            bootstrap=self.product.bootstrap,
            dsn=self.dsn,
            arrivals={},
            since_ms=0,
            on_progress=lambda _: None,
        )
        assert certificate.examples == {}
        assert certificate.is_clean
        assert certificate.final_differences == 0

    @property
    def _servers(self) -> tuple[str, ...]:
        return ("--bootstrap", self.product.bootstrap, "--redis-url", self.stack.redis.url)


@pytest.fixture
def world(dev_stack: Callable[..., DevStack], tmp_path: Path) -> Iterator[World]:
    stack = dev_stack(prefix="inv", tables=(ORDERS, ORDER_LINES), partitions=3)
    create_tables(stack.postgres.dsn(), WORKLOAD)
    write_first(stack.postgres.dsn(), WORKLOAD)
    stack.start_connector((ORDERS, ORDER_LINES))
    stack.wait_until_streaming()
    local = tmp_path / "local"
    local.mkdir()
    with Product(stack, tmp_path / "product") as product:
        yield World(stack, product, local)


def test_the_earlier_and_the_present_version_run_beside_each_other_and_take_over_from_each_other(
    world: World, earlier: Command
) -> None:
    """The pipeline is upgraded, then the sidecar, then the pipeline goes back: each time with its state."""
    sidecar_and_pipeline = (
        (earlier, earlier),
        (earlier, slackwater_command),
        (slackwater_command, slackwater_command),
        (slackwater_command, earlier),
    )
    visible = None
    writers = Writers(world.dsn, WORKLOAD, count=2, changes_per_second=100.0, clock=SystemClock())
    writers.start()
    try:
        for sidecar, pipeline in sidecar_and_pipeline:
            for name in [*world.product.programs]:
                world.product.stop(name)
            world.start_sidecar(sidecar)
            world.product.wait_for_cut_log(SECONDS)
            world.start_pipeline(pipeline)
            if visible is None:
                visible = world.product.watch(PIPELINE)
            world.wait_until_visible(visible)
    finally:
        writers.stop()
    last = write_last(world.dsn, ORDERS)
    assert visible is not None
    assert world.product.wait_until(lambda: visible.newest_lsn > last, SECONDS)
    world.judge()
