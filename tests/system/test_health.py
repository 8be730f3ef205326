"""Whatever stops is named at every place that shows health, and nobody else is.

One stack with a connector, a sidecar, a control plane and a pipeline, in which nobody commits. Each component
is stopped in turn. Seen to fail before sidecars watched connectors: nobody was named at any place.
"""

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from io import BytesIO, StringIO, TextIOWrapper
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from slackwater.cli.main import run
from slackwater.dev import DevStack
from slackwater.protocol import SystemClock
from slackwater_lab.programs import Program, slackwater_command
from slackwater_lab.workloads.workload import repository_pipeline

if TYPE_CHECKING:
    from slackwater_lab.servers.pytest_plugin import DevStackFactory

# In CI: packages/slackwater/tests/control/test_health.py (who is blamed for what), and the
# servers in packages/slackwater/tests/cli/test_operations_integration.py (the control plane says what the
# doctor says).
pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

SOURCE = "inv"
SECONDS = 600.0
NAMED_SECONDS = 90.0
"""Ten are promised, but a busy machine starts the commands slowly. How long they and sidecars wait for silent
servers is tested with clocks of their own (test_doctor.py, test_watch.py)."""
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

PLACES = ("connector check", "page", "status", "delay", "doctor")
CHECKED = frozenset({"connector", "connect", "database", "kafka"})
"""Whom `connector check` asks."""
_IN_WORDS = {
    "Kafka Connect, which runs": "connect",
    "connector ": "connector",
    "no connector": "connector",
    "Kafka Connect": "connect",
    "PostgreSQL": "database",
    "database": "database",
    "Redis": "redis",
    "Kafka": "kafka",
}
"""What an error or a finding in words is about; the first that is in it counts."""


def _said(command: tuple[str, ...]) -> tuple[str, float]:
    """What a command says, and when, whatever its exit code; its log counts only if it says nothing else."""
    out, err = TextIOWrapper(BytesIO(), "utf-8"), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run([*command])
    out.flush()
    out.seek(0)
    return out.read() or err.getvalue(), SystemClock().monotonic()


@dataclass
class Cluster:
    """Everything that can stop."""

    stack: DevStack
    sidecar: Program
    control: Program
    """Has the page, beside a source that nobody reads."""
    pipeline: Program
    start: Callable[[Program], None]
    asking: Executor
    """Runs commands side by side."""
    ever: set[tuple[str, str]] = field(default_factory=set)
    """Who was named where since the newest incident began."""
    evidence: list[str] = field(default_factory=list)
    """Why, for the report of a failure."""

    def judged(self, text: str) -> frozenset[str]:
        if not text.startswith("{"):  # the command itself could not ask anybody
            return self.in_words(text)
        found = json.loads(text)
        if "findings" in found:
            self.evidence += [each["what"] for each in found["findings"]]
            causes = {each["cause"] for each in found["findings"]} - {"waiting"}  # for what comes by itself
            return frozenset(map(CAUSES.__getitem__, causes))
        if "causes" not in found:
            return self.in_words(found["error"])
        self.evidence += [each["evidence"] for each in found["causes"]]
        return frozenset(each["kind"] for each in found["causes"])

    def in_words(self, text: str) -> frozenset[str]:
        self.evidence.append(text)
        return frozenset({next((who for words, who in _IN_WORDS.items() if words in text), text)})

    def checked(self, text: str) -> frozenset[str]:
        """Whom `connector check` finds at fault; what is wrong with the set-up is no matter here."""
        said = text.splitlines()
        wanted = ("state of inv: ", "Kafka Connect has no connector", "error: ")
        faults = [line for line in said if any(text in line for text in wanted)]
        return frozenset[str]().union(*(self.in_words(line.partition(": ")[2]) for line in faults))

    def on_the_page(self) -> frozenset[str]:
        address = re.search(r"control plane: http://([\d.:]+)", self.control.output())
        assert address is not None
        connection = HTTPConnection(address[1], timeout=SECONDS)
        connection.request("GET", "/api/v1/delays")
        text = connection.getresponse().read().decode()
        connection.close()
        return self.judged(text)

    def ask(self, place: str) -> tuple[frozenset[str], float]:
        """Returns who is named at a place, and when the answer came."""
        if place == "page":
            return self.on_the_page(), SystemClock().monotonic()
        is_check = place == "connector check"
        command = ("connector", "check", "--schema", "inventory") if is_check else (place, "--json")
        text, at = self.asking.submit(_said, command).result()
        return self.checked(text) if is_check else self.judged(text), at

    def wait_for(self, names: frozenset[str]) -> None:
        """Waits until every place names exactly these; at no place anybody else may be named meanwhile.

        Each place is asked again and again by itself, so that a slow one does not make another one late.
        """
        began, seconds = SystemClock().monotonic(), NAMED_SECONDS if names else SECONDS
        wanted = dict.fromkeys(PLACES, names) | {"connector check": names & CHECKED}

        def wait_at(place: str) -> float:
            while True:
                found, at = self.ask(place)
                if found == wanted[place]:
                    return round(at - began, 1)
                self.ever.update((place, who) for who in found)
                assert at - began < seconds, (place, found, self.evidence[-20:])
                threading.Event().wait(0.2)

        with ThreadPoolExecutor(len(PLACES)) as waiting:
            after = dict(zip(PLACES, waiting.map(wait_at, PLACES), strict=True))
            for place, (found, _) in zip(PLACES, waiting.map(self.ask, PLACES), strict=True):
                assert found == wanted[place], (place, found, self.evidence[-20:])
        _log.info("%s named after seconds: %s", sorted(names), after)

    def incident(
        self, title: str, name: str, stop: Callable[[], Any], mend: Callable[[], Any] | None = None
    ) -> None:
        """Stops something, waits until it is named, mends it if it can be, and waits until nobody is."""
        _log.info("%s", title)
        self.ever.clear()
        self.evidence.clear()
        stop()
        self.wait_for(frozenset({name}))
        if mend is not None:
            mend()
            self.wait_for(NOBODY)
        assert {who for _, who in self.ever} <= {name}, (self.ever, list(dict.fromkeys(self.evidence)))

    def connect(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body)
        connection = HTTPConnection("127.0.0.1", self.stack.connect.port, timeout=SECONDS)
        connection.request(method, f"/connectors{path}", data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        assert response.status < 400, text
        return json.loads(text) if text else None

    def resume_connector(self) -> None:
        self.connect("PUT", "/inv/resume")

    def drop_slot(self) -> None:
        """Drops it while the connector is stopped: PostgreSQL keeps a slot that is read."""
        self.connect("PUT", "/inv/stop")
        clock, pause = SystemClock(), threading.Event()
        began = clock.monotonic()
        while self.sql("SELECT FROM pg_replication_slots WHERE active"):
            assert clock.monotonic() - began < SECONDS
            pause.wait(0.1)
        self.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        self.resume_connector()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description is not None else []


@pytest.fixture
def cluster(
    dev_stack: "DevStackFactory",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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

    def start(program: Program) -> None:
        program.start(folder=tmp_path, environment=environment)

    programs = {
        "sidecar": slackwater_command("sidecar"),
        "control": slackwater_command("sidecar", "--source", "page", "--control", "127.0.0.1:0"),
        "run": slackwater_command("run", str(folder), "--master", "local[1]"),
    }
    with ExitStack() as stopping:
        started = [Program(name, partial(tuple, line), tmp_path) for name, line in programs.items()]
        sidecar, control, pipeline = started
        for program in started:
            start(program)
            stopping.callback(program.stop)
        asking = stopping.enter_context(ProcessPoolExecutor(4, get_context("spawn")))
        found = Cluster(stack, sidecar, control, pipeline, start, asking)
        clock, pause = SystemClock(), threading.Event()
        began = clock.monotonic()
        while "visible" not in found.pipeline.output():
            for program in started:
                program.check()
            assert clock.monotonic() - began < SECONDS, found.pipeline.last_words()
            pause.wait(0.2)
        yield found


Incident = Callable[[Cluster], tuple[str, Callable[[], Any], Callable[[], Any]]]
"""Who is to be named, what stops it, and what mends it."""


def _deleted(cluster: Cluster) -> tuple[str, Callable[[], Any], Callable[[], Any]]:
    properties = cluster.connect("GET", "/inv/config")
    return (
        "connector",
        lambda: cluster.connect("DELETE", "/inv"),
        lambda: cluster.connect("PUT", "/inv/config", properties),
    )


INCIDENTS: Mapping[str, Incident] = {
    "connector paused": lambda c: ("connector", lambda: c.connect("PUT", "/inv/pause"), c.resume_connector),
    "Kafka hangs": lambda c: ("kafka", c.stack.kafka.pause, c.stack.kafka.resume),
    "PostgreSQL hangs": lambda c: ("database", c.stack.postgres.pause, c.stack.postgres.resume),
    "Redis hangs": lambda c: ("redis", c.stack.redis.pause, c.stack.redis.resume),
    "sidecar hangs": lambda c: ("sidecar", c.sidecar.pause, c.sidecar.resume),
    "run killed": lambda c: ("pipeline", c.pipeline.kill, lambda: c.start(c.pipeline)),
}
"""The most valuable ones."""
MORE: Mapping[str, Incident] = {
    "connector stopped": lambda c: ("connector", lambda: c.connect("PUT", "/inv/stop"), c.resume_connector),
    "connector deleted": _deleted,
    "Kafka Connect hangs": lambda c: ("connect", c.stack.connect.pause, c.stack.connect.resume),
    "PostgreSQL stopped": lambda c: ("database", c.stack.postgres.stop, c.stack.postgres.start),
    "Redis starts over": lambda c: ("redis", c.stack.redis.kill, c.stack.redis.start),
    "sidecar killed": lambda c: ("sidecar", c.sidecar.kill, lambda: c.start(c.sidecar)),
    "run hangs": lambda c: ("pipeline", c.pipeline.pause, c.pipeline.resume),
}


def test_whatever_stops_is_named_everywhere_and_nobody_else_is(cluster: Cluster) -> None:
    cluster.wait_for(NOBODY)
    # The recipe of `slackwater wait`: without the message, nothing would ever be committed behind the LSN.
    (lsn,) = cluster.sql("SELECT pg_current_wal_lsn()::text")[0]
    cluster.sql("SELECT FROM pg_logical_emit_message(true, 'slackwater', '')")
    assert run(["wait", "--pipeline", "orders", "--lsn", lsn, "--timeout", str(SECONDS)]) == 0
    for title, incident in INCIDENTS.items():
        cluster.incident(title, *incident(cluster))


def test_whatever_else_stops_is_named_everywhere_and_nobody_else_is(cluster: Cluster) -> None:
    cluster.wait_for(NOBODY)
    for title, incident in MORE.items():
        cluster.incident(title, *incident(cluster))
    cluster.incident("slot dropped", "connector", cluster.drop_slot)  # only a new snapshot helps
