"""Our images work: as a user that is not root, with a read-only image and without capabilities.

How they were seen to fail: without `USER` in a Dockerfile, and with an entry point that names a class that
Spark does not have.
"""

import json
import os
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from slackwater.client import TopicOutput, read_views
from slackwater.dev import DevStack, KafkaBroker, RedisServer
from slackwater.dev.server import Deadline, free_port
from slackwater.protocol import KafkaSettings, SlackwaterError
from slackwater_lab.servers.containers import ContainerImages

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
            "SLACKWATER_CONNECT_URL": stack.connect.address,
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
    except SlackwaterError:  # the pipeline has made nothing yet
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


# --- the compose file

COMPOSE = ("docker", "compose", "-p", "slackwater-test", "-f", str(ROOT / "infra/compose/compose.yaml"))
HOST_BOOTSTRAP = "127.0.0.1:29092"
Compose = Callable[..., str]


@pytest.fixture
def compose(container_images: ContainerImages, request: pytest.FixtureRequest) -> Iterator[Compose]:
    """Runs commands of Docker Compose on the compose file, with our images and those of the servers."""
    if subprocess.run(("docker", "compose", "version"), capture_output=True, check=False).returncode != 0:
        pytest.skip("THE COMPOSE FILE IS NOT STARTED: this docker has no plugin `compose`")
    images = {
        "SIDECAR_IMAGE": request.getfixturevalue("sidecar_image"),
        "SPARK_IMAGE": request.getfixturevalue("spark_image"),
        "POSTGRES_IMAGE": container_images.postgres,
        "KAFKA_IMAGE": container_images.kafka,
        "CONNECT_IMAGE": container_images.connect,
        "REDIS_IMAGE": container_images.redis,
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            (*COMPOSE, *arguments), env={**os.environ, **images}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        yield run
    finally:
        run("down", "--volumes", "--timeout", "30")


def insert_order(compose: Compose, number: int) -> None:
    row = f"INSERT INTO inventory.orders VALUES ({number}, 'ada', 'new', 0, 0, now())"  # noqa: S608 - a number
    compose("exec", "-T", "postgres", "psql", "-U", "postgres", "inventory", "-c", row)


def wait_for_orders(compose: Compose, wanted: set[int]) -> None:
    """Waits until the view has exactly these orders, and the page of the run says that it has caught up."""
    ready = "import urllib.request as u; u.urlopen('http://127.0.0.1:8087/readyz')"
    deadline, pause = Deadline(timedelta(minutes=15)), threading.Event()
    while {document["id"] for document in documents(HOST_BOOTSTRAP)} != wanted:
        assert not deadline.is_expired, compose("logs", "--tail", "30")
        pause.wait(0.5)
    compose("exec", "-T", "pipeline", "python", "-c", ready)


def test_what_compose_starts_publishes_documents_and_goes_on_when_it_is_started_again(
    compose: Compose,
) -> None:
    """Seen to fail with a pipeline that refuses tables without rows."""
    compose("up", "--detach", "--no-build")
    insert_order(compose, 1)
    wait_for_orders(compose, {1})
    compose("down", "--timeout", "60")
    compose("up", "--detach", "--no-build")
    insert_order(compose, 2)
    wait_for_orders(compose, {1, 2})
