"""Begins a command: flags become settings, settings are loaded, logging is configured."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from slackwater.command.boundary import is_watched
from slackwater.observe.logs import configure_logging
from slackwater.protocol.log_fields import set_log_fields
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.loading import LoadedSettings, load_settings, take_secrets
from slackwater.settings.model import Settings

NO_FLAGS: Mapping[str, object] = {}

PROGRAM: Final = "slackwater"


def search_path_lines(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yields how to make a shell find the program, if it does not: printed commands can be typed then."""
    folder = Path(sys.executable).parent
    is_found = shutil.which(PROGRAM, path=environment.get("PATH", "")) is not None
    if not is_found and (folder / PROGRAM).exists():
        yield f'`{PROGRAM}` is not on the PATH of this shell: export PATH={shlex.quote(str(folder))}:"$PATH"'


Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")


@dataclass(slots=True)
class Invocation:
    """Describes one call of the command by the options of the group."""

    config: str | None = None
    flags: dict[str, object] = field(default_factory=dict)
    """Settings given as flags of the group and of the command, by path."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Where settings are read from. What the command starts does not inherit the variables of secrets."""

    def load(self, flags: Mapping[str, object] = NO_FLAGS) -> LoadedSettings:
        """Returns the settings, with further ones by path on top.

        Raises:
            CommandConfigError: as :func:`slackwater.settings.loading.load_settings` does.
        """
        config = Path(self.config) if self.config else None
        return load_settings(self.flags | dict(flags), self.environment, config)


def setting(path: str, flag: str, **options: Any) -> Callable[[Command], Command]:
    """Makes a click option that sets a setting; the command itself does not receive it."""

    def remember(ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
        ctx.ensure_object(Invocation).flags[path] = value

    if options.get("is_flag"):
        options["default"] = None
    return click.option(flag, expose_value=False, callback=remember, **options)


def start_command(ctx: click.Context, flags: Mapping[str, object] = NO_FLAGS) -> Settings:
    """Loads the settings and configures logging: the first thing a command does.

    Args:
        ctx: The command's context; its :func:`setting` options count.
        flags: Further settings by path.

    Raises:
        CommandConfigError: a setting is unknown or invalid.
    """
    invocation = ctx.ensure_object(Invocation)
    if is_watched() and invocation.environment is os.environ:
        invocation.environment = take_secrets(os.environ)
    loaded = invocation.load(flags)
    set_log_fields(service=ctx.info_name or "")
    configure_logging(loaded.settings.log, loaded.secrets)
    return loaded.settings


def required(value: Value | None, path: str, flag: str, purpose: str) -> Value:
    """Returns the value of a setting a command cannot do without.

    Raises:
        CommandConfigError: nobody gave one.
    """
    if value is not None:
        return value
    variable = f"SLACKWATER_{flag.removeprefix('--').replace('-', '_').upper()}"
    section, dot, key = path.rpartition(".")
    in_file = f"`{key} = …` under [{section}]" if dot else f"`{key} = …`"
    hint = f"use {flag}, set {variable}, or write {in_file} in a slackwater.toml in this folder"
    raise CommandConfigError(f"missing setting {path} ({purpose})", hint)
