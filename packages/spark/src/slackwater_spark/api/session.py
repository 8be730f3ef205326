"""Spark sessions that can run what this package offers."""

import os
import shutil
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.operator.conf import (
    local_checkpoint_conf,
    required_conf,
    required_environment,
    worker_conf,
)

_PYTHON = "PYSPARK_PYTHON"
_WITH_LOCALS = "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled"


def session_builder(
    builder: "SparkSession.Builder | None" = None, *, local_checkpoints: bool = True
) -> "SparkSession.Builder":
    """Returns a builder with all that Slackwater requires; add your own settings and call ``getOrCreate()``.

    Sets ``PYSPARK_PYTHON`` of this process, too, so that workers are this interpreter: call it before the
    first session of the process is made.

    Args:
        builder: One that has settings already; None: a new one.
        local_checkpoints: Checkpoints are on paths of this machine: shortens each batch. Pass False when they
            are in object storage or HDFS.
    """
    for name, value in required_environment().items():
        os.environ[name] = value
    made = SparkSession.builder if builder is None else builder
    conf = required_conf() | worker_conf() | (local_checkpoint_conf() if local_checkpoints else {})
    for name, value in conf.items():
        made = made.config(name, value)
    return made


def missing_settings(session: "SparkSession") -> dict[str, tuple[str, str]]:
    """Lists the settings that a session lacks, each with the value found and the value required.

    Everything listed is needed by stages (:func:`stateful`, views). :func:`changes` and
    :func:`for_each_commit_batch` need only the workers' interpreter.
    """
    found = {name: str(value) for name, value in session.conf.getAll.items()}
    missing = {
        name: (found.get(name, "not set"), wanted)
        for name, wanted in required_conf().items()
        if found.get(name, "not set").lower() != wanted.lower()
    }
    if found.get(_WITH_LOCALS, "false").strip().lower() == "true":
        missing[_WITH_LOCALS] = ("true", "false")
    return missing | _missing_interpreter(session, found)


def check_session(session: "SparkSession") -> None:
    """Refuses a session that stages cannot run on.

    Raises:
        PipelineConfigError: names every setting that is missing, its value, and how to set it.
    """
    missing = missing_settings(session)
    if missing:
        raise lacking_settings(
            [(name, *values, _can_be_set(session, name)) for name, values in sorted(missing.items())]
        )


def lacking_settings(missing: Sequence[tuple[str, str, str, bool]]) -> PipelineConfigError:
    """Lists settings: name, value found, value required, and whether a running session can be given it."""
    lines = [
        f'  {name} is {found!r}: spark.conf.set("{name}", "{wanted}")'
        if can_be_set
        else f"  {name} is {found!r}, must be {wanted!r} before the session is made"
        for name, found, wanted, can_be_set in missing
    ]
    hint = "slackwater_spark.session_builder() sets them all:\n" + "\n".join(lines)
    return PipelineConfigError("the Spark session lacks settings that Slackwater needs", hint)


def _missing_interpreter(session: "SparkSession", conf: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Checks that on this machine workers are the interpreter that runs here: it has this package."""
    if not conf.get("spark.master", "").startswith("local"):
        return {}
    workers = shutil.which(session.sparkContext.pythonExec) or ""
    return {} if workers == shutil.which(sys.executable) else {_PYTHON: (workers, sys.executable)}


def _can_be_set(session: "SparkSession", name: str) -> bool:
    return name != _PYTHON and session.conf.isModifiable(name)
