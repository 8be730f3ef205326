"""Spark's JVM as a process: its start is watched, and its end explained."""

import logging
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from slackwater_protocol import SystemClock
from slackwater_spark.pipeline.errors import SessionStartError

_LONGEST_START = timedelta(minutes=10)
_LONGEST_END = timedelta(minutes=10)
_NEWS = timedelta(seconds=20)
_END_SECONDS = 20.0
"""How long the exit code of a JVM whose connection broke may take to be known."""
_FROM_SIGNAL = 128
"""What a JVM, as a shell does, adds to the number of the signal that made it end in order."""

_log = logging.getLogger(__name__)


def explain_exit(code: int) -> str:
    """An exit code in words; negative: the number of the signal that killed the process."""
    number = -code if code < 0 else code - _FROM_SIGNAL
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    if number == signal.SIGKILL:
        name += ": killed by somebody, or by the kernel because memory ran out"
    return f"exit code {code}, {name}"


@contextmanager
def watched_start() -> Iterator[None]:
    """Within the block PySpark's launch of a JVM ends with the reason when the JVM ends or takes too long.

    By itself PySpark says nothing of the exit code, and waits for ever for a JVM that ended with 0.

    Raises:
        SessionStartError: the JVM ended before it answered, or did not answer.
    """
    import pyspark.java_gateway

    clock = SystemClock()
    started = news = clock.monotonic()
    launched: list[subprocess.Popen[bytes]] = []

    class Jvm(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            launched.append(self)

        def poll(self) -> int | None:
            nonlocal news
            code = super().poll()
            if self not in launched:
                return code
            if code is not None:
                raise SessionStartError(f"Java ended before it answered ({explain_exit(code)})")
            now = clock.monotonic()
            if now - started > _LONGEST_START.total_seconds():
                raise SessionStartError(f"Java did not answer within {now - started:.0f} s and was ended")
            if now - news > _NEWS.total_seconds():
                news = now
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


def how_jvm_ended(*, is_lost: bool = False) -> str | None:
    """How the JVM that this process has started ended; None while it runs, or if that is not known.

    Args:
        is_lost: The connection to it broke: waits a little for the exit code.
    """
    from pyspark import SparkContext

    process: Any = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark's name for it
    if process is None:
        return None
    try:
        code = process.wait(_END_SECONDS) if is_lost else process.poll()
    except subprocess.TimeoutExpired:
        return None
    return None if code is None else f"Spark's JVM ended ({explain_exit(code)})"


def end_jvm() -> int:
    """Ends the JVM that this process has started, in order; gives its exit code when it is gone."""
    from pyspark import SparkContext

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
