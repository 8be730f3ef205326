"""Spark's JVM as a child process: watches its start, keeps its output, and explains its end."""

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyspark.java_gateway
from pyspark import SparkContext

from slackwater.protocol import SystemClock, UnavailableError

_LONGEST_START = timedelta(minutes=10)
_LONGEST_END = timedelta(minutes=10)
_REPORT_INTERVAL = timedelta(seconds=20)
_END_SECONDS = 20.0
"""The time within which the exit code of a JVM is known after its connection broke."""
_FROM_SIGNAL = 128
"""Like a shell, a JVM that ends in an orderly way after a signal adds this to the signal's number."""

_PARENT = os.getppid()
"""The JVM, if ``spark-submit`` has started this process. After the end of the JVM, this process has another
parent."""

_SPARK_NOISE = b"WARNING: Using incubator modules"
"""The beginning of a line that Spark itself prints at every start."""

_log = logging.getLogger(__name__)
_output_log = logging.getLogger("slackwater.jvm")


def is_submitted(environment: Mapping[str, str]) -> bool:
    """Returns whether ``spark-submit`` has started this process, and with it the JVM."""
    return "PYSPARK_GATEWAY_PORT" in environment


def shows_output() -> bool:
    """Returns whether Spark's log, and the output of its processes, is to be in this process's own log."""
    return _output_log.isEnabledFor(logging.DEBUG)


@contextmanager
def logged_output(spark_log: Path) -> Iterator[int]:
    """Yields the write end of a pipe to which a JVM, and the Python workers that it starts, can print.

    A separate thread appends the lines to Spark's log, or to our own log if :func:`shows_output`, until the
    last writer has closed the pipe. Our end is closed with the block.

    Args:
        spark_log: The file of Spark's log.
    """
    reader, writer = os.pipe()
    arguments = (reader, spark_log)
    threading.Thread(target=_log_lines, args=arguments, name="jvm-output", daemon=True).start()
    try:
        yield writer
    finally:
        os.close(writer)


def _log_lines(reader: int, spark_log: Path) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            text = line.rstrip()
            if not text or text.startswith(_SPARK_NOISE):
                continue
            if not shows_output():
                with (
                    suppress(OSError),
                    spark_log.open("ab") as file,
                ):  # opened again, because log4j renames it
                    file.write(text + b"\n")
            _output_log.debug("%s", text.decode(errors="replace"))


def explain_exit(code: int) -> str:
    """Describes an exit code; a negative one is the number of the signal that killed the process."""
    number = -code if code < 0 else code - _FROM_SIGNAL
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    if number == signal.SIGKILL:
        name += ": killed, possibly by the kernel because memory ran out"
    return f"exit code {code}, {name}"


@contextmanager
def watched_start(is_in_vain: threading.Event) -> Iterator[None]:
    """Makes PySpark's launch of a JVM within the block fail if the JVM ends or takes too long.

    PySpark itself does not report the exit code, and waits forever for a JVM that ended with 0.

    Args:
        is_in_vain: Set when nothing waits for the JVM any more.

    Raises:
        UnavailableError: The JVM ended before it answered, did not answer, or is no longer needed.
    """
    clock = SystemClock()
    started = reported = clock.monotonic()
    launched: list[subprocess.Popen[bytes]] = []

    class Jvm(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            # A signal to our process group is for us alone: we end Java when we are done with it.
            options["start_new_session"] = True
            super().__init__(*arguments, **options)
            launched.append(self)

        def poll(self) -> int | None:
            nonlocal reported
            code = super().poll()
            if self not in launched:
                return code
            if code is not None:
                raise spark_does_not_start(f"Java ended before it answered ({explain_exit(code)})")
            if is_in_vain.is_set():
                raise spark_does_not_start("the run was stopped in the meantime")
            now = clock.monotonic()
            if now - started > _LONGEST_START.total_seconds():
                raise spark_does_not_start(f"Java did not answer within {now - started:.0f} s and was ended")
            if now - reported > _REPORT_INTERVAL.total_seconds():
                reported = now
                _log.warning("Java has been starting for %.0f s", now - started)
            return None

    module: Any = pyspark.java_gateway
    popen, module.Popen = module.Popen, Jvm
    try:
        yield
    except BaseException:
        while launched:
            with launched.pop() as jvm:  # which closes its pipe and waits
                jvm.kill()
        raise
    finally:
        module.Popen = popen
        launched.clear()


def explain_jvm_end(*, is_lost: bool = False) -> str | None:
    """Returns how the JVM of this process ended; None while it runs, or if this is not known.

    Args:
        is_lost: Whether the connection to it broke, so that it is worth waiting up to 20 s for the exit code.
    """
    process: Any = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark's name for it
    if process is None:
        has_ended = is_submitted(os.environ) and os.getppid() != _PARENT
        return "the JVM of spark-submit ended" if has_ended else None
    try:
        code = process.wait(_END_SECONDS) if is_lost else process.poll()
    except subprocess.TimeoutExpired:
        return None
    return None if code is None else f"Spark's JVM ended ({explain_exit(code)})"


def end_jvm() -> int:
    """Ends the JVM that this process has started in an orderly way, and returns its exit code."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - PySpark's name for it
    SparkContext._gateway = None  # noqa: SLF001 - so that the next session starts another one
    gateway.shutdown()
    gateway.proc.stdin.close()  # which it watches
    try:
        code: int = gateway.proc.wait(_LONGEST_END.total_seconds())
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        code = gateway.proc.wait()
    return code


def spark_does_not_start(reason: str) -> UnavailableError:
    """Returns the error for a session that does not start, with the reason and what a session needs."""
    hint = (
        "a Java runtime (17 or newer) must be on PATH or in JAVA_HOME, and there must be room on the disks "
        "of the checkpoint and of spark.local.dir"
    )
    return UnavailableError(f"Spark does not start: {reason}", hint)
