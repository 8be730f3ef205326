"""Turns signals into requests to stop, and logs how a program ends."""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from queue import Empty, SimpleQueue
from types import FrameType

from slackwater.protocol import UnavailableError

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_MORE = 0
"""No signal has this number."""
_PATIENCE = timedelta(seconds=8)
"""How long the program may take to stop: ten seconds are promised, and supervisors kill it soon after."""


@dataclass(slots=True)
class StopRequest:
    """Knows whether, and by which signal, the process was asked to stop."""

    event: threading.Event = field(default_factory=threading.Event)
    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 0 otherwise: a requested stop is not a failure."""
        return 130 if self.signal_number == signal.SIGINT else 0


@contextmanager
def stop_on_signals(what: str) -> Iterator[StopRequest]:
    """Turns the first SIGINT, SIGTERM or SIGHUP into a request; the same signal again ends the process.

    However the block ends by itself, the log says so; ``nohup`` remains in force. A second signal is left to
    the kernel, since a handler in Python may have to wait until the main thread gets a lock.

    If the block raises an UnavailableError after the request, because a server is away, this is the requested
    end. If it has not ended eight seconds after the request, because a library waits for a server, the
    process exits with the code of the request. So the block has to survive a kill at any time.
    """
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [n for n in _SIGNALS if n != signal.SIGHUP or before[n] is not signal.SIG_IGN]
    # A handler may interrupt anything that holds a lock, such as a write to the log, and does not run while
    # the main thread waits in a library. So another thread, which Python wakes at once, does the rest.
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    is_handled = SimpleQueue[int]()
    teller = threading.Thread(
        target=_tell_requests, args=(what, request, handled, woken, is_handled), daemon=True
    )
    teller.start()

    def handle(number: int, _frame: FrameType | None) -> None:
        request.signal_number = number
        signal.signal(number, signal.SIG_DFL)
        is_handled.put(number)

    for number in handled:
        signal.signal(number, handle)
    woken_before = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    try:
        yield request
    except BaseException as error:
        if request.signal_number is None or not isinstance(error, UnavailableError):
            _tell_failure(what, error)
            raise
        _log.warning("%s ended: asked by %s; %s", what, signal.Signals(request.signal_number).name, error)
    else:
        asked = request.signal_number
        why = "everything is processed" if asked is None else f"asked by {signal.Signals(asked).name}"
        _log.info("%s ended: %s", what, why)
    finally:
        for number in handled:
            signal.signal(number, before[number])
        signal.set_wakeup_fd(woken_before)
        waking.send(bytes([_NO_MORE]))
        teller.join()
        woken.close()
        waking.close()


def _tell_requests(
    what: str,
    request: StopRequest,
    handled: Collection[int],
    woken: socket.socket,
    is_handled: "SimpleQueue[int]",
) -> None:
    told = set[int]()
    with suppress(TimeoutError):
        while (number := woken.recv(1)[0]) != _NO_MORE and number not in told:
            if number not in handled:
                continue
            told.add(number)
            request.signal_number = number
            request.event.set()
            with suppress(Empty):  # the same signal again is then left to the kernel
                is_handled.get(timeout=1)
            name = signal.Signals(number).name
            _log.info("%s was asked to stop by %s; the same signal again ends it immediately", what, name)
            woken.settimeout(_PATIENCE.total_seconds())
        if number == _NO_MORE:
            return
    _leave(what, request)


def _leave(what: str, request: StopRequest) -> None:
    """Ends the process although its main thread hangs; for the rest of the system this is a kill."""
    try:
        found = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - no other name
        while found is not None and not found.f_globals["__name__"].startswith(("slackwater", "__main__")):
            found = found.f_back
        where = (
            "" if found is None else f" while it hangs at line {found.f_lineno} of {found.f_code.co_filename}"
        )
        _log.warning("%s ended: it is left as after a kill%s; the next start continues", what, where)
    finally:
        os._exit(request.exit_code)


def _tell_failure(what: str, error: BaseException) -> None:
    """Logs why a program failed, unless the command writes it to standard error anyway.

    A broken pipe, of the output or to another process, is not logged: click ends quietly because of it.
    """
    is_told = any(getattr(handler, "stream", None) is sys.stderr for handler in logging.getLogger().handlers)
    if isinstance(error, BrokenPipeError | SystemExit) or not is_told:
        is_known = type(error).__module__.startswith("slackwater") or isinstance(error, KeyboardInterrupt)
        reason = f"{type(error).__name__}: {error}"
        _log.error("%s ended: %s", what, reason, exc_info=None if is_known else error)
