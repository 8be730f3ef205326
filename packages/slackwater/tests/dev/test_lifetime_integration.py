"""Whole stacks: they end with their process, or outlive it when they should."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from slackwater.dev import DevStack, DevStackSettings, PostgresServer, RunState, down, status, up
from slackwater.dev.stack import read_state
from slackwater.protocol import ConfigError, UnavailableError

pytestmark = pytest.mark.integration

EMBEDDED = """
import signal, sys
from pathlib import Path
from slackwater.dev import DevStack, DevStackSettings
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored below a shell's "&"
with DevStack(DevStackSettings(folder=Path(sys.argv[1]), keep_data=False)):
    print("ready", flush=True)
    signal.pause()
"""
UP = """
import sys
from pathlib import Path
from slackwater.dev import DevStackSettings, up
up(DevStackSettings(folder=Path(sys.argv[1]), kafka=False, connect=False))
"""


def small(folder: Path) -> DevStackSettings:
    return DevStackSettings(folder=folder, kafka=False, connect=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account")
def test_as_root_a_folder_that_postgres_cannot_reach_is_replaced_and_remembered(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    server = PostgresServer(closed)
    server.start()
    elsewhere = server.data_folder()
    server.stop()
    assert not elsewhere.is_relative_to(closed)
    again = PostgresServer(closed)
    assert again.data_folder() == elsewhere
    again.delete_data()
    assert not elsewhere.exists()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal of Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stack_leaves_no_process_behind(
    open_folder: Path, wait_until: Callable[..., None], number: signal.Signals
) -> None:
    argv = [sys.executable, "-c", EMBEDDED, str(open_folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        state = read_state(open_folder)
        assert state is not None
        processes = [server.process for server in state.servers if server.process is not None]
        assert len(processes) == 3
        postmaster = next(p for p in processes if p.command[0].endswith("/postgres")).find()
        assert postmaster is not None
        backends = postmaster.children(recursive=True)
        assert backends
        parent.send_signal(number)
    wait_until(lambda: not any(process.is_alive for process in processes))
    wait_until(lambda: not any(backend.is_running() for backend in backends))


@pytest.mark.full
def test_servers_brought_up_outlive_the_process_and_go_down(open_folder: Path) -> None:
    subprocess.run([sys.executable, "-c", UP, str(open_folder)], check=True)
    try:
        first = status(open_folder)
        assert first is not None
        assert first.is_running
        again = up(replace(small(open_folder), database="shop"))
        assert [server.pid for server in again.servers] == [server.pid for server in first.servers]
        assert again.database == "shop"
        database = again.server("postgres")
        assert database is not None
        with psycopg.connect(database.address) as connection:
            assert connection.info.dbname == "shop"
    finally:
        stopped = down(open_folder)
    assert stopped is not None
    assert {server.state for server in stopped.servers} == {RunState.STOPPED}
    state = read_state(open_folder)
    assert state is not None
    assert all(server.process is None for server in state.servers)


def test_a_stack_that_went_down_comes_up_with_its_data_and_ports(open_folder: Path) -> None:
    first = DevStack(small(open_folder))
    with first, psycopg.connect(first.postgres.dsn()) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    second = DevStack(small(open_folder))
    with second:
        with psycopg.connect(second.postgres.dsn()) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        assert second.postgres.port == first.postgres.port
        assert second.redis.port == first.redis.port


def test_a_connector_for_a_table_that_does_not_exist_is_refused_and_the_servers_stay_up(
    dev_stack: Callable[..., DevStack],
) -> None:
    stack = dev_stack(redis=False)
    with pytest.raises(ConfigError, match=r"public\.missing.*does not exist"):
        stack.start_connector(["public.missing"])
    assert stack.postgres.is_running
    assert stack.kafka.is_running


def test_a_server_that_cannot_start_says_why_with_its_last_lines(open_folder: Path) -> None:
    server = PostgresServer(open_folder, start_timeout=timedelta(seconds=300))
    server.start()
    server.stop()
    (server.data_folder() / "postgresql.conf").write_text("nonsense = 1\n")
    with pytest.raises(UnavailableError, match="nonsense") as caught:
        server.start()
    assert caught.value.problem.startswith("postgres did not start")
    assert not server.is_running
