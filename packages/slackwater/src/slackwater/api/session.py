"""Spark sessions with the settings that this package needs, and the settings that other sessions lack."""

import os
import shutil
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from slackwater.pipeline.spark_conf import REQUIRED_CONF
from slackwater.protocol import ConfigError

_PYTHON = "PYSPARK_PYTHON"
_WITH_LOCALS = "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled"
"""Would write rows, and secrets in the options of the source, into the tracebacks of workers."""


def session_builder(builder: "SparkSession.Builder | None" = None) -> "SparkSession.Builder":
    """Returns a builder with all settings that Slackwater needs; add your own and call ``getOrCreate()``.

    Workers are then forked from a process that has imported what tasks need, are reused from task to task,
    and communicate with Spark over Unix sockets. It also sets ``PYSPARK_PYTHON`` of this process, so that
    workers use this interpreter. Call it before the first session of the process is created.

    Args:
        builder: A builder that already has settings; None for a new one.
    """
    os.environ[_PYTHON] = sys.executable
    made = SparkSession.builder if builder is None else builder
    for name, value in REQUIRED_CONF.items():
        made = made.config(name, value)
    return made


def missing_settings(session: "SparkSession") -> dict[str, tuple[str, str]]:
    """Returns the settings that a session lacks, each with the found and the required value.

    It only returns settings without which nothing works, or secrets are shown. A session that was not created
    by :func:`session_builder` may lack others, which makes small batches slower.
    """
    found = {name: str(value) for name, value in session.conf.getAll.items()}
    missing = {}
    if found.get(_WITH_LOCALS, "false").strip().lower() == "true":
        missing[_WITH_LOCALS] = ("true", "false")
    return missing | _missing_interpreter(session, found)


def check_session(session: "SparkSession") -> None:
    """Refuses a session that Slackwater cannot run on.

    Raises:
        ConfigError: Settings are missing; the error names each, its value, and how to set it.
    """
    missing = missing_settings(session)
    if missing:
        raise missing_settings_error(
            [
                (name, *values, name != _PYTHON and session.conf.isModifiable(name))
                for name, values in sorted(missing.items())
            ]
        )


def missing_settings_error(missing: Sequence[tuple[str, str, str, bool]]) -> ConfigError:
    """Returns the error for settings: name, found and required value, and whether a session can change it."""
    lines = [
        f'  {name} is {found!r}: spark.conf.set("{name}", "{wanted}")'
        if can_be_set
        else f"  {name} is {found!r}, must be {wanted!r} before the session is made"
        for name, found, wanted, can_be_set in missing
    ]
    hint = "slackwater.api.session_builder() sets them all:\n" + "\n".join(lines)
    return ConfigError("the Spark session lacks settings that Slackwater needs", hint)


def _missing_interpreter(session: "SparkSession", conf: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Checks that the workers on this machine use the interpreter of this process, which has this package."""
    if not conf.get("spark.master", "").startswith("local"):
        return {}
    workers = shutil.which(session.sparkContext.pythonExec) or ""
    return {} if workers == shutil.which(sys.executable) else {_PYTHON: (workers, sys.executable)}
