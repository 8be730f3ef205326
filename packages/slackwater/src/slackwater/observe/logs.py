"""Logging, which is configured only here; libraries only have loggers."""

import logging
import logging.config
from collections.abc import Collection
from typing import Any

from slackwater.protocol import hide
from slackwater.protocol.log_fields import JsonFormatter, remember_format
from slackwater.settings.model import LogSection

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


_secrets: frozenset[str] = frozenset()
"""What this process must not write: all secrets of its settings."""


def hidden(text: str) -> str:
    """Returns a text without the secrets of this process's settings."""
    return hide(text, _secrets)


class _TextFormatter(logging.Formatter):
    """Writes a line per record, then the lines of its traceback, indented.

    Line breaks and control characters within a record are written as escapes: names and values come from
    databases and topics, and must not be able to write lines of their own or to command a terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record, and its traceback."""
        whole = super().format(record)
        first = self.formatMessage(record)
        details = hidden(whole[len(first) :]).splitlines()
        return "\n".join(
            [_printable(hidden(first)), *(f"    {_printable(line)}" for line in details if line)]
        )


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


class _JsonFormatter(JsonFormatter):
    """Removes the secrets of this process's settings."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        return hidden(super().format(record))


def configure_logging(settings: LogSection, secrets: Collection[str] = ()) -> None:
    """Sends records of the level and above to the file or, without one, to standard error. Idempotent.

    The secrets are removed from every record, and from the errors with which a command ends.
    """
    global _secrets
    _secrets = frozenset(secrets)
    remember_format(settings.format)
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
