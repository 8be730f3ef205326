"""Begins a command: flags become settings, which are loaded; logging and clients are configured by them."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from slackwater.command.boundary import Command, is_watched
from slackwater.observe.logs import configure_logging
from slackwater.protocol import (
    InputError,
    KafkaSettings,
    MalformedRecordError,
    RedisSettings,
    Servers,
    parse_position,
)
from slackwater.protocol.log_fields import set_log_fields
from slackwater.settings.errors import CommandConfigError, unreachable
from slackwater.settings.loading import LoadedSettings, load_settings, secrets_of, take_secrets
from slackwater.settings.model import Settings

if TYPE_CHECKING:  # an extra brings it
    import psycopg

NO_FLAGS: Mapping[str, object] = {}

PROGRAM: Final = "slackwater"
ANSWERS_WITHIN: Final = timedelta(seconds=4)
"""How long commands that show health wait for Kafka and Redis, and all commands for PostgreSQL.

A server that was silent for this time is not asked again for the same picture, so the fault is named within
ten seconds, even if both are silent.
"""


def search_path_lines(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yields how to make a shell find the program, if it does not: printed commands can be typed then."""
    folder = Path(sys.executable).parent
    is_found = shutil.which(PROGRAM, path=environment.get("PATH", "")) is not None
    if not is_found and (folder / PROGRAM).exists():
        yield f'`{PROGRAM}` is not on the PATH of this shell: export PATH={shlex.quote(str(folder))}:"$PATH"'


Value = TypeVar("Value")


@dataclass(slots=True)
class Invocation:
    """Describes one call of the command by the options of the group."""

    flags: dict[str, object] = field(default_factory=dict)
    """Settings given as flags of the group and of the command, by path; and ``config``, their file."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Where settings are read from. What the command starts does not inherit the variables of secrets."""

    def load(self, flags: Mapping[str, object] = NO_FLAGS) -> LoadedSettings:
        """Returns the settings, with further ones by path on top.

        Raises:
            CommandConfigError: as :func:`slackwater.settings.loading.load_settings` does.
        """
        given = self.flags | dict(flags)
        file = given.pop("config", None)
        return load_settings(given, self.environment, Path(str(file)) if file else None)


FLAGS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "connect.url": ("--connect-url", {"metavar": "URL"}),
    "kafka.bootstrap": ("--bootstrap", {"metavar": "HOST:PORT"}),
    "postgres.url": ("--postgres-url", {"metavar": "URL"}),
    "redis.url": ("--redis-url", {"metavar": "URL"}),
    "run.checkpoint": ("--checkpoint", {"metavar": "DIR"}),
    "source": ("--source", {"metavar": "NAME"}),
    "timeline": ("--timeline", {"type": int}),
}
"""By setting the flag that several commands have for it, and what click has to know of it."""


def setting(path: str, meaning: str, flag: str = "", **options: Any) -> Callable[[Command], Command]:
    """Makes a click option that sets the setting at a path; the command itself does not receive it.

    The flag is that in :data:`FLAGS`, unless another one is given, with what else click has to know.
    """

    def remember(ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
        ctx.ensure_object(Invocation).flags[path] = value

    usual, known = FLAGS.get(path, ("", {}))
    if options.get("is_flag"):
        options["default"] = None
    return click.option(
        flag or usual, expose_value=False, callback=remember, help=meaning, **{**known, **options}
    )


def timeout_option(seconds: int, meaning: str) -> Callable[[Command], Command]:
    """Makes the click option that says how long a command waits, with its default and its help text."""
    kind = click.FloatRange(min=0)
    return click.option("--timeout", type=kind, default=seconds, show_default=True, help=meaning)


POSTGRES_URL = setting("postgres.url", "postgresql://user@host:port/database; secret.")
"""The option of commands that query a database."""
YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
"""The option of commands that ask before they change something."""


def start_command(ctx: click.Context, flags: Mapping[str, object] = NO_FLAGS) -> Settings:
    """Loads the settings and configures logging: the first thing a command does.

    The :func:`setting` options of the command count, and further settings by path.

    Raises:
        CommandConfigError: a setting is unknown or invalid.
    """
    invocation = ctx.ensure_object(Invocation)
    if is_watched() and invocation.environment is os.environ:
        invocation.environment = take_secrets(os.environ)
    loaded = invocation.load(flags)
    set_log_fields(service=ctx.info_name or "")
    configure_logging(loaded.settings.log, secrets_of(loaded.settings))
    return loaded.settings


def required(value: Value | None, path: str, purpose: str) -> Value:
    """Returns the value of a setting a command cannot do without. The purpose is for people.

    Raises:
        CommandConfigError: nobody gave one.
    """
    if value is not None:
        return value
    flag, _ = FLAGS.get(path, ("", {}))
    variable = f"SLACKWATER_{(flag or path).removeprefix('--').replace('-', '_').replace('.', '_').upper()}"
    section, dot, key = path.rpartition(".")
    in_file = f"`{key} = …` under [{section}]" if dot else f"`{key} = …`"
    ways = f"use {flag}, set {variable}," if flag else f"set {variable},"
    hint = f"{ways} or write {in_file} in a slackwater.toml in this folder"
    raise CommandConfigError(f"missing setting {path} ({purpose})", hint)


QUIET = "2"
"""librdkafka writes to standard error by itself: only what is critical, unless everything is to be seen."""


def kafka_options(settings: Settings) -> dict[str, str]:
    """Returns the librdkafka settings of every client. Holds secrets."""
    level = {} if settings.log.level == "debug" else {"log_level": QUIET}
    return level | settings.kafka.client_options()


def kafka_settings(settings: Settings, purpose: str) -> KafkaSettings:
    """Returns how to reach Kafka.

    Raises:
        CommandConfigError: brokers were not given.
    """
    brokers = required(settings.kafka.bootstrap, "kafka.bootstrap", purpose)
    return KafkaSettings(brokers, kafka_options(settings))


def redis_settings(settings: Settings, purpose: str) -> RedisSettings:
    """Returns how to reach Redis.

    Raises:
        CommandConfigError: its address was not given.
    """
    return required(settings.redis.server(), "redis.url", purpose)


Database: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"


@contextmanager
def connected(
    settings: Settings, purpose: str, question: str, *, autocommit: bool = False
) -> Iterator[Database]:
    """Connects with the database of the settings, for errors with the purpose and what the block asks.

    Raises:
        CommandConfigError: Its address was not given.
        UnavailableError: It cannot be reached, or refuses a query in the block.
    """
    import psycopg

    url = required(settings.postgres.url, "postgres.url", purpose)
    try:
        seconds = int(ANSWERS_WITHIN.total_seconds())
        with psycopg.connect(url, connect_timeout=seconds, autocommit=autocommit) as connection:
            yield connection
    except psycopg.Error as error:
        raise unreachable("PostgreSQL", question, " ".join(str(error).split())) from error


def servers(settings: Settings, purpose: str) -> Servers:
    """Returns the servers of a sidecar or a run.

    Raises:
        CommandConfigError: brokers were not given, or an address cannot be used.
    """
    kafka, redis = kafka_settings(settings, purpose), settings.redis.server()
    registry = settings.registry if settings.registry.url else None
    delta, iceberg = (each if each.place else None for each in (settings.delta, settings.iceberg))
    search = settings.opensearch if settings.opensearch.url else None
    return Servers(kafka, redis, registry, settings.postgres.output(), delta, iceberg, search)


def sources_of(settings: Settings) -> tuple[str, ...]:
    """Returns the sources that were named, each once.

    Raises:
        CommandConfigError: none was.
    """
    return settings.sources or (required(settings.source, "source", "which connector to follow"),)


def lsn_of(text: str, option: str) -> int:
    """Reads an LSN that was given with an option.

    Raises:
        InputError: It is none.
    """
    try:
        return parse_position(text)
    except MalformedRecordError as error:
        hint = f"{option} takes the LSN of a commit, as PostgreSQL writes it (0/153D218) or as a number"
        raise InputError(f"{option} {text!r} is no LSN", hint) from error
