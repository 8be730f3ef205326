"""The options that every command has; whatever is heavy is imported when one of them is given."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def general_options(command: Command) -> Command:
    """Adds the settings file, how to log, and tracebacks to a command or to a group of commands."""
    options = [
        _general("--config", metavar="FILE", help="Settings file.  [default: slackwater.toml, if it exists]"),
        _general(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            help="Lowest level to log.",
        ),
        _general(
            "--log-file", metavar="FILE", help="Write the log to this file instead of to standard error."
        ),
        _general("--log-format", type=click.Choice(["text", "json"]), help="Format of the log."),
        click.option(
            "--debug", is_flag=True, expose_value=False, help="Show tracebacks; same as SLACKWATER_DEBUG=1."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _general(flag: str, **options: Any) -> Callable[[Command], Command]:
    name = flag.removeprefix("--").replace("-", "_")

    def remember(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        from slackwater.command.invocation import Invocation  # takes 0.2 s; a help text needs none

        invocation = ctx.ensure_object(Invocation)
        if name == "config":
            invocation.config = value
        else:
            invocation.flags[name.replace("_", ".", 1)] = value

    return click.option(flag, expose_value=False, callback=remember, **options)
