"""A pipeline on a standalone cluster, from which one machine after the other is taken."""

import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from slackwater_devstack import ObjectStore, SparkMaster, SparkWorker

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.full]

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"
COMMANDS = Path(sys.executable).parent
SECONDS = 900.0

Inventory = Any  # these are of conftest.py
Output = Any

PROJECT = """
[project]
name = "orders"
version = "1.2.0"
dependencies = ["slackwater"]
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[SparkMaster]:
    server = SparkMaster(tmp_path / "master")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start_workers(master: SparkMaster, tmp_path: Path) -> Iterator[Callable[[str], list[SparkWorker]]]:
    """Starts two workers, whose machines have what a name says, and nothing of this repository's Python."""
    started: list[SparkWorker] = []

    def start(name: str) -> list[SparkWorker]:
        workers = [
            SparkWorker(
                tmp_path / f"{name}-{number}",
                master=master.address,
                memory="640m",
                environment={"PATH": path_without_us(), "PYTHONPATH": ""},
            )
            for number in range(2)
        ]
        for worker in workers:
            started.append(worker)
            worker.start()
        return workers

    yield start
    for worker in started:
        worker.stop()


def path_without_us() -> str:
    """``PATH`` without the environment that the tests run in."""
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if Path(folder) != COMMANDS)


class Machine:
    """Where a driver runs: with the pipeline, the archive for executors, and Spark's configuration."""

    def __init__(self, folder: Path, inventory: Inventory, conf: dict[str, str]) -> None:
        self.folder = folder
        shutil.copytree(ORDERS_PIPELINE, folder / "orders", ignore=shutil.ignore_patterns("tests"))
        definition = f'name = "p-{inventory.source}"\nsource = "{inventory.source}"\nbuckets = 4\n'
        output = f'[outputs.orders_with_lines]\ntopic = "out-{inventory.source}"\n'
        (folder / "orders" / "pipeline.toml").write_text(definition + output)
        (folder / "orders" / "pyproject.toml").write_text(PROJECT)
        lines = (f"{name} {value}\n" for name, value in conf.items())
        (folder / "spark-defaults.conf").write_text("".join(lines))
        self.log = folder.with_suffix(".log")

    def python_of_archive(self) -> tuple[str, ...]:
        """Unpacks the archive; how its Python is started with the library of the Spark that is installed."""
        with tarfile.open(self.folder / "orders.tar.gz") as packed:
            packed.extractall(self.folder / "environment", filter="data")
        spark = Path(pyspark.__file__).parent
        libraries = os.pathsep.join(map(str, sorted((spark / "python" / "lib").glob("*.zip"))))
        found = (f"SPARK_HOME={spark}", f"PYTHONPATH={libraries}", f"PATH={path_without_us()}")
        return ("/usr/bin/env", *found, str(self.folder / "environment" / "bin" / "python"))

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Starts a program of the environment here."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLACKWATER")}
        spark = {
            "PATH": os.pathsep.join((str(COMMANDS), kept["PATH"])),
            "SPARK_CONF_DIR": str(self.folder),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with self.log.open("ab") as log:
            return subprocess.Popen(
                (shutil.which(command[0], path=str(COMMANDS)) or command[0], *command[1:]),
                cwd=self.folder,
                env={**kept, **spark},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(self, *command: str) -> str:
        """Runs a program to its end; what programs here have printed."""
        code = self.start(*command).wait(SECONDS)
        text = self.log.read_text(errors="replace")
        assert code == 0, text[-5000:]
        return text

    def lose(self, driver: subprocess.Popen[bytes]) -> None:
        """Kills all that runs here, at once and with no last word, and takes the disk away."""
        for process in [*psutil.Process(driver.pid).children(recursive=True), psutil.Process(driver.pid)]:
            process.kill()
        driver.wait(SECONDS)
        shutil.rmtree(self.folder)


def test_a_pipeline_on_a_cluster_goes_on_when_all_its_machines_are_lost(
    inventory: Inventory,
    output: Output,
    object_store: ObjectStore,
    master: SparkMaster,
    start_workers: Callable[[str], list[SparkWorker]],
    tmp_path: Path,
) -> None:
    """Submitted by spark-submit, then run from elsewhere; only the object store and Kafka stay."""
    conf = {
        "spark.executor.memory": "512m",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": sys.executable,
        "spark.archives": "orders.tar.gz#environment",
        **object_store.spark_conf(),
    }
    command = (
        *("--bootstrap", inventory.bootstrap, "--redis-url", inventory.redis_url),
        *("--checkpoint", f"s3a://{object_store.bucket}/{inventory.source}"),
        *("--max-events-per-batch", "60"),
    )
    topic = f"out-{inventory.source}"
    first = Machine(tmp_path / "first", inventory, conf)
    packed = first.run("slackwater", "package", "orders", "-o", "orders.tar.gz")
    assert "orders==1.2.0" in packed
    shutil.copy(first.folder / "orders.tar.gz", tmp_path)
    workers = start_workers("a")
    inventory.run(60)
    script = str(COMMANDS / "slackwater-run.py")
    driver = first.start("spark-submit", "--master", master.address, script, "orders", *command)
    await_documents(output, topic, driver, first.log)
    assert unpacked(workers), "tasks ran on the cluster, with the Python that was shipped"
    first.lose(driver)
    for worker in workers:
        worker.kill()
        shutil.rmtree(worker.folder)
    before = output.records(topic)

    inventory.run(60)
    others = start_workers("b")
    second = Machine(tmp_path / "second", inventory, {**conf, "spark.master": master.address})
    shutil.copy(tmp_path / "orders.tar.gz", second.folder)
    second.run(
        *second.python_of_archive(), "-m", "slackwater", "run", "orders==1.2.0", *command, "--available-now"
    )
    assert unpacked(others)
    logs = [
        path for path in tmp_path.rglob("*") if path.suffix == ".log" or path.name in ("stderr", "stdout")
    ]
    assert len(logs) > len(others)
    assert [path for path in logs if object_store.secret_key in path.read_text(errors="replace")] == []
    output.assert_view(inventory)
    after = output.records(topic)
    assert len(after) > len(before)
    assert [record for record in before if record not in after] == []


def await_documents(output: Output, topic: str, driver: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until something is visible."""
    deadline = time.monotonic() + SECONDS
    while not output.has_records(topic):
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-5000:]
        try:
            code = driver.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"the driver ended with {code}: {log.read_text(errors='replace')[-5000:]}")


def unpacked(workers: list[SparkWorker]) -> list[Path]:
    """What executors of these workers have unpacked of the archive."""
    return [path for worker in workers for path in worker.work.glob("*/*/environment/bin/python")]
