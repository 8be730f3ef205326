"""Bounds around what DuckDB does."""

import os
import re
import resource
import subprocess
import sys
import threading

import duckdb
import pytest

from slackwater.sql.limits import RunningStatements, Statement, StatementLimits, bounded

UNSTOPPABLE = """
import logging
from slackwater.sql.limits import StatementLimits, bounded
from slackwater.sql.limits import open_connection
logging.basicConfig()
connection = open_connection()
def endless(value: int) -> int:
    while True:
        pass
connection.create_function("endless", endless)
with bounded(connection, StatementLimits(cpu_seconds=0.1), "slow"):
    connection.execute("SELECT endless(1::BIGINT)").fetchall()
"""
FORKED = """
import os
from slackwater.sql.limits import StatementLimits, bounded
from slackwater.sql.limits import open_connection
with bounded(open_connection(), StatementLimits(), "before"):
    pass
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
connection = open_connection()
try:
    with bounded(connection, StatementLimits(cpu_seconds=0.1), "after"):
        connection.execute("SELECT sum(a.range * b.range) FROM range(3000000) a, range(1000) b").fetchall()
except Exception as error:
    os._exit(3 if type(error).__name__ == "InterruptException" else 4)
os._exit(5)
"""

ENDING = """
import atexit
import sys
import threading
atexit.register(lambda: print(threading.active_count(), "threads"))
from slackwater.sql.limits import RunningStatements, StatementLimits, bounded
from slackwater.sql.limits import open_connection
if sys.argv[1] == "watched":
    RunningStatements.end = lambda self: None
connection = open_connection()
with bounded(connection, StatementLimits(), "one"):
    connection.execute("SELECT 1").fetchall()
"""


class Silent:
    """A connection that is never interrupted."""

    def interrupt(self) -> None:
        raise AssertionError


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def test_the_process_has_its_own_limit_again_when_the_last_statement_ends() -> None:
    before = soft_limit()
    with bounded(Silent(), StatementLimits(memory_mib=100), "small"):
        small = soft_limit()
        with bounded(Silent(), StatementLimits(memory_mib=1000), "large"):
            large = soft_limit()
        assert soft_limit() == small
    assert before == soft_limit()
    assert 100 * 3 * 2**20 < small < large


def test_a_limit_of_the_process_is_never_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    own = 2**40
    resource.setrlimit(resource.RLIMIT_DATA, (own, hard))
    try:
        with bounded(Silent(), StatementLimits(memory_mib=2**22), "large"):
            assert soft_limit() == own
        assert soft_limit() == own
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def test_statements_of_several_threads_end_in_any_order() -> None:
    before, entered, leave = soft_limit(), threading.Event(), threading.Event()

    def other() -> None:
        with bounded(Silent(), StatementLimits(memory_mib=100), "other"):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with bounded(Silent(), StatementLimits(memory_mib=100), "first"):
        thread.start()
        entered.wait()
    assert soft_limit() != before
    leave.set()
    thread.join()
    assert soft_limit() == before


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (duckdb.InterruptException("x"), "more than 7 s of CPU time"),
        (duckdb.OutOfMemoryException("no room\nat all"), r"3 MiB of run\.statement_memory \(no room\)"),
        (MemoryError(), r"3 MiB of run\.statement_memory \(out of memory\)"),
    ],
)
def test_a_met_limit_is_told_with_its_setting(error: Exception, said: str) -> None:
    problem = StatementLimits(memory_mib=3, cpu_seconds=7).problem(error)
    assert problem is not None
    assert re.search(said, problem)


def test_other_errors_are_no_limits() -> None:
    assert StatementLimits().problem(duckdb.ConversionException("x")) is None


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)


@pytest.mark.full
def test_what_cannot_be_interrupted_ends_the_process_and_names_the_view() -> None:
    found = ended(UNSTOPPABLE)
    assert found.returncode == 70
    assert "view slow: a function took more than 0.1 s" in found.stderr


def test_a_forked_process_bounds_its_own_statements() -> None:
    assert ended(FORKED).returncode == 3


def test_a_statement_is_interrupted_before_it_can_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it has computed before anybody looked."""
    watched = RunningStatements()
    interrupted: list[float] = []

    class Listening:
        def interrupt(self) -> None:
            interrupted.append(1)

    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail(f"the process ended with {code}"))
    statement = Statement(Listening(), until=1e6, seconds=0.1, name="view")
    watched.enter(statement, growth=2**40)
    for now in (0.9e6, 2e6, 2e6 + 4.9):
        watched.interrupt_overdue(now)
    assert len(interrupted) == 2
    monkeypatch.setattr(os, "_exit", interrupted.append)
    watched.interrupt_overdue(2e6 + 5.1)
    assert interrupted[2] == 70
    watched.leave(statement)


@pytest.mark.parametrize("thread", ["ended", "watched"])
def test_no_thread_keeps_objects_alive_while_the_interpreter_ends(thread: str) -> None:
    """DuckDB's binding may report each of them, as a leak."""
    ended = subprocess.run([sys.executable, "-c", ENDING, thread], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert ended.stdout == ("2 threads\n" if thread == "watched" else "1 threads\n")
