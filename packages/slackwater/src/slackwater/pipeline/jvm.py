"""Spark's JVM as a child process: its start, its output, its end, and its errors."""

import logging
import os
import re
import signal
import struct
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import pyspark.java_gateway
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]  # has no stubs
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import Serializer
from pyspark.util import _load_from_socket

from slackwater.protocol import SlackwaterError, SystemClock, UnavailableError

T = TypeVar("T")

SPARK_ERRORS: Final = (Py4JError, PySparkException, OSError)
"""What a call into Spark raises: Java's error, a ``PySparkException`` if the process has created a session,
or an ``OSError`` if the connection broke."""
_LONGEST_START = _LONGEST_END = timedelta(minutes=10)
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

_TRACEBACK: Final = "Traceback (most recent call last)"
_RAISED: Final = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt))(?:: (?P<reason>.*))?$"
)
_JAVA_CAUSE: Final = re.compile(r"^(?:: |Caused by: )(?P<type>[\w.$]+): (?P<reason>.+)$")
"""The error of a call into Java, and its causes."""
_JAVA_FRAME: Final = re.compile(r"^\s+at [\w.$/<>]+\(|^\s*(?:Caused by: |Driver stacktrace:|\.\.\. \d+ more)")
_SQL_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
"""The suffix that Spark adds to every error of a task."""
_WORKER_ENDED: Final = "Python worker exited unexpectedly"
_CANCELLED: Final = "[SPARK_JOB_CANCELLED]"

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
                # It is opened again, because log4j renames it.
                with suppress(OSError), spark_log.open("ab") as file:
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

    If the connection to it is lost, it is worth waiting up to 20 s for the exit code.
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


def explain_end(
    context: SparkContext, error: Exception, pipeline: str, spark_log: Path | None, *, stops: bool
) -> SlackwaterError | None:
    """Returns an error that names what happened in Spark, instead of a broken connection.

    None if a run that was stopped ended because of it: a signal to all processes of a group, as systemd sends
    it, ends the JVM, too. The error of a receiver of batches is raised again.
    """
    ended = explain_jvm_end(is_lost=not _answers(context))
    if ended is None and _answers(context):
        if isinstance(error, OSError):
            raise error
        text = str(error)
        if stops and is_cancelled(text):
            return None
        error_type, reason = root_cause(text)
        _log.error("the batch failed: %s", text)
    else:
        what = ended or "Spark was shut down from outside"
        if stops:
            _log.warning("%s while the run was being stopped", what)
            return None
        _log.error("%s; our connection to it: %s", what, error)
        log = spark_log or "the log of Spark"
        error_type = "SparkStopped"
        reason = f"{what}; nothing is lost: start the pipeline again; {log} may say more"
    return SlackwaterError(f"pipeline {pipeline!r} stopped: {reason} ({error_type})")


def _answers(context: SparkContext) -> bool:
    """Returns whether Spark's JVM is running and its context is in use."""
    try:
        return not context._jsc.sc().isStopped()  # noqa: SLF001 - has no other name
    except (*SPARK_ERRORS, AttributeError):
        return False


def collect(rdd: RDD[T]) -> list[T]:
    """Runs a job and returns its rows, like ``RDD.collect``, which takes twice as long for a small batch.

    For each job, ``RDD.collect`` makes Spark read the code of its largest classes three times, in search of
    statements that closures must not contain. An asynchronous job searches once, in a small class. Its rows
    are then transferred through a socket, because Py4J would convert them to text.
    """
    jvm: Any = rdd.context._jvm  # noqa: SLF001 - Spark's own names, here and below
    packed: Any = rdd._jrdd.collectAsync().get()  # noqa: SLF001
    frames = len(packed)
    rows = jvm.scala.jdk.javaapi.CollectionConverters.asScala(packed.iterator())
    served = jvm.PythonRDD.serveIterator(rows, "serve the rows of a batch")
    try:
        with _load_from_socket(served, _Frames(rdd._jrdd_deserializer)) as found:  # noqa: SLF001
            received: list[Iterable[T]] = list(found)
    except (OSError, struct.error, UnboundLocalError) as error:
        # The second is of a connection that breaks within a length, the third of one that could not be made:
        # PySpark then closes a socket that it has not opened.
        raise Py4JNetworkError(f"the rows of a batch did not arrive: {error}") from error
    # PySpark takes the end of a connection for the end of the rows, but a killed JVM has sent a part of them.
    if len(received) != frames:
        raise Py4JNetworkError(f"only {len(received)} of {frames} messages with the rows of a batch arrived")
    return list(chain.from_iterable(received))


class _Frames(Serializer):
    """Reads messages of rows, and keeps them separate."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer

    def load_stream(self, stream: BinaryIO) -> Any:
        """Returns the rows of each message."""
        return self._serializer._load_stream_without_unbatching(stream)  # type: ignore[no-untyped-call]  # noqa: SLF001


def root_cause(text: str) -> tuple[str, str]:
    """Returns name and message of the Python error in the text, or else of Java's deepest cause.

    Spark wraps the error of a task in messages of its own, and repeats stack traces of both languages. The
    relevant error is the last one of the first chain of Python tracebacks, which ends where Java's frames
    begin.
    """
    lines = text.splitlines()
    found: tuple[str, str] | None = None
    is_inside = False
    for number, line in enumerate(lines):
        if found is not None and _JAVA_FRAME.match(line):
            break
        if _TRACEBACK in line:
            is_inside = True
        elif is_inside and (raised := _RAISED.match(line)) is not None:
            is_inside = False
            message = _whole_message(raised["reason"] or "", lines[number + 1 :])
            found = raised["type"].rpartition(".")[2], message
    if found is not None:
        return found
    if _WORKER_ENDED in text:
        return (
            "PythonProcessEndedError",
            "a Python process that computes batches ended at each of Spark's attempts; perhaps it was "
            "killed, or ran out of memory. Nothing is lost: start the pipeline again",
        )
    causes = [cause for line in lines if (cause := _JAVA_CAUSE.match(line)) is not None]
    if causes:
        return causes[-1]["type"].rpartition(".")[2], causes[-1]["reason"]
    return "SparkError", next((line.strip() for line in lines if line.strip()), "no reason given")


def is_cancelled(text: str) -> bool:
    """Returns whether the text says that the batch was cancelled."""
    return _CANCELLED in text and _TRACEBACK not in text


def _whole_message(first: str, following: list[str]) -> str:
    """Joins the lines of a message, which ends at an empty line, a Java frame or the next traceback."""

    def continues(line: str) -> bool:
        return bool(line.strip()) and not _JAVA_FRAME.match(line) and _TRACEBACK not in line

    return _SQL_STATE.sub("", "\n".join([first, *takewhile(continues, following)])).strip()
