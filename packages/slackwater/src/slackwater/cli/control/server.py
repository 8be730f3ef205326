"""Runs the control plane in a process of its own, which ends with the sidecar that has started it."""

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Final

from slackwater.cli.control.access import RateLimit, is_loopback
from slackwater.cli.doctor.examination import open_sources
from slackwater.cli.signs import ANSWERS_WITHIN
from slackwater.command.conversion import kafka_settings, sources_of
from slackwater.command.tokens import Gate
from slackwater.cuts import KafkaCutLog, KafkaLeaseLog, KafkaPipelineLog
from slackwater.observe.logs import configure_logging
from slackwater.protocol import SystemClock
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.loading import secrets_of
from slackwater.settings.model import ControlSection, Settings

if TYPE_CHECKING:  # sidecars import this module, and only its process needs a web server
    import uvicorn
    from starlette.types import ASGIApp
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from slackwater.cli.control.picture import ClusterPicture

_log = logging.getLogger(__name__)

_BURST_SECONDS = 5
"""So many seconds' requests may come at once: a page asks for all that it shows when it is opened."""
_END_SECONDS = 1.0
_RESTART_SECONDS = 1.0


class ControlPlane:
    """The process that answers; started again when it ends by itself. For one thread.

    It is no thread of the sidecar: the sidecar's loops look for no cyclic garbage, and must not wait for
    whoever looks at a page.

    Args:
        settings: Everything; ``control.listen`` is given.

    Raises:
        CommandConfigError: nobody may listen there, or the file of tokens cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        check_control(settings.control)
        self._settings = settings
        self._socket = _listening(settings.control)
        scheme = "http" if settings.control.certificate is None else "https"
        host, port = self._socket.getsockname()[:2]
        self.address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        """Where the page is."""
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._keep_alive, name="control-plane", daemon=True)

    def start(self) -> None:
        """Starts it; connections are taken from now on, and answered in a moment."""
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
    plane = ControlPlane(settings)
    plane.start()
    try:
        yield plane
    finally:
        plane.close()


def check_control(control: ControlSection) -> None:
    """Refuses settings that do not fit each other, or let the whole network read.

    Raises:
        CommandConfigError: the address is not of this machine only, and neither tokens nor certificates of
            clients are asked for; a file is missing, or the file of tokens cannot be used.
        ModuleNotFoundError: the web server is not installed.
    """
    for module in ("starlette", "uvicorn"):  # only the process imports them, and nobody waits for its errors
        if find_spec(module) is None:
            raise ModuleNotFoundError(module, name=module)
    Gate(control.tokens)
    if (control.certificate is None) != (control.key is None):
        problem = "control.certificate and control.key must be set together, and one is missing"
        raise CommandConfigError(problem, "set both, or neither for HTTP without TLS")
    if control.client_ca is not None and control.certificate is None:
        problem = "control.client_ca requires client certificates, which need TLS"
        raise CommandConfigError(problem, "also set control.certificate and control.key")
    host = _address(control)[0]
    if control.tokens is None and control.client_ca is None and not is_loopback(host):
        raise CommandConfigError(
            f"control.listen is {control.listen}, so other machines could read everything",
            "listen on 127.0.0.1, or set control.tokens (see `slackwater token`) or control.client_ca",
        )


def _address(control: ControlSection) -> tuple[str, int]:
    host, colon, port = (control.listen or "").rpartition(":")
    if not colon or not port.isdigit() or int(port) >= 1 << 16:
        raise CommandConfigError(f"control.listen is {control.listen}", "expected host:port, port 0 for any")
    return host.strip("[]") or "127.0.0.1", int(port)


def _listening(control: ControlSection) -> socket.socket:
    host, port = _address(control)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        hint = "set control.listen to host:port of this machine, port 0 for any free port"
        raise CommandConfigError(
            f"the control plane cannot listen at {control.listen}: {error}", hint
        ) from error


_MAX_CONNECTIONS: Final = 128
_SAMPLE_SECONDS = 30.0
"""From one sample of delays to the next: those that are kept are of six hours then."""


def _end(process: BaseProcess) -> None:
    process.join(_END_SECONDS)
    if process.is_alive():
        process.kill()
    process.join()


def _connection_protocol() -> "type[H11Protocol]":
    """Returns what handles connections; the web server is imported in the process only."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Web(H11Protocol):
        """When there are too many connections, the one that has asked for nothing for longest is ended."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.since = self.loop.time()
            others = (each for each in self.connections if isinstance(each, Web) and each is not self)
            silent = [each for each in others if each.cycle is None or each.cycle.response_complete]
            if len(self.connections) > _MAX_CONNECTIONS and silent:
                oldest = min(silent, key=lambda each: each.since)
                self.connections.discard(oldest)
                oldest.transport.abort()

    return Web


def web_config(control: ControlSection, app: "ASGIApp") -> "uvicorn.Config":
    """Returns how the web server answers."""
    import uvicorn

    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # or clients could say that they are another one
        lifespan="off",
        ws="none",
        loop="asyncio",
        http=_connection_protocol(),
        timeout_keep_alive=30,
        limit_concurrency=2 * _MAX_CONNECTIONS,  # requests that are being answered are never ended
        h11_max_incomplete_event_size=16 << 10,
        ssl_certfile=control.certificate,
        ssl_keyfile=control.key,
        ssl_ca_certs=None if control.client_ca is None else str(control.client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if control.client_ca is None else ssl.CERT_REQUIRED,
    )


def _serve(settings: Settings, listening: socket.socket, parent: Connection) -> None:
    """Answers until the parent process ends; the body of the process."""
    import uvicorn

    from slackwater.cli.control.api import make_app
    from slackwater.cli.control.picture import ClusterPicture

    for number in (signal.SIGINT, signal.SIGTERM):  # which may go to all processes: the parent ends this one
        signal.signal(number, signal.SIG_IGN)
    configure_logging(settings.log, secrets_of(settings))
    gc.freeze()
    control, kafka, clock = (
        settings.control,
        kafka_settings(settings, "where pipelines register"),
        SystemClock(),
    )
    picture = ClusterPicture(
        KafkaPipelineLog(kafka.bootstrap, kafka=kafka.options, timeout=ANSWERS_WITHIN),
        KafkaLeaseLog(kafka),
        lambda source: KafkaCutLog(source, kafka.bootstrap, kafka=kafka.options, timeout=ANSWERS_WITHIN),
        lambda source: open_sources(settings, source),
        sources_of(settings),
        clock,
        settings,
    )
    limit = RateLimit(control.requests_per_second, int(control.requests_per_second * _BURST_SECONDS), clock)
    app = make_app(picture, Gate(control.tokens), limit, has_tls=control.certificate is not None)
    server = uvicorn.Server(web_config(control, app))
    # Not in the main thread, where it would take signals for itself.
    threading.Thread(target=_run, args=(server, listening), name="http", daemon=True).start()
    threading.Thread(target=_remember, args=(picture,), name="delays", daemon=True).start()
    with suppress(EOFError, OSError):
        parent.recv()  # ends when the other end of the pipe is closed, as it is when its holder is killed
    os._exit(0)


def _remember(picture: "ClusterPicture") -> None:
    """Takes a sample of all delays now and then, whether anybody looks or not."""
    while True:
        picture.remember_delays()
        threading.Event().wait(_SAMPLE_SECONDS)


def _run(server: "uvicorn.Server", listening: socket.socket) -> None:
    """Answers; a process that does so no more has to end, to be started again."""
    try:
        server.run([listening])
    except BaseException:
        _log.exception("the control plane has a fault")
        raise
    finally:
        os._exit(1)
