"""Logging: configured here and nowhere else; every library only has loggers."""

import logging
import logging.config
from typing import Any

from slackwater.settings import LogSection

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def configure_logging(settings: LogSection) -> None:
    """Sends records of the level and above to the file or, without one, to standard error. Idempotent."""
    handler: dict[str, Any] = {"class": "logging.StreamHandler", "formatter": "line"}
    if settings.file is not None:
        settings.file.parent.mkdir(parents=True, exist_ok=True)
        handler = {"class": "logging.FileHandler", "formatter": "line", "filename": str(settings.file)}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"format": FORMAT}},
            "handlers": {"out": handler},
            "root": {"level": settings.level.upper(), "handlers": ["out"]},
            "loggers": {"py4j": {"level": "WARNING"}},
        }
    )
