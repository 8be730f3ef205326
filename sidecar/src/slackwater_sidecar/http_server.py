"""Answers metrics, health, readiness and status over HTTP. Reads only; runs nobody's code."""

import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import orjson
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from slackwater.command.tokens import Gate
from slackwater.protocol import ConfigError, OpenTransaction, format_position
from slackwater.settings.model import HttpSection
from slackwater_sidecar.metrics import sidecar_registry
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.settings import HttpSettings
from slackwater_sidecar.status import describe_open

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_CLIENT_SECONDS = 5.0
MAX_CONNECTIONS: Final = 32
"""At once: a few probes, scrapes and people. Each costs a thread."""
BLOCKED_AFTER = timedelta(seconds=30)
"""A loop that has not turned for this long is not healthy; one turn may wait for Kafka for seconds."""
_JSON = "application/json"
_PROBES = frozenset({"/healthz", "/readyz"})
_LOCAL_DOMAINS = (".svc", ".local", ".internal", ".localhost", ".localdomain")
"""Domains that nobody can register, so that no page on the internet can have a name in them."""

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


class Pages(Protocol):
    """Answers requests; called by any thread."""

    def answer(self, path: str) -> Answer:
        """Returns the page at a path, without query."""
        ...


class SidecarPages:
    """Answers requests for the pages of one process. Thread-safe.

    Args:
        monitors: The sources it follows.
    """

    def __init__(self, monitors: Sequence[SourceMonitor]) -> None:
        self._monitors = monitors
        self._registry = sidecar_registry(monitors)
        self._pages: Mapping[str, Callable[[], Answer]] = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status": self._status,
        }

    def answer(self, path: str) -> Answer:
        """Returns the page at a path, without query; one that lists the pages when there is none."""
        page = self._pages.get(path)
        if page is None:
            return json_answer(HTTPStatus.NOT_FOUND, {"error": f"no page {path}", "pages": list(self._pages)})
        return page()

    def _metrics(self) -> Answer:
        return HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    def _healthz(self) -> Answer:
        return health_answer(
            {m.source: m.silent_seconds for m in self._monitors if not m.has_ended}, BLOCKED_AFTER
        )

    def _readyz(self) -> Answer:
        return readiness_answer({m.source: m.not_ready() for m in self._monitors})

    def _status(self) -> Answer:
        return json_answer(HTTPStatus.OK, {"sources": [_source(m) for m in self._monitors]})


def _source(monitor: SourceMonitor) -> dict[str, object]:
    status, cut = monitor.status, monitor.newest
    return {
        "source": monitor.source,
        "state": str(monitor.state),
        "detail": monitor.failure or monitor.waits_for or (status.detail if status else ""),
        "timeline": status.timeline if status else None,
        "frontier": format_position(cut.lsn) if cut else None,
        "newest_commit_ms": cut.commit_ts_ms if cut else None,
        "lag_ms": status.lag_ms if status else None,
        "event_count": cut.event_count if cut else 0,
        "records_read": monitor.records,
        "records_per_second": round(status.records_per_second) if status else 0,
        "silent_seconds": round(monitor.silent_seconds, 3),
        "kafka_error": status.kafka_error if status else None,
        "redis_error": status.redis_error if status else None,
        **asdict(monitor.gauges),
        "open_transactions": [_open(t) for t in (status.open if status else ())],
    }


def _open(transaction: OpenTransaction) -> dict[str, object]:
    lsn = transaction.commit_lsn
    return {
        "xid": transaction.xid,
        "commit_lsn": format_position(lsn) if lsn else None,
        "since_ms": transaction.since_ms,
        "expected": transaction.expected,
        "received": transaction.received,
        "places": {place: list(offsets) for place, offsets in transaction.places.items()},
        "text": describe_open(transaction),
    }


def health_answer(silent: Mapping[str, float], limit: timedelta) -> Answer:
    """Returns the page /healthz.

    Args:
        silent: For each loop of the process the seconds since it last turned.
        limit: A loop that has been silent for longer is not healthy.
    """
    longest = limit.total_seconds()
    blocked = {name: seconds for name, seconds in silent.items() if seconds > longest}
    return _probe_answer(
        "healthy", {name: f"its loop has been blocked for {t:.0f} s" for name, t in blocked.items()}
    )


def readiness_answer(reasons: Mapping[str, str | None]) -> Answer:
    """Returns the page /readyz.

    Args:
        reasons: For each loop of the process why it is not ready; None if it is.
    """
    return _probe_answer("ready", {name: reason for name, reason in reasons.items() if reason is not None})


def _probe_answer(word: str, why_not: Mapping[str, str]) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK
    return json_answer(status, {word: not why_not, "why_not": why_not})


def json_answer(status: HTTPStatus, content: Mapping[str, object]) -> Answer:
    """Returns an object as a page."""
    return status, _JSON, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def http_settings(address: str | None, section: HttpSection) -> HttpSettings | None:
    """Returns where pages are, and for whom; None: nowhere."""
    if address is None:
        return None
    return HttpSettings(
        address=address,
        tokens=section.tokens,
        certificate=section.certificate,
        key=section.key,
        client_ca=section.client_ca,
    )


class HttpServer:
    """Answers on one address, in threads of its own, from :meth:`start` to :meth:`close`.

    Args:
        settings: Where, and for whom.
        pages: What to answer.

    Raises:
        ConfigError: the address is malformed, in use or not this machine's, or the certificate or its
            key cannot be used.
        CommandConfigError: the file of tokens cannot be used.
    """

    def __init__(self, settings: HttpSettings, pages: Pages) -> None:
        address = settings.address
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise _cannot_listen(address, "expected host:port")
        gate, context = Gate(settings.tokens), _tls(settings)
        try:
            handler = _handler(pages, gate, has_tls=context is not None)
            self._server = _Server((host.strip("[]") or "127.0.0.1", int(port)), handler)
        except (OSError, OverflowError) as error:
            raise _cannot_listen(address, str(error)) from error
        if context is not None:
            # The handshake is for the thread of the connection: who says nothing holds up nobody else.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._scheme = "http" if context is None else "https"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="slackwater-http", daemon=True
        )

    @property
    def address(self) -> str:
        """``http://host:port`` with the port that was chosen, or ``https``."""
        host, port = self._server.server_address[:2]
        return f"{self._scheme}://{host!s}:{port}"

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()
        logger.info("answering at %s", self.address, extra={"address": self.address})

    def close(self) -> None:
        """Stops answering; open answers are not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: deque[socket.socket] = deque()
        """Connections that are being answered, the oldest first; for the thread that accepts only."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread; ends the oldest connection when there are too many.

        So clients that connect and say nothing hold up neither a probe nor a scrape.
        """
        self._open = deque(each for each in self._open if each.fileno() != -1)
        self._open.append(request)
        if len(self._open) > MAX_CONNECTIONS:
            with suppress(OSError):  # its thread has just closed it
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs what failed instead of writing it to standard error; a client that goes away is no event."""
        logger.debug("request from %s failed", client_address, exc_info=True)


def _cannot_listen(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"cannot listen for HTTP at {address}: {reason}",
        "set sidecar.http to host:port of this machine, port 0 for any free port",
    )


def _tls(settings: HttpSettings) -> ssl.SSLContext | None:
    """Returns what encrypts connections; None: nothing does."""
    if (settings.certificate is None) != (settings.key is None):
        problem = "http.certificate and http.key need each other, and one is missing"
        raise ConfigError(problem, "give both, or none for HTTP without TLS")
    if settings.certificate is None:
        if settings.client_ca is not None:
            problem = "http.client_ca asks clients for certificates, which needs TLS"
            raise ConfigError(problem, "set http.certificate and http.key, too")
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=settings.client_ca)
        context.load_cert_chain(settings.certificate, settings.key)
    except OSError as error:  # SSLError is one
        problem = f"http.certificate {settings.certificate}, its key or http.client_ca cannot be used"
        raise ConfigError(problem, str(error)) from error
    context.verify_mode = ssl.CERT_NONE if settings.client_ca is None else ssl.CERT_REQUIRED
    return context


def is_local_name(host: str) -> bool:
    """Returns whether a Host header names a server by its address, or by a name of a private network.

    A page on the internet can let its own name stand for any address (DNS rebinding), and would then be
    allowed to read the answers.
    """
    name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    with suppress(ValueError):
        ip_address(name)
        return True
    return "." not in name or name.endswith(_LOCAL_DOMAINS) or name == socket.getfqdn().lower()


def _refused(path: str, pages: Pages, status: HTTPStatus, reason: str) -> Answer:
    """Answers those who may not see pages: probes get no reasons."""
    if path not in _PROBES:
        return json_answer(status, {"error": reason})
    status, *_ = pages.answer(path)
    return json_answer(status, {"ok": status is HTTPStatus.OK})


def _answer(path: str, pages: Pages, *, is_known: bool, is_misdirected: bool) -> Answer:
    if is_misdirected:
        reason = "this name is not served; ask the address, or set http.tokens or http.certificate"
        return _refused(path, pages, HTTPStatus.MISDIRECTED_REQUEST, reason)
    if not is_known:
        return _refused(path, pages, HTTPStatus.UNAUTHORIZED, f"{path} is shown only to clients with a token")
    return pages.answer(path)


def _handler(pages: Pages, gate: Gate, *, has_tls: bool) -> type[BaseHTTPRequestHandler]:
    is_open = not (gate.has_tokens or has_tls)

    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_SECONDS
        server_version = "slackwater"
        sys_version = ""

        def do_GET(self) -> None:
            client = gate.admit(self.headers.get("Authorization", ""), self.client_address[0])
            path = self.path.partition("?")[0]
            is_misdirected = is_open and not is_local_name(self.headers.get("Host", ""))
            status, content_type, body = _answer(
                path, pages, is_known=client.role is not None, is_misdirected=is_misdirected
            )
            self.send_response(status)
            if status is HTTPStatus.UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            logger.debug(format, *args)

    return Handler
