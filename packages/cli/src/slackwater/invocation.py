"""What all commands share: flags that set settings, loading them, logging, stopping."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from slackwater.errors import MissingSettingError

if TYPE_CHECKING:  # the settings model costs 0.2 s to import; help texts do not need it
    from slackwater.loading import LoadedSettings
    from slackwater.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Invocation:
    """One call of the command, as the group's options describe it."""

    config: str | None = None
    flags: dict[str, object] = field(default_factory=dict)
    """Settings given as flags, by path."""
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
    """A click option that sets a setting; the command receives all of them in ``settings_flags``."""

    def remember(ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
        ctx.meta.setdefault("slackwater.flags", {})[path] = value

    if options.get("is_flag"):
        options["default"] = None
    return click.option(flag, expose_value=False, callback=remember, **options)


def given_flags(ctx: click.Context) -> dict[str, object]:
    """What the command's :func:`setting` options were given, by path."""
    return dict(ctx.meta.get("slackwater.flags", {}))


def required(value: str | None, path: str, flag: str, purpose: str) -> str:
    """The value of a setting a command cannot do without.

    Raises:
        MissingSettingError: nobody gave one.
    """
    if value is None:
        variable = f"SLACKWATER_{flag.removeprefix('--').replace('-', '_').upper()}"
        raise MissingSettingError(path, flag, variable, purpose)
    return value


@dataclass(slots=True)
class StopRequest:
    """Whether, and by which signal, the process was asked to stop."""

    event: threading.Event = field(default_factory=threading.Event)
    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 0 otherwise: being asked to stop is no failure."""
        return 130 if self.signal_number == signal.SIGINT else 0


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turns the first SIGINT or SIGTERM into a request; a second one ends the process as usual."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _frame: FrameType | None) -> None:
        request.signal_number = number
        request.event.set()
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)

    for number in before:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM unwind the stack as Ctrl-C does, for commands that have to tidy up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
