"""Logging: configured here and nowhere else; every library only has loggers."""

import json
import logging
import logging.config
from datetime import UTC, datetime
from typing import Any

from slackwater_command.settings import LogSection

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Attributes of every record: all others are fields of the event."""


class _TextFormatter(logging.Formatter):
    """Writes a line per record, then the lines of its traceback, indented.

    Line breaks and control characters within a record are written as escapes: names and values come from
    databases and topics, and must not be able to write lines of their own or to command a terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record, and its traceback."""
        whole = super().format(record)
        first = self.formatMessage(record)
        details = whole[len(first) :].splitlines()
        return "\n".join([_printable(first), *(f"    {_printable(line)}" for line in details if line)])


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


class _JsonFormatter(logging.Formatter):
    """Writes a JSON object per record and line.

    ``event`` is the text without its values, hence the same for every event of a kind; ``text`` is what a
    person reads; further keys are the fields of the event.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": str(record.msg),
            "text": record.getMessage(),
        }
        line |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(settings: LogSection) -> None:
    """Sends records of the level and above to the file or, without one, to standard error. Idempotent."""
    handler: dict[str, Any] = {"class": "logging.StreamHandler", "formatter": settings.format}
    if settings.file is not None:
        settings.file.parent.mkdir(parents=True, exist_ok=True)
        handler |= {"class": "logging.FileHandler", "filename": str(settings.file)}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"text": {"()": _TextFormatter, "fmt": _FORMAT}, "json": {"()": _JsonFormatter}},
            "handlers": {"out": handler},
            "root": {"level": settings.level.upper(), "handlers": ["out"]},
            "loggers": {name: {"level": "WARNING"} for name in ("py4j", "uvicorn")},
        }
    )
