"""A run that stands still says so over HTTP, and says when it continues.

Spark's JVM is stopped while a batch is to be run in it: the process of the run lives and answers, its loop
waits. Seen to fail with a page /healthz that always says yes.
"""

import json
import re
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slackwater.dev import KafkaBroker, RedisServer
from slackwater.protocol import SystemClock
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.programs import Program, slackwater_command, stated_connector
from slackwater_lab.workloads.orders import OrdersWorkload
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = [pytest.mark.system, pytest.mark.spark]

SOURCE = "health"
SECONDS = 600.0
SILENT_AFTER = 3
TURN_AGE = "slackwater_run_last_turn_age_seconds"
BATCHES = "slackwater_run_batches_total"


class Run:
    """A pipeline that runs, as it is seen over HTTP."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def page(self, path: str) -> tuple[int, str]:
        """Status and body of a page; 0 while nobody answers."""
        found = re.search(r"answering at http://([\d.:]+)", self.program.output())
        if found is None:
            return 0, ""
        connection = HTTPConnection(found[1], timeout=SECONDS)
        connection.request("GET", path)
        answer = connection.getresponse()
        result = answer.status, answer.read().decode()
        connection.close()
        return result

    def metric(self, name: str) -> float:
        """The value of a metric without further labels."""
        families = text_string_to_metric_families(self.page("/metrics")[1])
        return next(sample.value for family in families for sample in family.samples if sample.name == name)

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Waits for a condition while the run lives."""
        clock, pause = SystemClock(), threading.Event()
        deadline = clock.monotonic() + SECONDS
        while not condition():
            self.program.check()
            assert clock.monotonic() < deadline, self.program.last_words()
            pause.wait(0.1)


def write_pipeline(folder: Path) -> Path:
    """The pipeline of orders, from a source of this test."""
    pipeline = folder / "orders"
    (pipeline / "views").mkdir(parents=True)
    for name in ("schema.sql", "views/orders_with_lines.sql"):
        (pipeline / name).write_text((repository_pipeline("orders") / name).read_text())
    definition = (
        f'name = "orders"\nsource = "{SOURCE}"\n[output]\ntopic = "{SOURCE}-orders"\npartitions = 2\n'
    )
    (pipeline / "pipeline.toml").write_text(definition)
    return pipeline


@pytest.mark.full
def test_a_run_is_ready_when_it_has_caught_up_and_unhealthy_while_its_loop_is_blocked(
    kafka_broker: KafkaBroker, redis_server: RedisServer, tmp_path: Path
) -> None:
    environment = {
        "SLACKWATER_SOURCE": SOURCE,
        "SLACKWATER_BOOTSTRAP": kafka_broker.bootstrap,
        "SLACKWATER_REDIS_URL": redis_server.url,
        "SLACKWATER_RUN_CHECKPOINT": str(tmp_path / "checkpoint"),
        "SLACKWATER_RUN_HTTP": "127.0.0.1:0",
        "SLACKWATER_RUN_SILENT_AFTER": str(SILENT_AFTER),
    }
    (tmp_path / "slackwater.toml").write_text(stated_connector(SOURCE))
    arguments = slackwater_command("run", str(write_pipeline(tmp_path)), "--master", "local[1]")
    pipeline = Program("run", lambda: arguments, tmp_path)
    sidecar = Program("sidecar", lambda: slackwater_command("sidecar"), tmp_path)
    run = Run(pipeline)
    filler = TopicFiller(kafka_broker.bootstrap, OrdersWorkload(20, 1), prefix=SOURCE, partitions=2)
    filler.fill(50)
    try:
        pipeline.start(folder=tmp_path, environment=environment)
        run.wait_until(lambda: "waiting for the first cut" in pipeline.output())
        run.wait_until(lambda: run.page("/healthz")[0] == 200)
        status, body = run.page("/readyz")
        assert (status, json.loads(body)["why_not"].keys()) == (503, {"orders"})
        sidecar.start(folder=tmp_path, environment=environment)
        run.wait_until(lambda: run.page("/readyz")[0] == 200)

        (spark,) = pipeline.children(lambda process: process.name() == "java")
        spark.pause()
        filler.fill(50)
        run.wait_until(lambda: run.page("/healthz")[0] == 503)
        why = json.loads(run.page("/healthz")[1])["why_not"]["orders"]
        assert re.fullmatch(r"its loop has been blocked for \d+ s", why)
        assert run.metric(TURN_AGE) > SILENT_AFTER
        assert run.page("/readyz")[0] == 200
        before = run.metric(BATCHES)

        spark.resume()
        run.wait_until(lambda: run.page("/healthz")[0] == 200)
        run.wait_until(lambda: run.metric(BATCHES) > before)
    finally:
        sidecar.stop()
        pipeline.stop()
