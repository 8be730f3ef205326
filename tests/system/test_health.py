"""Whatever stops is named at every place that shows health, and nobody else is.

One stack with a connector, a sidecar with its control plane and a pipeline, in which nobody commits. The
connector and Kafka Connect are stopped in turn. Seen to fail before sidecars watched connectors: nobody was
named at any place.
"""

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from slackwater.main import run
from slackwater_devstack import DevStack
from slackwater_protocol import SystemClock
from slackwater_testing.programs import Program, slackwater_command
from slackwater_testing.workloads.workload import repository_pipeline

if TYPE_CHECKING:
    from slackwater_devstack.pytest_plugin import DevStackFactory

pytestmark = [pytest.mark.system, pytest.mark.spark]

SOURCE = "inv"
SECONDS = 600.0
_log = logging.getLogger(__name__)
NOBODY = frozenset[str]()
CAUSES = {
    "no_sidecar": "sidecar",
    "connector_down": "connector",
    "connect_away": "connect",
    "database_away": "database",
    "redis_away": "redis",
    "pipeline_vanished": "pipeline",
    "pipeline_failed": "pipeline",
    "kafka_away": "kafka",
}
"""What the doctor says, in the words of the others."""

Asked = Mapping[str, frozenset[str]]
"""Who is named, by place."""


@dataclass
class Cluster:
    """Everything that can stop."""

    stack: DevStack
    sidecar: Program
    pipeline: Program
    capsys: pytest.CaptureFixture[str]
    ever: set[str] = field(default_factory=set)
    """Who was named since the newest incident began."""
    evidence: list[str] = field(default_factory=list)
    """Why, for the report of a failure."""

    def said(self, *command: str) -> str:
        """What a command says, whatever its exit code."""
        self.capsys.readouterr()
        run([*command])
        shown = self.capsys.readouterr()
        return shown.out or shown.err

    def named(self, *command: str) -> frozenset[str]:
        text = self.said(*command, "--json")
        if not text.startswith("{"):  # the command itself could not ask anybody
            return frozenset({"redis" if "edis" in text else "kafka"})
        found = json.loads(text)
        if "findings" in found:
            return frozenset(CAUSES[each["cause"]] for each in found["findings"])
        self.evidence += [each["evidence"] for each in found["culprits"]]
        return frozenset(each["kind"] for each in found["culprits"])

    def on_the_page(self) -> frozenset[str]:
        address = re.search(r"control plane: http://([\d.:]+)", self.sidecar.output())
        assert address is not None
        connection = HTTPConnection(address[1], timeout=SECONDS)
        connection.request("GET", "/api/v1/delays")
        found = json.loads(connection.getresponse().read())
        connection.close()
        self.evidence += [each["evidence"] for each in found["culprits"]]
        return frozenset(each["kind"] for each in found["culprits"])

    def ask(self, *, has_page: bool = True) -> Asked:
        found = {name: self.named(name) for name in ("status", "delay", "doctor")}
        return found | ({"page": self.on_the_page()} if has_page else {})

    def wait_for(self, names: frozenset[str], *, has_page: bool = True) -> None:
        """Waits until every place names exactly these; at no place anybody else may be named meanwhile."""
        clock, pause = SystemClock(), threading.Event()
        began = clock.monotonic()
        while set((asked := self.ask(has_page=has_page)).values()) != {names}:
            self.ever.update(*asked.values())
            assert clock.monotonic() - began < SECONDS, asked
            pause.wait(0.2)
        _log.info("%s named everywhere after %.1f s", sorted(names), clock.monotonic() - began)

    def incident(self, name: str, stop: Callable[[], Any], mend: Callable[[], Any], **how: bool) -> None:
        """Stops something, waits until it is named, mends it, and waits until nobody is."""
        self.ever.clear()
        self.evidence.clear()
        stop()
        self.wait_for(frozenset({name}), **how)
        assert self.ever <= {name}, self.evidence
        mend()
        self.wait_for(NOBODY)
        assert self.ever <= {name}, self.evidence

    def connect(self, method: str, path: str, body: object = None) -> None:
        data = None if body is None else json.dumps(body)
        connection = HTTPConnection("127.0.0.1", self.stack.connect.port, timeout=SECONDS)
        connection.request(method, f"/connectors{path}", data, {"Content-Type": "application/json"})
        assert connection.getresponse().status < 400
        connection.close()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description is not None else []


@pytest.fixture
def cluster(
    dev_stack: "DevStackFactory",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Cluster]:
    stack = dev_stack()
    folder = repository_pipeline("orders")
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute(b"CREATE SCHEMA inventory")
        connection.execute((folder / "schema.sql").read_bytes())
        connection.execute(b"INSERT INTO inventory.orders VALUES (1, 'a', 'new', 0, 0, now())")
    stack.start_connector(("inventory.orders", "inventory.order_lines"))
    environment = {
        "SLACKWATER_SOURCE": SOURCE,
        "SLACKWATER_BOOTSTRAP": stack.kafka.bootstrap,
        "SLACKWATER_REDIS_URL": stack.redis.url,
        "SLACKWATER_CONNECT_URL": stack.connect.address,
        "SLACKWATER_POSTGRES_URL": stack.postgres.dsn(),
        "SLACKWATER_CONTROL_LISTEN": "127.0.0.1:0",
        "SLACKWATER_RUN_CHECKPOINT": str(tmp_path / "checkpoint"),
        "SLACKWATER_RUN_ALLOW_MISSING_TABLES": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    sidecar = Program("sidecar", lambda: slackwater_command("sidecar"), tmp_path)
    arguments = slackwater_command("run", str(folder), "--master", "local[1]")
    pipeline = Program("run", lambda: arguments, tmp_path)
    with ExitStack() as stopping:
        for program in (sidecar, pipeline):
            program.start(folder=tmp_path, environment=environment)
            stopping.callback(program.stop)
        found = Cluster(stack, sidecar, pipeline, capsys)
        clock, pause = SystemClock(), threading.Event()
        began = clock.monotonic()
        while "batch 0" not in pipeline.output() and "visible" not in pipeline.output():
            pipeline.check()
            assert clock.monotonic() - began < SECONDS, pipeline.last_words()
            pause.wait(0.2)
        yield found


def test_whatever_stops_is_named_everywhere_and_nobody_else_is(cluster: Cluster) -> None:
    stack = cluster.stack
    cluster.wait_for(NOBODY)
    # The recipe of `slackwater wait`: without the message, nothing would ever be committed behind the LSN.
    (lsn,) = cluster.sql("SELECT pg_current_wal_lsn()::text")[0]
    cluster.sql("SELECT FROM pg_logical_emit_message(true, 'slackwater', '')")
    assert run(["wait", "--pipeline", "orders", "--lsn", lsn, "--timeout", str(SECONDS)]) == 0

    cluster.incident(
        "connector",
        lambda: cluster.connect("PUT", "/inv/pause"),
        lambda: cluster.connect("PUT", "/inv/resume"),
    )

    cluster.incident(
        "connector",
        lambda: cluster.connect("PUT", "/inv/stop"),
        lambda: cluster.connect("PUT", "/inv/resume"),
    )
    cluster.incident("connect", stack.connect.pause, stack.connect.resume)
