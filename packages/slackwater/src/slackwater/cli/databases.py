"""The database that a command queries."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from slackwater.command.invocation import ANSWERS_WITHIN, required, setting
from slackwater.settings.errors import unreachable
from slackwater.settings.model import Settings

Database = psycopg.Connection[tuple[Any, ...]]

POSTGRES_URL = setting("postgres.url", "postgresql://user@host:port/database; secret.")
"""The option of commands that query a database."""


@contextmanager
def connected(
    settings: Settings, purpose: str, question: str, *, autocommit: bool = False
) -> Iterator[Database]:
    """Connects with the database of the settings.

    Args:
        settings: Of the command.
        purpose: What the address is for, if it is missing.
        question: What the block asks, for errors.
        autocommit: Whether each statement is a transaction by itself.

    Raises:
        CommandConfigError: Its address was not given.
        UnavailableError: It cannot be reached, or refuses a query in the block.
    """
    url = required(settings.postgres.url, "postgres.url", purpose)
    try:
        seconds = int(ANSWERS_WITHIN.total_seconds())
        with psycopg.connect(url, connect_timeout=seconds, autocommit=autocommit) as connection:
            yield connection
    except psycopg.Error as error:
        raise unreachable("PostgreSQL", question, " ".join(str(error).split())) from error
