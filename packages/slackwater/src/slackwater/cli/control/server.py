"""Runs the control plane in a separate process, which ends with the sidecar that started it."""

import gc
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from slackwater.command.boundary import watch_process
from slackwater.command.listening import Gate, HttpSettings, listening_socket, tls_context, url_of
from slackwater.observe.logs import configure_logging
from slackwater.settings.loading import secrets_of
from slackwater.settings.model import ControlSection, Settings

if TYPE_CHECKING:  # sidecars import this module, and only its process needs a web server
    from slackwater.cli.control.picture import ClusterPicture

_log = logging.getLogger(__name__)

_END_SECONDS = 1.0
_RESTART_SECONDS = 1.0


class ControlPlane:
    """The process of the control plane, which is restarted if it ends by itself. For one thread.

    It is not a thread of the sidecar, whose loops disable the collection of cyclic garbage and must not
    wait for readers of a page.

    Raises:
        CommandConfigError: nobody may listen there, or the file of tokens or a certificate cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        http = control_settings(settings.control)
        Gate(http.access.tokens)  # nobody sees the errors of the process, which uses these
        tls_context(http)
        self._settings = settings
        self._socket = listening_socket(http)
        self.address = url_of(http, self._socket)
        """Where the page is."""
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._keep_alive, name="control-plane", daemon=True)

    def start(self) -> None:
        """Starts the process; connections are accepted from now on, and answered soon."""
        self._watch.start()

    def close(self) -> None:
        """Ends it."""
        self._stop.set()
        self._watch.join()
        self._socket.close()

    def _keep_alive(self) -> None:
        context = multiprocessing.get_context("spawn")
        while not self._stop.is_set():
            ours, theirs = context.Pipe()
            with ours:
                process = context.Process(
                    target=_serve,
                    args=(self._settings, self._socket, theirs),
                    name="control-plane",
                    daemon=True,
                )
                process.start()
                theirs.close()
                self._wait_for(process)
            _end(process)  # it has seen that the pipe is closed
            if not self._stop.wait(_RESTART_SECONDS):
                _log.error("the control plane ended (exit code %s); starting it again", process.exitcode)

    def _wait_for(self, process: BaseProcess) -> None:
        while not self._stop.is_set() and process.is_alive():
            wait([process.sentinel], 0.1)


@contextmanager
def control_plane(settings: Settings) -> Iterator[ControlPlane | None]:
    """Runs the control plane during the block, if ``control.listen`` says where."""
    if settings.control.listen is None:
        yield None
        return
    with closing(ControlPlane(settings)) as plane:
        plane.start()
        yield plane


def control_settings(control: ControlSection) -> HttpSettings:
    """Returns where the control plane answers, and to whom."""
    return HttpSettings(
        setting="control.listen",
        address=control.listen or "",
        access=control,
        section="control",
        is_private=True,
    )


_SAMPLE_SECONDS = 30.0
"""From one sample of delays to the next: those that are kept are of six hours then."""


def _end(process: BaseProcess) -> None:
    process.join(_END_SECONDS)
    if process.is_alive():
        process.kill()
    process.join()


def _serve(settings: Settings, listening: socket.socket, parent: Connection) -> None:
    """Answers until the parent process ends; the body of the process."""
    from slackwater.cli.control.api import control_routes
    from slackwater.cli.control.picture import ClusterPicture
    from slackwater.command.http_server import HttpServer

    for number in (signal.SIGINT, signal.SIGTERM):  # which may go to all processes: the parent ends this one
        signal.signal(number, signal.SIG_IGN)
    watch_process()
    configure_logging(settings.log, secrets_of(settings))
    gc.freeze()
    picture = ClusterPicture(settings)
    http = control_settings(settings.control)
    routes = control_routes(picture, has_tokens=http.access.tokens is not None)
    threading.Thread(target=_end_with, args=(parent,), name="parent", daemon=True).start()
    threading.Thread(target=_remember, args=(picture,), name="delays", daemon=True).start()
    server = HttpServer(routes, http, listening)
    server.start()
    server.wait()
    os._exit(1)  # a process that answers no more has to end, to be started again


def _end_with(parent: Connection) -> None:
    """Ends the process when the other end of the pipe is closed, as it is when its holder is killed."""
    with suppress(EOFError, OSError):
        parent.recv()
    os._exit(0)


def _remember(picture: "ClusterPicture") -> None:
    """Regularly takes a sample of all delays, even if nobody is looking."""
    while True:
        picture.remember_delays()
        threading.Event().wait(_SAMPLE_SECONDS)
