"""SIGTERM ends whatever runs for long, whatever it waits for: a server that answers never, or no more.

Seen to fail: a run whose brokers did not answer kept asking for their topics, and ended with an error; one
whose brokers or object store answered no more had not ended after two minutes.
"""

import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slackwater.protocol import SystemClock
from slackwater_lab.programs import Program, slackwater_command
from slackwater_lab.topics import make_topics
from slackwater_lab.workloads.workload import repository_pipeline

if TYPE_CHECKING:
    from slackwater.dev.kafka import KafkaBroker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

SECONDS = 120.0
PATIENCE = 60.0
"""Ten seconds are promised; what only ended when a library gave up took longer than this."""
ENDED_IN_ORDER = (0, -signal.SIGTERM)
ORDERS = str(repository_pipeline("orders"))
RUN = ("--checkpoint", "state", "--master", "local[1]", "--allow-missing-tables")
AWAY = "127.0.0.1:1"


class Mute:
    """A server that takes connections and says nothing."""

    def __init__(self, listener: socket.socket) -> None:
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self.was_asked = threading.Event()
        self._listener = listener
        self._connections: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                self._connections.append(self._listener.accept()[0])
            except OSError:
                return
            self.was_asked.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for connection in self._connections:
            connection.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, closing(Mute(listener)) as server:
        yield server


@contextmanager
def started(folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Program]:
    program = Program("program", lambda: slackwater_command(*command), folder)
    program.start(folder=folder, environment={"SLACKWATER_SOURCE": "inv", **environment})
    try:
        yield program
    finally:
        program.kill()


def wait_until_it_says(program: Program, text: str) -> None:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + SECONDS
    while text not in program.output():
        program.check()
        assert clock.monotonic() < deadline, program.output()
        pause.wait(0.05)


BOOTSTRAP, REDIS = "SLACKWATER_BOOTSTRAP", "SLACKWATER_REDIS_URL"
SOURCE_DATABASE, OUTPUT_DATABASE = "SLACKWATER_POSTGRES_URL", "SLACKWATER_POSTGRES_OUTPUT_URL"
RUN_ORDERS = ("run", ORDERS, *RUN)
RUN_TABLES = ("run", str(repository_pipeline("shop_tables")), *RUN)
AUDIT = ("messaging", "audit", "--topic", "stopping", "--query", "SELECT 1, now()")
NEVER_ANSWERS = [
    (BOOTSTRAP, RUN_ORDERS),
    (BOOTSTRAP, ("sidecar",)),
    (REDIS, ("sidecar",)),
    (BOOTSTRAP, ("tail", "orders")),
    # The same by another command, or by the same one for another server:
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in (
            (REDIS, RUN_ORDERS),
            (SOURCE_DATABASE, RUN_ORDERS),
            (OUTPUT_DATABASE, RUN_TABLES),
            (REDIS, ("sidecar", "--control", "127.0.0.1:0")),
            (BOOTSTRAP, ("preview", ORDERS)),
            (BOOTSTRAP, ("wait", ORDERS, "--lsn", "0/1", "--timeout", "600")),
            (BOOTSTRAP, ("certify", ORDERS, "--follow", "600")),
            (SOURCE_DATABASE, AUDIT),
        )
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("server", "command"), NEVER_ANSWERS, ids=lambda value: str(value)[:40])
def test_it_ends_while_a_server_does_not_answer(
    kafka_broker: "KafkaBroker", mute: Mute, tmp_path: Path, server: str, command: Sequence[str]
) -> None:
    url = {
        REDIS: "redis://{}",
        SOURCE_DATABASE: "postgresql://a@{}/b",
        OUTPUT_DATABASE: "postgresql://a@{}/b",
    }
    environment = {
        BOOTSTRAP: kafka_broker.bootstrap,
        REDIS: f"redis://{AWAY}",
        server: url.get(server, "{}").format(mute.address),
    }
    with started(tmp_path, command, environment) as program:
        assert mute.was_asked.wait(SECONDS), program.output()
        assert program.terminate(PATIENCE) in ENDED_IN_ORDER, program.output()


@pytest.mark.full
def test_a_run_ends_while_the_store_of_its_checkpoint_does_not_answer(
    kafka_broker: "KafkaBroker", mute: Mute, tmp_path: Path
) -> None:
    options = {
        "endpoint": f"http://{mute.address}",
        "endpoint.region": "a",
        "access.key": "a",
        "secret.key": "b",
    }
    lines = [f'"spark.hadoop.fs.s3a.{name}" = "{value}"' for name, value in options.items()]
    (tmp_path / "slackwater.toml").write_text("\n".join(["[run.spark_conf]", *lines]))
    environment = {BOOTSTRAP: kafka_broker.bootstrap, REDIS: f"redis://{AWAY}"}
    command = [*RUN_ORDERS[:2], "--checkpoint", "s3a://bucket/state", *RUN[2:]]
    with started(tmp_path, command, environment) as program:
        assert mute.was_asked.wait(SECONDS), program.output()
        assert program.terminate(PATIENCE) in ENDED_IN_ORDER, program.output()


ANSWERS_NO_MORE = [
    (RUN_ORDERS, "orders: waiting"),
    (("sidecar",), "no topic found"),
    (("tail", "stopping"), "waiting for the next commit"),
    # The same by other commands:
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in (
            (("sidecar", "--control", "127.0.0.1:0"), "no topic found"),
            (("preview", ORDERS), "nothing is published"),
            (("wait", ORDERS, "--lsn", "0/1", "--timeout", "600"), ""),
        )
    ),
]


@pytest.fixture
def broker(tmp_path: Path) -> "Iterator[KafkaBroker]":
    """A broker of the test's own: clients of a shared one would wait for it while it is frozen."""
    from slackwater.dev import KafkaBroker

    server = KafkaBroker(tmp_path / "kafka")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.full
@pytest.mark.parametrize(("command", "says"), ANSWERS_NO_MORE, ids=lambda value: str(value)[:40])
def test_it_ends_while_kafka_answers_no_more(
    broker: "KafkaBroker", tmp_path: Path, command: Sequence[str], says: str
) -> None:
    make_topics(broker.bootstrap, ["stopping"], 1)
    environment = {BOOTSTRAP: broker.bootstrap, REDIS: f"redis://{AWAY}"}
    with started(tmp_path, command, environment) as program:
        wait_until_it_says(program, says)
        broker.pause()
        try:
            assert program.terminate(PATIENCE) in ENDED_IN_ORDER, program.output()
        finally:
            broker.resume()
