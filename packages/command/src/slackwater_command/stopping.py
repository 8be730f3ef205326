"""Turns signals into requests to stop, and leaves a line in the log however a program ends."""

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import FrameType

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_MORE = 0
"""No signal has this number."""


@dataclass(slots=True)
class StopRequest:
    """Tells if, and by which signal, the process was asked to stop."""

    event: threading.Event = field(default_factory=threading.Event)
    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 0 otherwise: being asked to stop is no failure."""
        return 130 if self.signal_number == signal.SIGINT else 0


@contextmanager
def stop_on_signals(what: str) -> Iterator[StopRequest]:
    """Turns the first SIGINT, SIGTERM or SIGHUP into a request; the same signal again ends the process.

    However the block ends by itself, a line in the log says so; ``nohup`` stays in force. A second signal is
    left to the kernel, since a handler in Python may have to wait until the main thread gets a lock.

    Args:
        what: What runs within the block.
    """
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [n for n in _SIGNALS if n != signal.SIGHUP or before[n] is not signal.SIG_IGN]
    # A handler may interrupt anything that holds a lock: a write to the log, a wait for the event. So another
    # thread does what takes locks, and is there beforehand, since starting one takes locks, too.
    signals: SimpleQueue[int] = SimpleQueue()
    teller = threading.Thread(target=_tell_requests, args=(what, request, signals), daemon=True)
    teller.start()

    def handle(number: int, _frame: FrameType | None) -> None:
        request.signal_number = number
        signal.signal(number, signal.SIG_DFL)
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
        why = "everything is processed" if asked is None else f"asked by {signal.Signals(asked).name}"
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
        _log.info("%s was asked to stop by %s; the same signal again ends it immediately", what, name)


def _tell_failure(what: str, error: BaseException) -> None:
    """Logs why a program failed, unless the boundary of the process says so on standard error anyway.

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
