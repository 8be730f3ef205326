"""The state file is read back as written, or refused."""

import os
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slackwater.dev import RunState, down, status
from slackwater.dev.kafka import parse_state
from slackwater.dev.processes import ManagedProcess, identify, with_tail
from slackwater.dev.server import ServerStatus
from slackwater.dev.stack import FILE_NAME, StackStatus, read_state, write_state
from slackwater.protocol import ConfigError, SlackwaterError, StateError, UnavailableError


def state_of(folder: Path, process: ManagedProcess | None) -> StackStatus:
    record = ServerStatus(
        name="redis",
        address="redis://127.0.0.1:1/0",
        version="7.0.15",
        log=folder / "logs" / "redis.log",
        ports={"port": 1},
        process=process,
    )
    return StackStatus(folder=folder, prefix="inv", database="inventory", servers=(record,))


def test_a_state_is_read_back_as_written(tmp_path: Path) -> None:
    process = ManagedProcess(pid=7, created_at=datetime(2026, 1, 2, 3, 4, 5, 60, UTC), command=("a", "b"))
    for state in (state_of(tmp_path, process), state_of(tmp_path, None)):
        write_state(state)
        assert read_state(tmp_path) == state


def test_a_folder_without_a_stack_has_no_status(tmp_path: Path) -> None:
    assert status(tmp_path) is None
    assert down(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"NaN", b'"\xff"', b"[" * 50_000, b'{"format": 99}', b'{"format": 1, "prefix": "x"}'],
)
def test_a_damaged_or_newer_state_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StateError, match=FILE_NAME):
        read_state(tmp_path)


def test_a_process_that_ended_unasked_is_gone_not_stopped(tmp_path: Path) -> None:
    own = identify(os.getpid())
    write_state(state_of(tmp_path, replace(own, created_at=own.created_at - timedelta(days=1))))
    found = status(tmp_path)
    assert found is not None
    assert found.servers[0].state is RunState.GONE
    assert found.servers[0].pid is None
    assert not found.is_running


def test_down_leaves_a_foreigner_with_the_number_of_ours_alone(tmp_path: Path) -> None:
    own = identify(os.getpid())  # if down confused it, this very process would end
    write_state(state_of(tmp_path, replace(own, command=("/usr/bin/redis-server", "--port", "1"))))
    found = down(tmp_path)
    assert found is not None
    assert found.servers[0].state is RunState.STOPPED
    assert own.is_alive


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("setting prefix is ''", "expected letters"),
        StateError("redis already running in /f", "use another folder"),
        UnavailableError("kafka did not start: it ended", with_tail("log: /l", "its\nlast lines")),
    ],
)
def test_errors_survive_pickling(error: SlackwaterError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_running_connector_is_recognised() -> None:
    state = parse_state(b'{"connector": {"state": "RUNNING"}, "tasks": [{"id": 0, "state": "RUNNING"}]}')
    assert state.is_running


@pytest.mark.parametrize(
    "body",
    [
        b'{"connector": {"state": "RUNNING"}, "tasks": []}',
        b'{"connector": {"state": "RUNNING"}, "tasks": [{"state": "FAILED", "trace": "boom\\nat x"}]}',
        b'{"connector": {"state": "UNASSIGNED"}, "tasks": [{"state": "RUNNING"}]}',
    ],
)
def test_a_connector_without_running_task_is_not_running(body: bytes) -> None:
    assert not parse_state(body).is_running
