"""The options that every command has; whatever is heavy is imported when one of them is given."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def options(*adds: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Returns what adds options and arguments to a command, whose help text shows them in this order."""

    def add(command: Command) -> Command:
        for each in reversed(adds):
            command = each(command)
        return command

    return add


def _general(flag: str, **known: Any) -> Callable[[Command], Command]:
    name = flag.removeprefix("--").replace("-", "_")

    def remember(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        from slackwater.command.invocation import Invocation  # takes 0.2 s; a help text needs none

        invocation = ctx.ensure_object(Invocation)
        if name == "config":
            invocation.config = value
        else:
            invocation.flags[name.replace("_", ".", 1)] = value

    return click.option(flag, expose_value=False, callback=remember, **known)


general_options = options(
    _general("--config", metavar="FILE", help="Settings file.  [default: slackwater.toml, if it exists]"),
    _general(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Lowest level to log."
    ),
    _general("--log-file", metavar="FILE", help="Write the log to this file instead of to standard error."),
    _general("--log-format", type=click.Choice(["text", "json"]), help="Format of the log."),
    click.option(
        "--debug", is_flag=True, expose_value=False, help="Show tracebacks; same as SLACKWATER_DEBUG=1."
    ),
)
"""The settings file, how to log, and tracebacks, for a command or a group of commands."""
