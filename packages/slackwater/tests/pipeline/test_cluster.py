"""A pipeline on a standalone cluster, from which one machine after the other is taken."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.protocol.log_fields import FIELDS
from slackwater_lab.servers.spark_cluster import DriverMachine, SparkCluster, shipped_pythons
from slackwater_lab.servers.storage import ObjectStore

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"
COMMANDS = Path(sys.executable).parent

Inventory = Any  # these are of conftest.py
Output = Any

PROJECT = """
[project]
name = "orders"
version = "1.2.0"
dependencies = ["slackwater"]
"""
SETTINGS = """
[log]
format = "json"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """One master; the test starts workers."""
    with SparkCluster(tmp_path / "cluster") as running:
        yield running


def write_pipeline(folder: Path, inventory: Inventory) -> None:
    """Writes the pipeline of orders over an inventory."""
    shutil.copytree(ORDERS_PIPELINE, folder, ignore=shutil.ignore_patterns("tests"))
    definition = f'name = "p-{inventory.source}"\nsource = "{inventory.source}"\nbuckets = 4\n'
    output = f'[outputs.orders_with_lines]\ntopic = "out-{inventory.source}"\n'
    (folder / "pipeline.toml").write_text(definition + output)
    (folder / "pyproject.toml").write_text(PROJECT)


def test_a_pipeline_on_a_cluster_goes_on_when_all_its_machines_are_lost(
    inventory: Inventory,
    output: Output,
    object_store: ObjectStore,
    cluster: SparkCluster,
    tmp_path: Path,
) -> None:
    """Submitted by spark-submit, then run from elsewhere; only the object store and Kafka stay.

    The second time, the driver logs JSON.
    """
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
    first = DriverMachine(tmp_path / "first", conf)
    write_pipeline(first.folder / "orders", inventory)
    packed = first.run("slackwater", "package", "orders", "-o", "orders.tar.gz")
    assert "orders==1.2.0" in packed
    shutil.copy(first.folder / "orders.tar.gz", tmp_path)
    workers = cluster.start_workers("a")
    inventory.run(60)
    script = str(COMMANDS / "slackwater-run.py")
    driver = first.start("spark-submit", "--master", cluster.master.address, script, "orders", *command)
    first.wait_until(lambda: output.has_records(topic), driver)
    assert shipped_pythons(workers), "tasks ran on the cluster, with the Python that was shipped"
    first.lose(driver)
    for worker in workers:
        worker.kill()
        shutil.rmtree(worker.folder)
    before = output.records(topic)

    inventory.run(60)
    others = cluster.start_workers("b")
    second = DriverMachine(tmp_path / "second", {**conf, "spark.master": cluster.master.address})
    archive = Path(shutil.copy(tmp_path / "orders.tar.gz", second.folder))
    (second.folder / "slackwater.toml").write_text(SETTINGS)
    second.run(
        *second.python_of(archive), "-m", "slackwater", "run", "orders==1.2.0", *command, "--available-now"
    )
    assert shipped_pythons(others)
    check_log(second.log, "run", inventory)
    logs = [
        path for path in tmp_path.rglob("*") if path.suffix == ".log" or path.name in ("stderr", "stdout")
    ]
    assert len(logs) > len(others)
    assert [path for path in logs if object_store.secret_key in path.read_text(errors="replace")] == []
    output.assert_view(inventory)
    after = output.records(topic)
    assert len(after) > len(before)
    assert [record for record in before if record not in after] == []


def check_log(path: Path, service: str, inventory: Inventory) -> None:
    """Checks that a service alone writes records into a file, with the fields that are documented."""
    lines = path.read_text(errors="replace").splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert records
    for record in records:
        assert [name for name in FIELDS if name in record] == [name for name in FIELDS if name != "error"]
        told = {name: record[name] for name in ("service", "source", "pipeline")}
        expected = {"service": service, "source": inventory.source, "pipeline": f"p-{inventory.source}"}
        assert told == expected
