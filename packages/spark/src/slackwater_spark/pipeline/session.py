"""The Spark of a run: small, quiet, with what tasks require."""

import logging
import os
import re
import shlex
import string
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has no stubs
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from slackwater_spark.pipeline.checkpoint import SPARK_HOME_FOLDER, SPARK_LOG, Checkpoint
from slackwater_spark.pipeline.jvm import explain_jvm_end, logged_output, spark_does_not_start, watched_start
from slackwater_spark.pipeline.settings import RunSettings, revision_checkpoint
from slackwater_spark.pipeline.spark_home import SparkHome, archived_home, link_spark_home, started_from

_TASK_ATTEMPTS = 4

_log = logging.getLogger(__name__)

# The JVM plans and moves a few large blobs; Python does the work. Without the second compiler it takes half
# the CPU per small batch (0.27 s instead of 0.55 s) and a third less until the first one.
_JAVA_OPTIONS = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Documents of a batch come to the driver; their size is bounded by the batch, not by Spark's default.
    "spark.driver.maxResultSize": "0",
    # What Spark never shows; more than its default, since keys of TLS and of Kafka's logins are secrets, too.
    "spark.redaction.regex": "(?i)secret|password|token|credential|access[.]?key|[.]pem|oauthbearer|jaas",
}

REQUIRED_CONF = {
    # Rows travel over unix sockets: no TCP stack, and no port that other users of the machine can reach.
    "spark.python.unix.domain.socket.enabled": "true",
    # Workers are forked from a process that has imported what tasks need.
    "spark.python.daemon.module": "slackwater_spark.worker_daemon",
    # A worker keeps what it has prepared from task to task.
    "spark.python.worker.reuse": "true",
}
"""Settings of every context that runs batches."""

_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*(?P<mib>\d+)\s*\]")

_PLAIN = frozenset(string.ascii_letters + string.digits + "._-/")
"""Characters that mean themselves in a Java properties file."""

_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For a master in this process: nobody else has to reach the driver."""


def master_with_retries(master: str) -> str:
    """Writes ``local[N]`` as ``local[N,4]``: Spark's local mode does not repeat failed tasks unless told so.

    A killed Python worker then costs a task, not the query.
    """
    if master == "local":
        return f"local[1,{_TASK_ATTEMPTS}]"
    if master.startswith("local[") and master.endswith("]") and "," not in master:
        return f"{master[:-1]},{_TASK_ATTEMPTS}]"
    return master


def executor_memory(master: str) -> dict[str, str]:
    """Gives an executor all the memory that ``local-cluster[workers, cores, MiB]`` has for its worker."""
    found = _LOCAL_CLUSTER.fullmatch(master)
    return {} if found is None else {"spark.executor.memory": f"{found['mib']}m"}


def session_conf(name: str, settings: RunSettings, spark_log: Path) -> dict[str, str]:
    """Returns everything the session is configured with."""
    log_conf = files("slackwater_spark.pipeline") / "log4j2.properties"
    java_options = f"-Dlog4j2.configurationFile={log_conf} -Dslackwater.spark.log={spark_log}"
    return {
        **_DEFAULTS,
        "spark.app.name": f"slackwater {name}",
        "spark.master": master_with_retries(settings.master),
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"{java_options} {_JAVA_OPTIONS}",
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        **(_LOOPBACK if settings.master.startswith("local") else {}),
        **executor_memory(settings.master),
        **settings.spark_conf,
        **REQUIRED_CONF,
    }


@contextmanager
def starting_spark(
    name: str, settings: RunSettings, home: SparkHome | None = None
) -> Iterator[Callable[[], SparkContext]]:
    """Starts Spark with its own JVM, whose output goes to the log, beside the block; it ends with the block.

    The JVM ends, too, when this process is killed: it watches its standard input. When the block fails while
    the JVM is starting, the JVM is ended at once.

    Args:
        name: The application's name.
        settings: The settings of the run, with the file that the JVM logs to.
        home: What the JVM is started from; None: as :func:`spark_home` chooses.

    Yields:
        What waits until Spark has started and returns its context. Raises ``PipelineUnavailableError`` if
        Java or Spark does not start.
    """
    spark_log = settings.spark_log
    if spark_log is None:
        raise ValueError("settings name no file for Spark's log")
    spark_log.parent.mkdir(parents=True, exist_ok=True)
    # The JVM inherits these: workers must be this interpreter.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Native libraries run many threads here: by default each of them may keep memory of its own.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    conf = SparkConf(loadDefaults=False).setAll(list(session_conf(name, settings, spark_log).items()))
    is_in_vain = threading.Event()
    with ThreadPoolExecutor(1, "starting-spark") as beside:
        starting = beside.submit(_start, conf, settings, spark_log, home, is_in_vain)
        try:
            yield starting.result
        finally:
            is_in_vain.set()
            if starting.exception() is None:
                _stop(starting.result())


def with_spark_log(settings: RunSettings, revision: int) -> RunSettings:
    """Names the file that the JVM logs to: one in the checkpoint, or, if that is elsewhere, a temporary one.

    Args:
        settings: Of the run; if they name a file, that stays.
        revision: The pipeline's.
    """
    if settings.spark_log is not None:
        return settings
    folder = Checkpoint(revision_checkpoint(settings.checkpoint, revision)).local_folder
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="slackwater-"))
    return replace(settings, spark_log=folder / SPARK_LOG)


def _stop(context: SparkContext) -> None:
    if (ended := explain_jvm_end()) is not None:
        _log.warning("%s before Spark was stopped", ended)
    try:
        context.stop()
    except (Py4JError, OSError) as error:
        _log.warning("Spark could not be stopped in order: %s", error)


@contextmanager
def submitted_settings(conf: Mapping[str, str]) -> Iterator[None]:
    """Makes a JVM that is launched within the block read these settings from a file that only we can read.

    PySpark itself puts them on the JVM's command line, which every account of the machine can see.
    """
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    with tempfile.NamedTemporaryFile("w", prefix="slackwater-", suffix=".properties") as file:  # mode 0600
        file.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.items())
        file.flush()
        arguments = ["--properties-file", file.name, "--load-spark-defaults"]
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(arguments)} {before or 'pyspark-shell'}"
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYSPARK_SUBMIT_ARGS"]
            else:
                os.environ["PYSPARK_SUBMIT_ARGS"] = before


def _escaped(text: str) -> str:
    """Escapes a text for a Java properties file: whatever could mean something there, as UTF-16."""
    units = memoryview(text.encode("utf-16-be")).cast("B")
    codes = (units[i] << 8 | units[i + 1] for i in range(0, len(units), 2))
    return "".join(chr(code) if chr(code) in _PLAIN else f"\\u{code:04x}" for code in codes)


def spark_home(settings: RunSettings, folder: Path) -> SparkHome | None:
    """Chooses what a JVM is started from: a home with an archive of its classes, else `folder`, made anew.

    None leaves it to PySpark: the Spark that the environment names, or, for masters elsewhere, the installed
    one, since they are sent its Python archives.
    """
    if "SPARK_HOME" in os.environ or not settings.master.startswith("local"):
        return None
    home = None
    # Executors of a local cluster write into the home, so it is of one run only.
    if settings.class_archives is not None and _LOCAL_CLUSTER.fullmatch(settings.master) is None:
        home = archived_home(settings.class_archives)
    return SparkHome(link_spark_home(folder)) if home is None else home


def _start(
    conf: SparkConf,
    settings: RunSettings,
    spark_log: Path,
    home: SparkHome | None,
    is_in_vain: threading.Event,
) -> SparkContext:
    try:
        if explain_jvm_end() is not None:
            SparkContext._gateway = None  # noqa: SLF001 - as below
        gateway = SparkContext._gateway  # noqa: SLF001 - the JVM of an earlier run in this process
        if gateway is None:
            home = home or spark_home(settings, spark_log.parent / SPARK_HOME_FOLDER)
            own = dict(conf.getAll())
            with (
                logged_output() as output,
                started_from(home),
                submitted_settings(own),
                watched_start(is_in_vain),
            ):
                popen = {"stdout": output, "stderr": output}
                gateway = launch_gateway(None, popen)  # type: ignore[no-untyped-call]
        context = SparkContext(conf=conf, gateway=gateway)
        _start_workers(context)
        return context
    except (PySparkException, Py4JError, OSError) as error:
        why = explain_jvm_end(is_lost=True) or f"{type(error).__name__}: {error}"
        raise spark_does_not_start(f"{why}; see {spark_log}") from error


def _start_workers(context: SparkContext) -> None:
    """Makes Spark start its Python workers, which takes a while, before there is a batch for them."""
    count = context.defaultParallelism
    context.parallelize(range(count), count).foreachPartition(_do_nothing)


def _do_nothing(rows: Iterable[int]) -> None:
    for _ in rows:  # Spark keeps only workers that have read all
        pass
