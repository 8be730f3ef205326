"""The configuration of Spark: users' settings, our defaults where there are none, and what tasks require.

Settings come from ``spark-defaults.conf``, from ``spark-submit``, and from the settings of the run. Each of
these overrides the previous ones.
"""

import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Final

import javaproperties
import pyspark
from pyspark import SparkConf, SparkContext

from slackwater.pipeline.jvm import is_submitted, shows_output
from slackwater.pipeline.settings import RunSettings
from slackwater.protocol import ConfigError
from slackwater.protocol.log_fields import WORKER_VARIABLE, worker_logging

LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*(?P<mib>\d+)\s*\]")
"""A master that starts executors on this machine."""

_LOCAL_MASTER: Final = "local[*]"
_DRIVER_MEMORY: Final = "768m"
_TASK_ATTEMPTS: Final = 4
_DEFAULTS_FILE: Final = "spark-defaults.conf"
_SHELL: Final = "pyspark-shell"
"""The application's name that PySpark sets in a JVM if there is no other."""

_log = logging.getLogger(__name__)

# The JVM plans and moves a few large blobs; Python does the work. Without the second compiler it takes half
# the CPU per small batch (0.27 s instead of 0.55 s) and a third less until the first one.
_JAVA_OPTIONS: Final = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"

_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Documents of a batch come to the driver; their size is bounded by the batch, not by Spark's default.
    "spark.driver.maxResultSize": "0",
    # What Spark never shows; more than its default, since keys of TLS and of Kafka's logins are secrets, too.
    "spark.redaction.regex": "(?i)secret|password|token|credential|access[.]?key|[.]pem|oauthbearer|jaas",
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
}

_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For a master in this process, because no other machine has to reach the driver."""


_REQUIRED: Final = {  # with the reason
    "spark.python.unix.domain.socket.enabled": (
        "true",
        "rows are exchanged over Unix sockets, and not over a port that other accounts of the machine can "
        "reach",
    ),
    "spark.python.daemon.module": (
        "slackwater.pipeline.worker_daemon",
        "workers are forked from a process that has imported what tasks need",
    ),
    "spark.python.worker.reuse": ("true", "a worker keeps indexes and statements from task to task"),
    "spark.dynamicAllocation.enabled": (
        "false",
        "an idle executor would be released together with its indexes, and the next large batch would wait "
        "until other executors have started and built the indexes again",
    ),
    "spark.speculation": (
        "false",
        "a second attempt of a task would replace the index that the first one is using, so that both take "
        "longer",
    ),
}

REQUIRED_CONF: Final = {name: value for name, (value, _) in _REQUIRED.items()}
"""The settings of every context that runs batches; other values are refused."""


def given_conf(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of Spark's own configuration and ``spark-submit``, or those of the running Spark.

    Raises:
        ConfigError: ``spark-defaults.conf`` cannot be read.
    """
    running = SparkContext._active_spark_context  # noqa: SLF001 - Spark's own names, here and below
    if running is not None and hasattr(running, "_jsc"):  # else it is just being made
        return dict(running.getConf().getAll())
    if is_submitted(environment):
        SparkContext._ensure_initialized()  # noqa: SLF001
        return dict(SparkConf(_jvm=SparkContext._jvm).getAll())  # noqa: SLF001
    return configured_defaults(environment)


def configured_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings in ``spark-defaults.conf``, in the place where Spark's scripts look for it."""
    home = environment.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    path = Path(environment.get("SPARK_CONF_DIR") or Path(home, "conf"), _DEFAULTS_FILE)
    try:
        with path.open("rb") as file:
            return {name: value.strip() for name, value in javaproperties.load(file).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "Spark reads this file: correct it") from error


def without_effect(settings: RunSettings, given: Mapping[str, str]) -> RunSettings:
    """Removes, with a warning, settings that have no effect because ``spark-submit`` has started the JVM."""
    for name, own, spark_name in (
        ("run.master", settings.master, "spark.master"),
        ("run.driver_memory", settings.driver_memory, "spark.driver.memory"),
    ):
        if own is not None and own != given.get(spark_name):
            _log.warning(
                "%s = %s has no effect: spark-submit has started this driver with %s = %s",
                name,
                own,
                spark_name,
                given.get(spark_name, "Spark's default"),
            )
    return replace(settings, master=None, driver_memory=None)


def session_conf(
    name: str, settings: RunSettings, given: Mapping[str, str], spark_log: Path | None
) -> dict[str, str]:
    """Returns the complete configuration of the session.

    Raises:
        ConfigError: A setting has a value with which tasks cannot run.
    """
    master = master_with_retries(settings.master or given.get("spark.master") or _LOCAL_MASTER)
    unnamed = (None, _SHELL, os.path.basename(sys.argv[0]))
    app_name = given.get("spark.app.name")
    conf = {
        **_DEFAULTS,
        "spark.driver.memory": _DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        **(_LOOPBACK if is_local(master) else {}),
        **executor_memory(master),
        **given,
        "spark.master": master,
        "spark.app.name": f"slackwater {name}" if app_name in unnamed else str(app_name),
        **({} if settings.driver_memory is None else {"spark.driver.memory": settings.driver_memory}),
        **settings.spark_conf,
    }
    if spark_log is not None:
        log_conf = files("slackwater.pipeline") / "log4j2.properties"
        logging_options = f"-Dlog4j2.configurationFile={log_conf} -Dslackwater.spark.log={spark_log}"
        if shows_output():
            logging_options += " -Dslackwater.spark.console=warn"
        conf["spark.driver.extraJavaOptions"] = f"{logging_options} {conf['spark.driver.extraJavaOptions']}"
    conf[f"spark.executorEnv.{WORKER_VARIABLE}"] = worker_logging()
    return {**conf, **_required(conf)}


def _required(conf: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that tasks require."""
    for name, (value, reason) in _REQUIRED.items():
        found = conf.get(name, value)
        if found.strip().lower() != value:
            raise ConfigError(
                f"{name} is {found!r}, but a pipeline needs {value!r}: {reason}",
                f'set "{name}" = "{value}" in [run.spark_conf] of slackwater.toml, or pass '
                f"--conf {name}={value} to spark-submit (docs/spark.md)",
            )
    return REQUIRED_CONF


def is_local(master: str) -> bool:
    """Returns whether the executors of a master are on this machine, and use what is installed here."""
    return master.startswith("local")


def master_with_retries(master: str) -> str:
    """Returns ``local[N,4]`` for ``local[N]``, because local mode does not repeat failed tasks by default.

    A killed Python worker then costs a task, not the query.
    """
    if master == "local":
        return f"local[1,{_TASK_ATTEMPTS}]"
    if master.startswith("local[") and master.endswith("]") and "," not in master:
        return f"{master[:-1]},{_TASK_ATTEMPTS}]"
    return master


def executor_memory(master: str) -> dict[str, str]:
    """Gives an executor the entire memory that ``local-cluster[workers, cores, MiB]`` has for its worker."""
    found = LOCAL_CLUSTER.fullmatch(master)
    return {} if found is None else {"spark.executor.memory": f"{found['mib']}m"}


def workers_python(conf: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Returns the Python of tasks: this one on this machine, and otherwise the one that is configured."""
    if is_local(conf["spark.master"]):
        return sys.executable
    return conf.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON") or sys.executable


def index_root(settings: RunSettings, master: str) -> Path | None:
    """Returns where tasks keep indexes; None for Spark's local folders, wherever they run."""
    return settings.index_root or (settings.local_index_root if is_local(master) else None)
