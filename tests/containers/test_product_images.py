"""Our images work: as a user that is not root, with a read-only image and without capabilities.

How they were seen to fail: without `USER` in a Dockerfile, and with an entry point that names a class that
Spark does not have.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from slackwater_client import ClientError, TopicOutput, read_views
from slackwater_devstack import DevStack, KafkaBroker, RedisServer
from slackwater_devstack.loopback import free_port
from slackwater_protocol import KafkaSettings

if TYPE_CHECKING:
    from docker.models.containers import Container

pytestmark = pytest.mark.containers

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "pipelines" / "orders"
TABLES = ("inventory.orders", "inventory.order_lines")
ROWS = """
INSERT INTO inventory.orders VALUES (1, 'ada', 'new', 1, 20.50, '2026-01-02T03:04:05Z');
INSERT INTO inventory.order_lines VALUES (11, 1, 'pen', 2, 10.25);
"""
Start = Callable[..., "Container"]
Wait = Callable[[Callable[[], bool], "Container"], None]


def answers(port: int, page: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False


def sidecar(image: str, start: Start, kafka: KafkaBroker, redis: RedisServer, port: int) -> "Container":
    environment = {
        "SLACKWATER_SOURCES": "inv",
        "SLACKWATER_BOOTSTRAP": kafka.bootstrap,
        "SLACKWATER_REDIS_URL": redis.url,
        "SLACKWATER_SIDECAR_HTTP": f"127.0.0.1:{port}",
    }
    return start(image, environment=environment)


def test_a_sidecar_answers_as_a_user_that_can_write_nowhere(
    sidecar_image: str, start: Start, wait_until: Wait, kafka_broker: KafkaBroker, redis_server: RedisServer
) -> None:
    port = free_port()
    container = sidecar(sidecar_image, start, kafka_broker, redis_server, port)
    wait_until(lambda: answers(port, "healthz"), container)
    table = container.top(ps_args="-eo uid,pid,args")
    assert {row[0] for row in table["Processes"]} == {"10001"}
    for folder in ("/", "/opt/slackwater", "/etc"):
        assert container.exec_run(["touch", f"{folder}/x"]).exit_code != 0, folder
    container.kill(signal="SIGTERM")
    assert container.wait()["StatusCode"] == 0, container.logs().decode()


def test_the_sidecar_s_image_has_the_commands_that_look_at_a_source(
    sidecar_image: str, start: Start, wait_until: Wait, kafka_broker: KafkaBroker, redis_server: RedisServer
) -> None:
    port = free_port()
    container = sidecar(sidecar_image, start, kafka_broker, redis_server, port)
    wait_until(lambda: answers(port, "healthz"), container)
    found = container.exec_run(["slackwater", "--version"])
    assert found.exit_code == 0, found.output.decode()
    assert found.output.decode().startswith("slackwater ")


def test_a_pipeline_publishes_what_was_committed(
    sidecar_image: str, spark_image: str, start: Start, wait_until: Wait, dev_stack: Callable[..., DevStack]
) -> None:
    stack = dev_stack()
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA inventory")
        connection.execute((PIPELINE / "schema.sql").read_bytes())
    stack.start_connector(TABLES)
    stack.wait_until_streaming()
    with psycopg.connect(stack.postgres.dsn()) as connection:
        connection.execute(ROWS)
    port = free_port()
    following = sidecar(sidecar_image, start, stack.kafka, stack.redis, port)
    wait_until(lambda: answers(port, "readyz"), following)
    running = start(
        spark_image,
        "slackwater",
        "run",
        "/pipelines/orders",
        environment={
            "SLACKWATER_BOOTSTRAP": stack.kafka.bootstrap,
            "SLACKWATER_REDIS_URL": stack.redis.url,
            "SLACKWATER_CHECKPOINT": "/tmp/checkpoint",  # noqa: S108 - in the container
        },
        volumes={str(PIPELINE): {"bind": "/pipelines/orders", "mode": "ro"}},
    )
    wait_until(lambda: documents(stack.kafka.bootstrap) != [], running)
    [document] = documents(stack.kafka.bootstrap)
    assert (document["id"], document["total"]) == (1, "20.50")
    assert [line["product"] for line in document["lines"]] == ["pen"]
    assert {row[0] for row in running.top(ps_args="-eo uid,pid,args")["Processes"]} == {"10001"}
    running.kill(signal="SIGTERM")
    assert running.wait()["StatusCode"] == 0, running.logs().decode()


def documents(bootstrap: str) -> list[dict[str, Any]]:
    """What the view says; nothing before there is one."""
    output = TopicOutput(KafkaSettings(bootstrap), "orders")
    try:
        found = read_views([output]).documents
    except ClientError:  # the pipeline has made nothing yet
        return []
    finally:
        output.close()
    return [json.loads(document) for view in found.values() for document in view]


def test_the_image_is_a_driver_as_spark_on_kubernetes_starts_it(spark_image: str, start: Start) -> None:
    arguments = ("--master", "local[1]", "local:///opt/slackwater/bin/slackwater-run.py", "--help")
    container = start(
        spark_image, "driver", *arguments, environment={"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"}
    )
    code, said = container.wait()["StatusCode"], container.logs().decode()
    assert code == 0, said
    assert "Run the pipeline in DIR" in said


def test_the_image_is_an_executor_that_looks_for_its_driver(spark_image: str, start: Start) -> None:
    port = free_port()
    container = start(
        spark_image,
        "executor",
        environment={
            "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
            "SPARK_EXECUTOR_ID": "1",
            "SPARK_EXECUTOR_CORES": "1",
            "SPARK_EXECUTOR_MEMORY": "256m",
            "SPARK_APPLICATION_ID": "spark-1",
            "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
            "SPARK_RESOURCE_PROFILE_ID": "0",
            "SPARK_EXECUTOR_POD_NAME": "executor-1",
            "SPARK_JAVA_OPT_0": "-Dslackwater.first=a b",
            "SPARK_JAVA_OPT_1": "-XshowSettings:properties",
        },
    )
    code, said = container.wait()["StatusCode"], container.logs().decode()
    assert code != 0
    assert f"127.0.0.1:{port}" in said
    assert "Connection refused" in said
    assert "slackwater.first = a b" in said
