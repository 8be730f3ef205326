"""Things that all commands share: flags that set settings, loading them, logging, stopping."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from slackwater.errors import CommandConfigError

if TYPE_CHECKING:  # the settings model costs 0.2 s to import; help texts do not need it
    from slackwater.loading import LoadedSettings
    from slackwater.settings import Settings

_log = logging.getLogger(__name__)

NO_FLAGS: Mapping[str, object] = {}

Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")


@dataclass(slots=True)
class Invocation:
    """One call of the command, as the group's options describe it."""

    config: str | None = None
    flags: dict[str, object] = field(default_factory=dict)
    """Settings given as flags of the group and of the command, by path."""
    is_debug: bool = False

    def load(self, flags: Mapping[str, object]) -> "LoadedSettings":
        """The settings, with a command's own flags on top; see :func:`slackwater.loading.load_settings`."""
        from slackwater.loading import load_settings

        config = Path(self.config) if self.config else None
        return load_settings(self.flags | dict(flags), os.environ, config)

    def start(self, flags: Mapping[str, object]) -> "Settings":
        """Loads the settings and configures logging: the first thing a command does."""
        from slackwater.logs import configure_logging

        settings = self.load(flags).settings
        configure_logging(settings.log)
        return settings


def setting(path: str, flag: str, **options: Any) -> Callable[[Command], Command]:
    """Makes a click option that sets a setting; the command itself does not receive it."""

    def remember(ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
        ctx.ensure_object(Invocation).flags[path] = value

    if options.get("is_flag"):
        options["default"] = None
    return click.option(flag, expose_value=False, callback=remember, **options)


def start_command(ctx: click.Context, flags: Mapping[str, object] = NO_FLAGS) -> "Settings":
    """Loads the settings and configures logging: the first thing a command does.

    Args:
        ctx: Of the command; its :func:`setting` options count.
        flags: Further settings by path.
    """
    return ctx.ensure_object(Invocation).start(flags)


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
    hint = f"give {flag}, set {variable}, or write {in_file} in slackwater.toml"
    raise CommandConfigError(f"missing setting {path} ({purpose})", hint)


@dataclass(slots=True)
class StopRequest:
    """Whether, and by which signal, the process was asked to stop."""

    event: threading.Event = field(default_factory=threading.Event)
    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 0 otherwise: being asked to stop is no failure."""
        return 130 if self.signal_number == signal.SIGINT else 0


_EXTRAS = ("slackwater_devstack", "slackwater_testing")
"""Packages that only extras of the command bring."""


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around the imports of a command that belongs to an extra.

    Raises:
        CommandConfigError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in _EXTRAS:
            hint = f"it comes with: pip install 'slackwater[{extra}]'"
            raise CommandConfigError(f"{error.name} is not installed", hint) from error
        raise


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_MORE = 0
"""No signal has this number."""


@contextmanager
def stop_on_signals(what: str) -> Iterator[StopRequest]:
    """Turns the first SIGINT, SIGTERM or SIGHUP into a request; a second one ends the process as usual.

    However the block ends, a line in the log says so; ``nohup`` stays in force.

    Args:
        what: What runs within the block.
    """
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in _STOPPING}
    handled = [n for n in _STOPPING if n != signal.SIGHUP or before[n] is not signal.SIG_IGN]
    # A handler may interrupt anything that holds a lock: a write to the log, a wait for the event. So another
    # thread does what takes locks, and is there beforehand, since starting one takes locks, too.
    signals: SimpleQueue[int] = SimpleQueue()
    teller = threading.Thread(target=_tell_requests, args=(what, request, signals), daemon=True)
    teller.start()

    def handle(number: int, _frame: FrameType | None) -> None:
        request.signal_number = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signals.put(number)

    for number in handled:
        signal.signal(number, handle)
    try:
        yield request
    except BaseException as error:
        _tell_failure(what, error)
        raise
    else:
        asked = request.signal_number
        why = "all that was there is processed" if asked is None else f"asked by {signal.Signals(asked).name}"
        _log.info("%s ended: %s", what, why)
    finally:
        for number in handled:
            signal.signal(number, before[number])
        signals.put(_NO_MORE)
        teller.join()


def _tell_requests(what: str, request: StopRequest, signals: "SimpleQueue[int]") -> None:
    while (number := signals.get()) != _NO_MORE:
        request.event.set()
        name = signal.Signals(number).name
        _log.info("%s is asked to stop by %s; the same signal again ends it at once", what, name)


def _tell_failure(what: str, error: BaseException) -> None:
    """Unless the log is standard error, where the process boundary tells of nearly everything.

    Not of a broken pipe, be it of our output or to another process: click ends quietly because of it.
    """
    is_told = any(getattr(handler, "stream", None) is sys.stderr for handler in logging.getLogger().handlers)
    if isinstance(error, BrokenPipeError | SystemExit) or not is_told:
        is_known = type(error).__module__.startswith("slackwater") or isinstance(error, KeyboardInterrupt)
        reason = f"{type(error).__name__}: {error}"
        _log.error("%s ended: %s", what, reason, exc_info=None if is_known else error)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM unwind the stack as Ctrl-C does, for commands that have to tidy up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
