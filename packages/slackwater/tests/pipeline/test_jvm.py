"""Each way in which Spark's JVM can end leaves a reason; see also ``test_run.py`` for real ones."""

import logging
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from slackwater.pipeline import RunSettings, session
from slackwater.pipeline.jvm import end_jvm, explain_exit, explain_jvm_end, logged_output
from slackwater.pipeline.session import starting_spark
from slackwater.protocol import NO_SERVERS, StateError, UnavailableError


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (1, "exit code 1"),
        (-9, "exit code -9, SIGKILL: killed, possibly by the kernel because memory ran out"),
        (137, "exit code 137, SIGKILL: killed, possibly by the kernel because memory ran out"),
        (-11, "exit code -11, SIGSEGV"),
        (143, "exit code 143, SIGTERM"),
        (128, "exit code 128"),
        (255, "exit code 255"),
    ],
)
def test_an_exit_code_is_explained(code: int, words: str) -> None:
    assert explain_exit(code) == words


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark home whose launcher is yet to be written."""
    script = tmp_path / "home" / "bin" / "spark-submit"
    script.parent.mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "home"))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "MALLOC_ARENA_MAX"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # the session sets them for good
    monkeypatch.setattr(SparkContext, "_gateway", None)
    return script


def settings_of(java: Path) -> RunSettings:
    return RunSettings(servers=NO_SERVERS, checkpoint=str(java.parent), spark_log=java.parent / "spark.log")


def start(java: Path, script: str) -> str:
    """Why the session does not start."""
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    settings = settings_of(java)
    with (
        pytest.raises(UnavailableError) as caught,
        starting_spark("p", settings) as started,
    ):
        started()
    return str(caught.value)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 1", "(exit code 1)"),
        ("exit 0", "(exit code 0)"),
        ("kill -9 $$", "SIGKILL: killed, possibly by the kernel because memory ran out)"),
        ("kill -TERM $$", "(exit code -15, SIGTERM)"),
    ],
)
def test_a_jvm_that_ends_before_it_answers_is_an_error_with_its_exit_code(
    java: Path, script: str, words: str
) -> None:
    """By itself PySpark waits for ever after exit code 0, and names no exit code."""
    reason = start(java, script)
    assert "Java ended before it answered" in reason
    assert words in reason
    assert "a Java runtime (17 or newer) must be on PATH" in reason


def test_what_fails_beside_a_start_is_not_hidden_by_it(java: Path) -> None:
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    settings = settings_of(java)
    with (
        pytest.raises(StateError, match="the name is taken"),
        starting_spark("p", settings),
    ):
        raise StateError("the name is taken")


def test_what_fails_beside_a_start_does_not_wait_for_it(java: Path) -> None:
    java.write_text(f"#!/bin/sh\necho $$ > {java}.new; mv {java}.new {java}.pid; exec sleep 1000\n")
    java.chmod(0o755)

    def fail_when_it_has_begun() -> None:
        deadline = monotonic() + 60
        while not Path(f"{java}.pid").exists() and monotonic() < deadline:
            threading.Event().wait(0.01)
        raise StateError("the name is taken")

    with (
        pytest.raises(StateError, match="the name is taken"),
        starting_spark("p", settings_of(java)),
    ):
        fail_when_it_has_begun()
    assert_ended(int(Path(f"{java}.pid").read_text()))


def test_a_run_that_is_stopped_does_not_wait_for_java(java: Path) -> None:
    java.write_text("#!/bin/sh\nexec sleep 60\n")  # then it ends with exit code 0, and the test fails
    java.chmod(0o755)
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    with (
        pytest.raises(UnavailableError, match="the run was stopped in the meantime"),
        starting_spark("p", settings_of(java), stop=stop) as started,
    ):
        started()


def test_a_run_that_is_stopped_does_not_wait_for_spark_either(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    jvm = subprocess.Popen(["sleep", "60"])

    class Connecting:
        _gateway = None

        def __init__(self, **_: object) -> None:
            stop.set()
            jvm.wait()
            raise OSError("the connection is lost")

    monkeypatch.setattr(session, "launch_gateway", lambda *_: SimpleNamespace(proc=jvm))
    monkeypatch.setattr(session, "_conf_of_jvm", lambda _: {})
    monkeypatch.setattr(session, "SparkContext", Connecting)
    with (
        pytest.raises(UnavailableError, match="the connection is lost"),
        starting_spark("p", settings_of(java), stop=stop) as started,
    ):
        started()
    assert jvm.returncode == -signal.SIGKILL, "the stopped run waited until the JVM ended by itself"


def test_a_jvm_that_never_answers_is_ended(
    java: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("slackwater.pipeline.jvm._LONGEST_START", timedelta(seconds=1))
    monkeypatch.setattr("slackwater.pipeline.jvm._REPORT_INTERVAL", timedelta(seconds=0.3))
    with caplog.at_level(logging.WARNING):
        assert "Java did not answer within" in start(java, f"echo $$ > {java}.pid; exec sleep 1000")
    assert "Java has been starting for" in caplog.text
    assert_ended(int(Path(f"{java}.pid").read_text()))


def printed_by_a_jvm(spark_log: Path) -> str:
    """What Spark's log says after a JVM has printed something."""
    with logged_output(spark_log) as output:
        os.write(output, b"WARNING: Using incubator modules: jdk.x\n\nTraceback of a worker\n")
    for thread in threading.enumerate():
        if thread.name == "jvm-output":
            thread.join()
    return spark_log.read_text()


def test_what_a_jvm_prints_is_in_its_log_without_what_it_always_prints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spark.log").write_text("before\n")
    with caplog.at_level(logging.INFO, "slackwater.jvm"):
        assert printed_by_a_jvm(tmp_path / "spark.log") == "before\nTraceback of a worker\n"
    assert caplog.messages == []


def test_what_a_jvm_prints_is_in_our_log_if_that_asks_for_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spark.log").write_text("before\n")
    with caplog.at_level(logging.DEBUG, "slackwater.jvm"):
        assert printed_by_a_jvm(tmp_path / "spark.log") == "before\n"
    assert caplog.messages == ["Traceback of a worker"]


def assert_ended(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_end_of_a_running_jvm_is_known_from_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    assert explain_jvm_end(is_lost=True) is None
    monkeypatch.setattr("slackwater.pipeline.jvm._END_SECONDS", 0.1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        assert explain_jvm_end() is None
        assert explain_jvm_end(is_lost=True) is None
        process.kill()
        monkeypatch.setattr("slackwater.pipeline.jvm._END_SECONDS", 60.0)
        assert str(explain_jvm_end(is_lost=True)).startswith("Spark's JVM ended (exit code -9, SIGKILL")
        assert explain_jvm_end() == explain_jvm_end(is_lost=True)


def test_a_jvm_that_answers_and_is_of_no_use_is_ended(java: Path) -> None:
    """It says that it listens where nobody does. By itself PySpark forgets such a process."""
    answer = r"printf '\0\0\0\1\0\0\0\6secret' > $_PYSPARK_DRIVER_CONN_INFO_PATH.new"
    move = "mv $_PYSPARK_DRIVER_CONN_INFO_PATH.new $_PYSPARK_DRIVER_CONN_INFO_PATH"
    reason = start(java, f"echo $$ > {java}.pid; {answer}; {move}; exec sleep 1000")
    assert "Connection refused" in reason
    assert_ended(int(Path(f"{java}.pid").read_text()))


@pytest.mark.parametrize(
    ("program", "code"), [("import sys; sys.stdin.read()", 0), ("import time; time.sleep(1000)", -9)]
)
def test_a_jvm_is_ended_in_order_or_killed_when_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, program: str, code: int
) -> None:
    limit = timedelta(minutes=5) if code == 0 else timedelta(seconds=0.2)
    monkeypatch.setattr("slackwater.pipeline.jvm._LONGEST_END", limit)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        gateway = SimpleNamespace(proc=process, shutdown=lambda: None)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        assert end_jvm() == code
        assert SparkContext._gateway is None  # noqa: SLF001 - PySpark's name for it


ORPHAN = """
import os, sys, time
from slackwater.pipeline.jvm import explain_jvm_end
before, parent = explain_jvm_end(), os.getppid()
print("started", flush=True)
while os.getppid() == parent:
    time.sleep(0.01)
print(before, "|", explain_jvm_end(), flush=True)
"""
PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"


@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_driver_notices_that_the_jvm_that_has_started_it_is_gone(is_submitted: bool) -> None:
    """Without a batch there is no connection that would break."""
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    with subprocess.Popen(
        (sys.executable, "-c", PARENT, ORPHAN),
        env={**environment, **({"PYSPARK_GATEWAY_PORT": "1"} if is_submitted else {})},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        parent.kill()
        told = parent.stdout.readline().strip()
    assert told == ("None | the JVM of spark-submit ended" if is_submitted else "None | None")
