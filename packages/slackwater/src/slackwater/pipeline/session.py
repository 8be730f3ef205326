"""The Spark of a run: small, quiet, and with the settings that tasks require."""

import logging
import os
import shlex
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import javaproperties
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has no stubs
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from slackwater.pipeline.checkpoint import FOLDER_HINT, SPARK_HOME_FOLDER, SPARK_LOG, Checkpoint
from slackwater.pipeline.jvm import (
    collect,
    explain_jvm_end,
    is_submitted,
    logged_output,
    spark_does_not_start,
    watched_start,
)
from slackwater.pipeline.settings import RunSettings, revision_checkpoint
from slackwater.pipeline.spark_conf import (
    LOCAL_CLUSTER,
    given_conf,
    is_local,
    session_conf,
    without_effect,
    workers_python,
)
from slackwater.pipeline.spark_home import (
    JAVA_HINT,
    SparkHome,
    archived_home,
    environment,
    fault_of_java,
    link_spark_home,
    started_from,
)
from slackwater.pipeline.toml_table import read_labels
from slackwater.protocol import ConfigError

if TYPE_CHECKING:
    from slackwater.pipeline.progress import BatchProgress

_LOOK_SECONDS = 0.2
_log = logging.getLogger(__name__)


def run_folder(
    folder: Path,
    settings: RunSettings,
    on_progress: "Callable[[BatchProgress], None]",
    *,
    stop: threading.Event,
    on_step: Callable[[str], None],
    on_turn: Callable[[bool], None],
) -> None:
    """Keeps the views of a folder up to date; see :func:`run_pipeline`. Each step names the pipeline.

    Raises:
        SlackwaterError: As for :func:`load_pipeline` and :func:`run_pipeline`.
    """
    labels = read_labels(folder)
    name, settings = labels.full_name, with_spark_log(settings, labels.revision)
    on_step(f"{name}: starting Spark")
    with starting_spark(name, settings, stop=stop) as started:
        # These load the libraries that plan views, which takes as long as half of Spark's start.
        from slackwater.pipeline.folder import load_pipeline
        from slackwater.pipeline.runner import run_pipeline

        run_pipeline(
            load_pipeline(folder),
            settings,
            on_progress,
            stop=stop,
            context=started,
            on_step=lambda step: on_step(f"{name}: {step}"),
            on_turn=on_turn,
        )


@contextmanager
def starting_spark(
    name: str, settings: RunSettings, home: SparkHome | None = None, stop: threading.Event | None = None
) -> Iterator[Callable[[], SparkContext]]:
    """Starts Spark in parallel with the block, with a JVM that writes to Spark's log; ends it afterwards.

    The JVM also ends when this process is killed, because it watches its standard input. If the block fails
    while the JVM is starting, the JVM is ended immediately. Under ``spark-submit``, the JVM that has started
    this process is used, with its settings. The settings name the file for the JVM's log. Without a `home`,
    the JVM is started from that of :func:`spark_home`. `stop` ends it while it is starting.

    Yields:
        A function that waits until Spark has started and returns its context. It raises
        ``UnavailableError`` if Java or Spark does not start or ``stop`` is set, and
        ``ConfigError`` if tasks cannot run with its configuration.
    """
    spark_log = settings.spark_log
    if spark_log is None:
        raise ValueError("settings name no file for Spark's log")
    if not is_submitted(os.environ) and (fault := fault_of_java()):
        raise ConfigError(f"Spark cannot start: {fault}", JAVA_HINT)
    if fault := Checkpoint(settings.checkpoint).fault_of_folder():
        raise ConfigError(f"checkpoint {settings.checkpoint}: {fault}", FOLDER_HINT)
    spark_log.parent.mkdir(parents=True, exist_ok=True)
    # Native libraries run many threads here: by default each of them may keep memory of its own.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    is_in_vain = threading.Event()
    launched: list[Any] = []
    with ThreadPoolExecutor(1, "starting-spark") as beside:
        starting = beside.submit(_start, name, settings, spark_log, home, is_in_vain, launched)

        def started() -> SparkContext:
            while not starting.done():
                if stop is not None and stop.is_set():
                    is_in_vain.set()
                    for gateway in launched:
                        gateway.proc.kill()
                wait([starting], _LOOK_SECONDS)
            return starting.result()

        try:
            yield started
        finally:
            is_in_vain.set()
            if starting.exception() is None:
                _stop(starting.result())


def with_spark_log(settings: RunSettings, revision: int) -> RunSettings:
    """Sets the file for the JVM's log, unless it is set.

    It is in the checkpoint of this revision or, if that is on another machine, a temporary file.
    """
    if settings.spark_log is not None:
        return settings
    folder = Checkpoint(revision_checkpoint(settings.checkpoint, revision)).local_folder
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="slackwater-"))
    return replace(settings, spark_log=folder / SPARK_LOG)


def _stop(context: SparkContext) -> None:
    if (ended := explain_jvm_end()) is not None:
        _log.warning("%s before the run stopped Spark", ended)
    try:
        context.stop()
    except (Py4JError, OSError) as error:
        _log.warning("Spark could not be stopped properly: %s", error)


@contextmanager
def submitted_settings(conf: Mapping[str, str]) -> Iterator[None]:
    """Makes a JVM that is launched within the block read these settings from a private file.

    PySpark itself puts them on the JVM's command line, which every account of the machine can read.
    """
    more = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    with tempfile.NamedTemporaryFile("w", prefix="slackwater-", suffix=".properties") as file:  # mode 0600
        file.write(javaproperties.dumps(conf, timestamp=False))
        file.flush()
        arguments = ["--properties-file", file.name, "--load-spark-defaults"]
        with environment(PYSPARK_SUBMIT_ARGS=f"{shlex.join(arguments)} {more}"):
            yield


def spark_home(master: str, class_archives: Path | None, folder: Path) -> SparkHome | None:
    """Chooses the home of a JVM: one with an archive of its classes, or else `folder`, which is created.

    None leaves the choice to PySpark: the Spark that the environment names or, for masters on other machines,
    the installed one, because these receive its Python archives.
    """
    if "SPARK_HOME" in os.environ or not is_local(master):
        return None
    home = None
    # Executors of a local cluster write into the home, so it is of one run only.
    if class_archives is not None and LOCAL_CLUSTER.fullmatch(master) is None:
        home = archived_home(class_archives)
    return SparkHome(link_spark_home(folder)) if home is None else home


def _start(
    name: str,
    settings: RunSettings,
    spark_log: Path,
    home: SparkHome | None,
    is_in_vain: threading.Event,
    launched: list[Any],
) -> SparkContext:
    """Starts Spark; adds the JVM that it has launched to a list."""
    try:
        if explain_jvm_end() is not None:
            SparkContext._gateway = None  # noqa: SLF001 - as below
        gateway = SparkContext._gateway  # noqa: SLF001 - the JVM of an earlier run in this process
        if is_submitted(os.environ):
            given = given_conf(os.environ)
            gateway = SparkContext._gateway  # noqa: SLF001
            own = session_conf(name, without_effect(settings, given), given, None)
        else:
            own = session_conf(name, settings, given_conf(os.environ), spark_log)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if gateway is None:
            home = home or spark_home(
                own["spark.master"], settings.class_archives, spark_log.parent / SPARK_HOME_FOLDER
            )
            _log.info("Spark's log is %s", spark_log)
            with (
                logged_output(spark_log) as output,
                started_from(home),
                submitted_settings(own),
                watched_start(is_in_vain),
            ):
                popen = {"stdout": output, "stderr": output}
                gateway = launch_gateway(None, popen)  # type: ignore[no-untyped-call]
            launched.append(gateway)
            # PYSPARK_SUBMIT_ARGS may have said more.
            own = session_conf(name, settings, _conf_of_jvm(gateway), None)
        os.environ["PYSPARK_PYTHON"] = workers_python(own, os.environ)
        context = SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(own.items())), gateway=gateway)
        _start_workers(context)
        return context
    except (PySparkException, Py4JError, OSError) as error:
        why = explain_jvm_end(is_lost=True) or f"{type(error).__name__}: {error}"
        raise spark_does_not_start(f"{why}; see {spark_log}") from error


def _conf_of_jvm(gateway: Any) -> dict[str, str]:
    """Returns the settings with which a JVM was started."""
    return dict(SparkConf(_jvm=gateway.jvm).getAll())


def _start_workers(context: SparkContext) -> None:
    """Makes Spark start its Python workers before there is a batch for them, because this takes some time."""
    count = context.defaultParallelism
    read_all = partial(deque[int], maxlen=0)  # Spark keeps only workers that have read all
    collect(context.parallelize(range(count), count).mapPartitions(read_all))
