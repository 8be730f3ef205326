"""The fields of all log records of commands, sidecars, runs, and the workers of Spark.

A process sets its fields once; a thread that serves one of several sources sets that source. Records may have
further fields for the values of the event.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

FIELDS: Final[Mapping[str, str]] = {
    "time": "Time of the record: ISO 8601, UTC, milliseconds.",
    "level": "debug, info, warning, error or critical.",
    "logger": "The module that wrote the record.",
    "event": "The message without its values: the same for all events of a kind.",
    "text": "The message with its values.",
    "service": "The command, such as `run` or `sidecar`; `worker` is a Python worker of Spark.",
    "host": "Name of the machine.",
    "pid": "Number of the process.",
    "source": "The source that the record is about, if any.",
    "pipeline": "The pipeline that the record is about, if any.",
    "error": "The traceback, if any.",
}
"""The fields and their meanings, in their order; further ones are values of the event."""

WORKER_VARIABLE: Final = "SLACKWATER_WORKER_LOG"
"""The variable that tells a worker of Spark how to log."""

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Attributes of every record: all others are fields of the event."""

_process: dict[str, str] = {}
_format = "text"
_thread: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=MappingProxyType({}))


def set_log_fields(**fields: str) -> None:
    """Sets fields of all records of this process. To be called by its main thread."""
    _process.update(fields)


@contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Sets fields of the records of this thread within the block."""
    token = _thread.set({**_thread.get(), **fields})
    try:
        yield
    finally:
        _thread.reset(token)


def log_line(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the fields of a record, in the order of :data:`FIELDS`, then those of its event."""
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": str(record.msg),
        "text": record.getMessage(),
        "service": "",
        "host": _HOST,
        "pid": record.process,
    }
    line |= {**_process, **_thread.get()}
    line |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
    if record.exc_info:
        line["error"] = logging.Formatter().formatException(record.exc_info)
    return line


def remember_format(name: str) -> None:
    """Stores the log format of this process, ``text`` or ``json``, so that its workers use it, too."""
    global _format
    _format = name


def worker_logging() -> str:
    """Returns the value of :data:`WORKER_VARIABLE` for the workers of this process."""
    return json.dumps({"format": _format, "fields": _process | {"service": "worker"}})


def configure_worker_logging(environment: Mapping[str, str] = os.environ) -> None:
    """Makes a worker write warnings to standard error, which is in Spark's log, as its driver logs."""
    told = json.loads(environment.get(WORKER_VARIABLE, "{}"))
    set_log_fields(**told.get("fields", {}))
    handler = logging.StreamHandler()
    as_json = told.get("format") == "json"
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(logging.BASIC_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """Writes a JSON object per record and line, with the fields of :func:`log_line`."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        return json.dumps(log_line(record), default=str)


_HOST: Final = os.uname().nodename
