"""``slackwater preview`` over a real source: every transaction is shown, and nothing is written."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from slackwater.cli import main
from slackwater.dev import DevStack
from slackwater.protocol.keys import cut_log_topic

pytestmark = pytest.mark.integration
SECONDS = 120
TABLE = """
CREATE TABLE invoice (
    id bigint PRIMARY KEY, customer text NOT NULL, amount numeric(12,2) NOT NULL, paid bool NOT NULL
)
"""


def written(stack: DevStack) -> set[str]:
    """All topics but those of the source, its sidecar and the brokers."""
    known = AdminClient({"bootstrap.servers": stack.kafka.bootstrap}).list_topics(timeout=SECONDS)
    own = ("__", "inv.", "slackwater.inv")
    return {name for name in known.topics if not name.startswith(own)}


def wait_for_cuts(stack: DevStack) -> None:
    """Returns when the sidecar has made the topic of its cuts."""
    admin, pause = AdminClient({"bootstrap.servers": stack.kafka.bootstrap}), threading.Event()
    for _ in range(SECONDS * 10):
        if cut_log_topic("inv") in admin.list_topics(timeout=SECONDS).topics:
            return
        pause.wait(0.1)
    pytest.fail("the sidecar has made no topic of cuts")


@pytest.mark.full
def test_a_running_source_is_shown_and_nothing_is_published(
    dev_stack: Callable[..., DevStack], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack, folder = dev_stack(), tmp_path / "revenue"
    assert main.run(["new", str(folder), "--source", "inv"]) == 0
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as database:
        database.execute(TABLE.encode())
        database.execute("INSERT INTO invoice VALUES (1, 'ada', 10.50, false), (2, 'bob', 1, true)")
        stack.start_connector(("public.invoice",))
        stack.wait_until_streaming()
        with database.transaction():
            database.execute("UPDATE invoice SET paid = true WHERE id = 1")
            database.execute("INSERT INTO invoice VALUES (3, 'ada', 2, false)")
        database.execute("DELETE FROM invoice WHERE id = 2")
    before = written(stack)
    servers = ["--bootstrap", stack.kafka.bootstrap]
    sidecar = [sys.executable, "-m", "slackwater", "sidecar", "--source", "inv", *servers]
    follows = subprocess.Popen([*sidecar, "--redis-url", stack.redis.url], cwd=tmp_path)
    try:
        wait_for_cuts(stack)
        capsys.readouterr()
        assert main.run(["preview", str(folder), *servers, "--commits", "3"]) == 0
        lines = capsys.readouterr().out.splitlines()
    finally:
        follows.terminate()
        follows.wait(SECONDS)
    assert lines[0] == "revenue: reading source inv; nothing is published"
    state: dict[str, str] = {}
    for _, key, document in (
        line.removeprefix("  ").split("  ", 2) for line in lines if line.startswith("  revenue  ")
    ):
        state[key] = document
        if document == "deleted":
            del state[key]
    assert state == {'{"customer":"ada"}': '{"customer":"ada","invoices":2,"paid":"10.50","open":"2.00"}'}
    assert written(stack) == before
