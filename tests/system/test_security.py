"""The whole product with servers that want to know who comes: TLS everywhere, every login, users of Redis."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
import redis
from confluent_kafka.admin import AdminClient

from slackwater.client import ChangeTopics, OutputTopics, TransactionalConsumer
from slackwater.protocol import KafkaSettings, SystemClock
from slackwater.protocol.keys import cut_log_topic
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.programs import Program, slackwater_command, stated_connector
from slackwater_lab.secured_servers import WAYS, SecuredServers
from slackwater_lab.topics import read_to_end
from slackwater_lab.workloads.orders import LINES, ORDERS, OrdersWorkload

pytestmark = [pytest.mark.system, pytest.mark.spark]

PIPELINE = Path(__file__).parents[2] / "pipelines" / "orders"
USER, PASSWORD = "slackwater", "planted-password"
SECONDS = 600.0
PAUSE = threading.Event()
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServers]:
    """Hold the topics of a connector."""
    folder = tmp_path_factory.mktemp("secured")
    with SecuredServers(folder, {USER: PASSWORD}, masters=[USER]) as running:
        TopicFiller(running.kafka.bootstrap, OrdersWorkload(20, 1), prefix="inv", partitions=2).fill(100)
        yield running


def run(environment: Mapping[str, str], folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end."""
    return subprocess.run(
        slackwater_command(*arguments),
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = CLOCK.monotonic() + SECONDS
    while not condition():
        assert CLOCK.monotonic() < deadline, what()
        PAUSE.wait(0.1)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts programs that end with the test."""
    with ExitStack() as running:

        def start(name: str, environment: Mapping[str, str], *command: str) -> Program:
            program = Program(name, lambda: command, tmp_path)
            program.start(folder=tmp_path, environment=environment)
            running.callback(program.stop)
            return program

        yield start


Started = Callable[..., Program]


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_sidecar_command_and_client_come_in_every_way(
    servers: SecuredServers, started: Started, tmp_path: Path, way: str
) -> None:
    environment = servers.environment(USER, way)
    sidecar = started("sidecar", environment, *slackwater_command("sidecar", "--source", "inv"))
    admin = AdminClient({"bootstrap.servers": servers.kafka.bootstrap})
    wait_until(lambda: cut_log_topic("inv") in admin.list_topics(timeout=60).topics, sidecar.last_words)
    kafka = KafkaSettings(servers.kafka.bootstrap_for(way), servers.options(USER, way))
    tables = ChangeTopics(source="inv", tables=(ORDERS, LINES))
    with TransactionalConsumer(kafka, tables, group=f"group-{way}") as consumer:
        found = list(islice(iter(lambda: consumer.poll(timedelta(seconds=60)), None), 3))
    assert len(found) == 3
    wait_until(lambda: is_running(environment, tmp_path), sidecar.last_words)
    sidecar.check()


def is_running(environment: Mapping[str, str], folder: Path) -> bool:
    """Whether `slackwater status` says that the sidecar runs: it asks Redis and Kafka."""
    done = run(environment, folder, "status", "--source", "inv", "--json")
    return done.returncode == 0 and json.loads(done.stdout)["state"] == "running"


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_driver_and_executors_come_in_every_way(
    servers: SecuredServers, started: Started, tmp_path: Path, way: str
) -> None:
    """Executors in processes of their own: they get what they need from the driver."""
    environment = servers.environment(USER, way)
    started("sidecar", environment, *slackwater_command("sidecar", "--source", "inv"))
    wait_until(lambda: is_running(environment, tmp_path), lambda: "the sidecar does not run")
    folder = tmp_path / "orders"
    (folder / "views").mkdir(parents=True)
    for name in ("schema.sql", "views/orders_with_lines.sql"):
        (folder / name).write_text((PIPELINE / name).read_text())
    definition = f'name = "p-{way}"\nsource = "inv"\n[output]\ntopic = "out-{way}"\npartitions = 2\n'
    (folder / "pipeline.toml").write_text(definition)
    (tmp_path / "slackwater.toml").write_text(stated_connector("inv"))
    command = ["run", "orders", "--checkpoint", "checkpoint", "--available-now"]
    done = run(environment, tmp_path, *command, "--master", "local-cluster[1,1,1024]")
    assert done.returncode == 0, done.stderr
    kafka = KafkaSettings(servers.kafka.bootstrap_for(way), servers.options(USER, way))
    with TransactionalConsumer(kafka, OutputTopics(f"out-{way}"), group=f"out-{way}") as consumer:
        assert consumer.poll(timedelta(seconds=60)) is not None
    read = run(environment, tmp_path, "read", "orders", "--json")
    assert read.returncode == 0, read.stderr


# --- planted secrets

PLANTED = {
    "kafka and redis": PASSWORD,
    "lake": "planted-key-of-the-lake",
    "spark": "planted-key-of-spark",
    "registry": "planted-word-of-the-registry",
    "database": "planted-word-of-the-database",
    "output database": "planted/word&of the \"outputs'",
    "connect": "planted-word-of-the-connector",
    "endpoint": "planted-word-in-an-address",
}
SETTINGS = f"""
[delta]
location = "lake"
[delta.options]
AWS_SECRET_ACCESS_KEY = "{PLANTED["lake"]}"
[registry]
password = "{PLANTED["registry"]}"
[run.spark_conf]
"spark.ui.enabled" = "true"
"spark.ui.port" = "0"
"spark.hadoop.fs.s3a.secret.key" = "{PLANTED["spark"]}"
"spark.local.dir" = "local"
"""
UNPROTECTED = """
import sys
from slackwater.settings import loading
from slackwater.protocol import hide
from slackwater.pipeline import spark_conf
hide.__code__ = (lambda text, secrets: text).__code__
loading._masked = str
loading.take_secrets.__code__ = (lambda environment: dict(environment)).__code__
plain = lambda value: str(value)
loading._shown.__code__ = plain.__code__
spark_conf._DEFAULTS["spark.redaction.regex"] = "nothing at all"
from slackwater.cli.main import main
main(sys.argv[1:])
"""
"""The command with all that hides secrets taken out."""


@dataclass
class Search:
    """Remembers where planted secrets were found."""

    found: set[tuple[str, str]] = field(default_factory=set)

    def look(self, where: str, data: str | bytes) -> None:
        text = data.encode() if isinstance(data, str) else data
        for name, secret in PLANTED.items():
            forms = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}
            if any(form.encode() in text for form in forms):
                self.found.add((where, name))

    @property
    def places(self) -> set[str]:
        """Where anything was found."""
        return {where for where, _ in self.found}


# In CI: packages/slackwater/tests/protocol/test_secrets.py,
# packages/slackwater/tests/command/test_loading.py.
@pytest.mark.slow
@pytest.mark.parametrize("is_protected", [True, False], ids=["hidden", "not hidden"])
def test_no_secret_is_found_anywhere(
    servers: SecuredServers, started: Started, tmp_path: Path, is_protected: bool
) -> None:
    command = slackwater_command() if is_protected else (sys.executable, "-c", UNPROTECTED)
    environment = servers.environment(USER, "scram") | {
        "SLACKWATER_POSTGRES_URL": f"postgresql://u:{PLANTED['database']}@127.0.0.1:1/d",
        "SLACKWATER_POSTGRES_OUTPUT_PASSWORD": PLANTED["output database"],
        "SLACKWATER_POSTGRES_OUTPUT_URL": "postgresql://u@127.0.0.1:1/d",
        "SLACKWATER_LOG_LEVEL": "debug",
    }
    word = tmp_path / "word"
    word.write_text(PLANTED["connect"])
    environment["SLACKWATER_CONNECT_DATABASE_PASSWORD_FILE"] = str(word)
    settings = tmp_path / "slackwater.toml"
    settings.write_text(f"{SETTINGS}\n{stated_connector('inv')}")
    name = f"orders-{is_protected}".lower()
    folder = tmp_path / name
    (folder / "views").mkdir(parents=True)
    for path in ("schema.sql", "views/orders_with_lines.sql"):
        (folder / path).write_text((PIPELINE / path).read_text())
    (folder / "pipeline.toml").write_text(f'name = "{name}"\nsource = "inv"\n[output]\ntopic = "{name}"\n')

    listen = ("--http", "127.0.0.1:0", "--control", "127.0.0.1:0")
    sidecar = started("sidecar", environment, *command, "sidecar", "--source", "inv", *listen)
    pipeline = started(
        "pipeline", environment, *command, "run", str(folder), "--checkpoint", str(tmp_path / "checkpoint")
    )
    wait_until(lambda: f"{name}: batch 0" in pipeline.output() or not pipeline.is_well, pipeline.last_words)
    assert pipeline.is_well, pipeline.last_words()

    search = Search()
    look_at_processes(search, [sidecar, pipeline])
    look_at_pages(search, sidecar, pipeline)
    look_at_servers(search, servers)
    look_at_commands(search, command, environment, folder)
    pipeline.stop()
    sidecar.stop()
    for file in tmp_path.rglob("*"):
        if file.is_file() and file not in (settings, word) and not file.is_socket():
            search.look("file", file.read_bytes())
    assert (tmp_path / "checkpoint" / "slackwater.json").exists()
    if is_protected:
        assert search.found == set()
    else:
        expected = {"environment of a child", "page of spark", "config", "failing command", "traceback"}
        assert expected <= search.places, search.found


def look_at_processes(search: Search, programs: list[Program]) -> None:
    """Searches what any account may read of all processes, and what the product's children inherit."""
    for process in psutil.process_iter(["cmdline"]):
        search.look("command line", "\0".join(process.info["cmdline"] or ()))
    for program in programs:
        children = psutil.Process(program.pid).children(recursive=True)
        assert children
        for child in children:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                search.look("environment of a child", "\0".join(child.environ().values()))


def look_at_pages(search: Search, sidecar: Program, pipeline: Program) -> None:
    words = sidecar.output().split()
    plane, pages = (words[words.index(before) + 1] for before in ("plane:", "at"))
    for path in ("topology", "pipelines", "delays", "snapshots", "leases", "sources", "sources/inv"):
        search.look("control plane", page(f"{plane}/api/v1/{path}"))
    for path in ("metrics", "status", "readyz", "healthz"):
        search.look("page of the sidecar", page(f"{pages}/{path}"))
    (jvm,) = [each for each in psutil.Process(pipeline.pid).children() if each.name() == "java"]
    ports = {each.laddr.port for each in jvm.net_connections() if each.status == psutil.CONN_LISTEN}
    environments = [text for port in sorted(ports) if "Spark Properties" in (text := spark_page(port))]
    assert environments
    assert "spark.hadoop.fs.s3a.secret.key" in environments[0]
    for text in environments:
        search.look("page of spark", text)


def page(url: str) -> bytes:
    try:
        with urlopen(url, timeout=60) as answer:  # noqa: S310 - of this machine
            return bytes(answer.read())
    except HTTPError as error:
        with error:
            return error.read()


def spark_page(port: int) -> str:
    """The environment as Spark shows it to people and to programs; empty if another server is there."""
    root = f"http://127.0.0.1:{port}"
    try:
        shown = page(f"{root}/environment/").decode()
        (application,) = json.loads(page(f"{root}/api/v1/applications"))
        told = page(f"{root}/api/v1/applications/{application['id']}/environment").decode()
        return shown + told
    except (OSError, ValueError, HTTPException):
        return ""


def look_at_servers(search: Search, servers: SecuredServers) -> None:
    readers: dict[str, Callable[[Any, bytes], object]] = {
        "hash": lambda client, key: client.hgetall(key),
        "stream": lambda client, key: client.xrange(key),
        "string": lambda client, key: client.get(key),
    }
    with redis.Redis(port=servers.redis.port) as client:
        keys = list(client.scan_iter())
        assert keys
        for key in keys:
            kind = client.type(key).decode()
            search.look("redis", repr((key, readers[kind](client, key))))
    topics = AdminClient({"bootstrap.servers": servers.kafka.bootstrap}).list_topics(timeout=60).topics
    assert "slackwater.pipelines" in topics
    for topic in topics:
        if not topic.startswith("__"):
            for record in read_to_end(servers.kafka.bootstrap, topic):
                search.look(
                    "topic",
                    b"".join((record.key() or b"", record.value() or b"", repr(record.headers()).encode())),
                )


def look_at_commands(
    search: Search, command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> None:
    def ask(where: str, *arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments],
            cwd=folder.parent,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        search.look(where, done.stdout + done.stderr)
        return done.stdout + done.stderr

    assert "connect.database_password" in ask("config", "config")
    for asked in (("status", "--source", "inv"), ("topology",), ("pipeline", "list"), ("delay",)):
        assert ask("json", *asked, "--json").startswith(("{", "["))
    ask("json", "doctor", "--source", "inv", "--json")
    checkpoint = ("--checkpoint", str(folder.parent / "other"))
    assert "brokers" in ask("dry run", "run", str(folder), *checkpoint, "--dry-run")
    # The library of lakes repeats the whole address of what does not answer.
    failing = folder.parent / "failing.toml"
    failing.write_text(
        '[delta]\nlocation = "s3://lake/x"\n[delta.options]\nAWS_ALLOW_HTTP = "true"\n'
        f'AWS_ACCESS_KEY_ID = "k"\nAWS_SECRET_ACCESS_KEY = "{PLANTED["lake"]}"\nAWS_REGION = "r"\n'
        f'AWS_ENDPOINT_URL = "http://u:{PLANTED["endpoint"]}@127.0.0.1:1"\n'
    )
    reading = ("--config", str(failing), "read", "--pipeline", "x", "--kind", "delta")
    assert "127.0.0.1:1" in ask("failing command", *reading)
    assert "Traceback" in ask("traceback", "--debug", *reading)
    failing.unlink()
