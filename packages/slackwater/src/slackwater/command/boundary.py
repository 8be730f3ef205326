"""The boundary of a process: the options that every command has, and errors as lines and exit codes.

Exit codes: 0 success, 1 failure, 2 wrong usage or settings, 3 not ready in time, 130 interrupted.
"""

import atexit
import faulthandler
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import click

_is_watched = False


def watch_process() -> None:
    """Logs whatever ends the process or one of its threads. Call it once, before anything else."""
    global _is_watched
    _is_watched = True
    faulthandler.enable()
    threading.excepthook = _log_thread
    atexit.register(_end_quietly)


def is_watched() -> bool:
    """Returns whether the process runs a command, so that nothing else needs its environment."""
    return _is_watched


def run_command(
    command: click.Command, name: str, arguments: Sequence[str], extras: Mapping[str, str]
) -> int:
    """Runs a command, with the name by which it was called; returns its exit code.

    The extras are packages that need not be installed, each with what installs it, as pip wants it.
    """
    try:
        result = command.main(list(arguments), prog_name=name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _tell("interrupted")
        return 130
    except BrokenPipeError:
        return _without_reader()
    except Exception as error:  # noqa: BLE001 - the process boundary
        is_set = os.environ.get("SLACKWATER_DEBUG", "").lower() not in ("", "0", "false", "no")
        return _report(_named(error, extras), is_debug=is_set or "--debug" in arguments)


def _named(error: Exception, extras: Mapping[str, str]) -> Exception:
    """Says what to install if that is all that is wrong."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None or error.name not in extras:
        return error
    from slackwater.settings.errors import CommandConfigError, installing

    hint = f"install it with: {installing(extras[error.name])}"
    missing = CommandConfigError(f"{error.name} is not installed", hint)
    missing.__cause__ = error
    return missing


def _report(error: Exception, *, is_debug: bool) -> int:
    if is_debug:
        _tell("".join(traceback.format_exception(error)).rstrip())
    is_expected = type(error).__module__.startswith("slackwater") or isinstance(error, OSError)
    text = str(error) if is_expected else f"{type(error).__name__}: {error}"
    first, *more = text.splitlines() or [type(error).__name__]
    _tell(f"error: {first}")
    for line in more:
        _tell(f"       {line}")
    if not is_expected and not is_debug:
        _tell("       (unexpected; run again with --debug for the traceback)")
    code = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1


def _tell(line: str) -> None:
    """Writes to standard error, unless nobody reads it or its disk is full."""
    from slackwater.observe.logs import hidden

    with suppress(OSError):
        click.echo(hidden(line), err=True)


def _log_thread(failed: threading.ExceptHookArgs) -> None:
    """Logs why a thread ended, in place of a traceback on standard error, which nobody may read."""
    if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
        name = "a thread" if failed.thread is None else f"thread {failed.thread.name}"
        logging.getLogger(__name__).error("%s ended: %r", name, failed.exc_value, exc_info=failed.exc_value)


def _end_quietly() -> None:
    """Hides what DuckDB's binding reports about its own types while the interpreter shuts down."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _without_reader() -> int:
    """Stops writing, even at exit, because the reader of the output is gone, as with ``| head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


Command = TypeVar("Command", bound=Callable[..., Any])


def options(*adds: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Returns what adds options and arguments to a command, whose help text shows them in this order."""

    def add(command: Command) -> Command:
        for each in reversed(adds):
            command = each(command)
        return command

    return add


def _general(flag: str, **known: Any) -> Callable[[Command], Command]:
    path = flag.removeprefix("--").replace("-", ".")

    def remember(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        from slackwater.command.invocation import Invocation  # takes 0.2 s; a help text needs none

        ctx.ensure_object(Invocation).flags[path] = value

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
