"""What a healthy run says from its start until it is asked to stop: its own lines, and no others."""

import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from slackwater.dev import DevStack
from slackwater.protocol.metrics import COMPONENTS
from slackwater_lab.programs import Product
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = pytest.mark.system

TABLES = ("inventory.orders", "inventory.order_lines")
SECONDS = 600.0
BATCHES = 3
OWN = {
    "sidecar": re.compile(
        r"inv [a-z]+ \| .*"
        r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO   |WARNING) slackwater[\w.]*: .*"
    ),
    "pipeline": re.compile(
        r"orders: (starting Spark|asking Kafka at .*|waiting for .*|batch \d+ at .*)"
        r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO    slackwater[\w.]*: .*"
    ),
}
"""A sidecar may warn while the connector makes its topics."""


def strange(program: str, lines: list[str]) -> list[str]:
    """The lines of a program that are not its own."""
    return [line for line in lines if OWN[program].fullmatch(line) is None]


def says(product: Product, text: str) -> bool:
    """Whether the pipeline has said it."""
    return text in product.log("pipeline")


def metrics_of(log: str) -> Mapping[str, float]:
    """The values that the run answers, added up over all labels."""
    found = re.search(r"answering at (?:http://)?([\d.:]+)", log)
    assert found is not None
    values: defaultdict[str, float] = defaultdict(float)
    with urlopen(f"http://{found[1]}/metrics", timeout=SECONDS) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                values[sample.name] += sample.value
    return values


def check_delays(values: Mapping[str, float]) -> None:
    """Checks that the delays of all batches are known but the first one's: rows of a snapshot have no END."""
    batches = values["slackwater_run_batches_total"]
    assert batches >= BATCHES
    assert values["slackwater_run_delay_seconds_count"] == batches
    assert values["slackwater_run_component_delay_seconds_count"] >= len(COMPONENTS) * (batches - 1)
    assert (
        0
        < values["slackwater_run_component_delay_seconds_sum"]
        <= values["slackwater_run_delay_seconds_sum"] + 0.1
    )


@pytest.mark.full
def test_a_healthy_run_prints_nothing_but_its_own_lines(
    dev_stack: Callable[..., DevStack], tmp_path: Path
) -> None:
    stack = dev_stack(partitions=2)
    pipeline = repository_pipeline("orders")
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute(b"CREATE SCHEMA inventory")
        connection.execute((pipeline / "schema.sql").read_text().encode())
        connection.execute(b"INSERT INTO inventory.orders VALUES (1, 'ada', 'new', 1, 2.50, now())")
        connection.execute(b"INSERT INTO inventory.order_lines VALUES (1, 1, 'pen', 1, 2.50)")
        stack.start_connector(TABLES)
        stack.wait_until_streaming()
        with Product(stack, tmp_path / "product") as product:
            product.start_sidecar()
            options = ("--master", "local[2]", "--http", "127.0.0.1:0")
            product.start_pipeline(pipeline, *options, local=product.folder)
            for batch in range(BATCHES):
                connection.execute(b"UPDATE inventory.orders SET total = total + 1")
                said = partial(says, product, f"orders: batch {batch} at ")
                assert product.wait_until(said, SECONDS), batch
            check_delays(metrics_of(product.log("pipeline")))
            for name in ("pipeline", "sidecar"):
                program = product.programs[name]
                assert program.pid is not None
                assert os.getpgid(program.pid) == program.pid
                os.killpg(program.pid, signal.SIGTERM)  # as `timeout`, a shell or a supervisor does
                assert program.wait(SECONDS) == 0, name
                assert strange(name, product.log(name).splitlines()) == []
    spark = next(tmp_path.glob("product/**/spark.log")).read_text()
    assert "Traceback" not in spark
    assert "leaked" not in spark


@pytest.mark.parametrize(
    "line",
    [
        "nanobind: leaked 27 instances!",
        "Traceback (most recent call last):",
        "26/11/26 15:20:38 WARN Utils: Your hostname resolves to a loopback address",
        'Setting default log level to "WARN".',
        "2026-11-26 15:20:46,630 ERROR   slackwater.pipeline: the run ended",
    ],
)
def test_lines_of_others_are_noticed(line: str) -> None:
    assert strange("pipeline", [line]) == [line]
