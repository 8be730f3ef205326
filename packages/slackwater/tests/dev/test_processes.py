"""Processes are recognised, ended with their children, and never confused with others."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from slackwater.dev import Lifetime
from slackwater.dev.processes import (
    Launch,
    ManagedProcess,
    identify,
    launch,
)

Start = Callable[[str], ManagedProcess]
SOON = timedelta(seconds=20)


@pytest.fixture
def start(tmp_path: Path, wait_until: Callable[..., None]) -> Iterator[Start]:
    """Starts shell scripts that print ``ready``; kills what is left of them."""
    started: list[ManagedProcess] = []

    def start_script(script: str) -> ManagedProcess:
        log = tmp_path / f"{len(started)}.log"
        process = launch(Launch(argv=("/bin/sh", "-c", script), cwd=tmp_path), log, Lifetime.EMBEDDED)
        started.append(process)
        wait_until(lambda: "ready" in log.read_text())
        started[-1] = identify(process.pid)
        return started[-1]

    yield start_script
    for process in started:
        process.kill()


def test_a_process_is_found_by_its_identity(start: Start) -> None:
    process = start("echo ready; exec sleep 600")
    assert process.find() is not None
    assert process.is_alive


def test_a_reused_number_is_not_our_process() -> None:
    own = identify(os.getpid())
    assert own.is_alive
    assert replace(own, created_at=own.created_at - timedelta(hours=1)).find() is None
    assert replace(own, command=("/usr/bin/redis-server",)).find() is None


def test_no_operation_touches_a_process_of_another_identity(start: Start) -> None:
    foreigner = start("echo ready; exec sleep 600")
    mistaken = replace(foreigner, command=("/usr/bin/postgres",))
    mistaken.pause()
    mistaken.kill()
    assert mistaken.stop(signal.SIGTERM, SOON) is False
    assert foreigner.is_alive
    assert not foreigner.is_paused


def test_a_process_that_obeys_ends_in_order(start: Start) -> None:
    process = start("echo ready; exec sleep 600")
    assert process.stop(signal.SIGTERM, SOON) is True
    assert not process.is_alive
    assert not psutil.pid_exists(process.pid)


def test_a_process_that_does_not_obey_is_killed(start: Start) -> None:
    process = start("trap '' TERM; echo ready; while :; do sleep 600; done")
    assert process.stop(signal.SIGTERM, timedelta(milliseconds=50)) is False
    assert not process.is_alive


def test_children_are_killed_too(start: Start, wait_until: Callable[..., None]) -> None:
    process = start("sleep 600 & echo ready; wait")
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_paused_process_can_be_resumed_and_stopped(start: Start, wait_until: Callable[..., None]) -> None:
    process = start("echo ready; exec sleep 600")
    process.pause()
    wait_until(lambda: process.is_paused)
    assert process.is_alive
    process.resume()
    wait_until(lambda: not process.is_paused)
    process.pause()
    assert process.stop(signal.SIGTERM, SOON) is True


def test_a_process_that_ended_by_itself_is_not_alive(start: Start, wait_until: Callable[..., None]) -> None:
    process = start("echo ready; read line; exec sleep 600")
    process.kill()
    assert not process.is_alive
    assert process.stop(signal.SIGTERM, SOON) is False


def test_a_program_that_does_not_exist_says_so_in_the_log(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    log = tmp_path / "logs" / "x.log"
    process = launch(Launch(argv=("/no/such/program",), cwd=tmp_path), log, Lifetime.EMBEDDED)
    wait_until(lambda: not process.is_alive)
    assert "No such file or directory" in log.read_text()


CHILD = """
import signal, sys
from pathlib import Path
from slackwater.dev.processes import Launch, Lifetime, launch
import threading
folder = Path(sys.argv[1])
order = Launch(argv=("/bin/sh", "-c", "echo ready; exec sleep 600"), cwd=folder)
started = []
thread = threading.Thread(target=lambda: started.append(launch(order, folder / "log", Lifetime[sys.argv[2]])))
thread.start()
thread.join()  # the thread that asked is gone: only the process counts
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored below a shell's "&"
print(started[0].pid, flush=True)
signal.pause()
"""


def run_parent(folder: Path, lifetime: str) -> tuple["subprocess.Popen[str]", ManagedProcess]:
    argv = [sys.executable, "-c", CHILD, str(folder), lifetime]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, identify(int(parent.stdout.readline()))


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal of Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_embedded_process_dies_with_its_parent(
    tmp_path: Path, wait_until: Callable[..., None], number: signal.Signals
) -> None:
    parent, child = run_parent(tmp_path, "EMBEDDED")
    log = tmp_path / "log"
    wait_until(lambda: "ready" in log.read_text())
    child = identify(child.pid)
    with parent:
        assert child.is_alive
        parent.send_signal(number)
    wait_until(lambda: not child.is_alive)


def test_a_detached_process_outlives_its_parent(tmp_path: Path, wait_until: Callable[..., None]) -> None:
    parent, child = run_parent(tmp_path, "DETACHED")
    wait_until(lambda: "ready" in (tmp_path / "log").read_text())
    survivor = identify(child.pid)
    try:
        with parent:
            parent.kill()
        assert survivor.is_alive
    finally:
        survivor.kill()
