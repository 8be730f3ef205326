"""Serves the pages of sidecars, runs and the control plane over HTTP. Imported only by servers.

An application consists of Starlette's routes. Everything else is here, once: the names under which it
answers, the rate of requests, access, and connections.
"""

import asyncio
import gc
import itertools
import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import orjson
import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from slackwater.command.listening import (
    Client,
    Gate,
    HttpSettings,
    Role,
    listening_socket,
    own_name,
    tls_context,
    url_of,
)
from slackwater.protocol import Clock, SystemClock

_log = logging.getLogger(__name__)

JSON = "application/json"
PROMETHEUS = CONTENT_TYPE_PLAIN_0_0_4
MAX_CONNECTIONS: Final = 128
_LARGEST_HEAD = 16 << 10
"""The size limit of a request's first line and headers, in bytes."""
_KEEP_ALIVE_SECONDS = 30
_SILENT_SECONDS = 5.0
"""The time that a client has for the TLS handshake, and then for its first request."""
_BURST_SECONDS = 5
"""A client may send the requests of this many seconds at once: an opened page requests all that it shows."""
_MANY_CLIENTS = 10_000
_COLLECT_AFTER = 1_000
"""Connections; each leaves a kilobyte that refers to itself, and sidecars do not look for such garbage."""
_END_SECONDS = 1.0
_PROBES = frozenset({"/healthz", "/readyz"})
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The reason why a request was not answered."""

    error: str
    hint: str
    """The remedy; empty if the error is clear enough."""


class HttpServer:
    """Answers on one address, in a thread of its own, from :meth:`start` to :meth:`close`.

    Without a socket at which connections are waiting already, it opens one at the address of the settings.

    Raises:
        CommandConfigError: nobody can listen there, or the certificate or the file of tokens cannot be used.
    """

    def __init__(
        self, routes: Sequence[Route], http: HttpSettings, listening: socket.socket | None = None
    ) -> None:
        self._app = make_app(routes, http)
        self._tls = tls_context(http)
        self._socket = listening or listening_socket(http)
        self._is_ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="slackwater-http", daemon=True)
        self.address = url_of(http, self._socket)
        """``http://host:port`` with the port that was chosen, or ``https``."""

    def start(self) -> None:
        """Begins to answer."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        _log.info("answering at %s", self.address, extra={"address": self.address})

    def wait(self) -> None:
        """Returns when nothing is answered any more."""
        self._thread.join()

    def close(self) -> None:
        """Stops answering; open answers are not waited for."""
        with suppress(RuntimeError):  # it has ended because of a fault
            self._loop.call_soon_threadsafe(self._is_ended.set)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        own_name()  # no request has to wait for DNS
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._answer())

    async def _answer(self) -> None:
        config, state = web_config(self._app), ServerState()
        server = await self._loop.create_server(
            lambda: Connection(config, state, {}),
            sock=self._socket,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else _SILENT_SECONDS,
        )
        await self._is_ended.wait()
        server.close()
        for each in state.connections:
            each.transport.abort()


def web_config(app: ASGIApp) -> uvicorn.Config:
    """Returns how connections are treated."""
    return uvicorn.Config(
        app,
        http=Connection,
        loop="none",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # or clients could say that they are another one
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        limit_concurrency=2 * MAX_CONNECTIONS,  # requests that are being answered are never ended
        h11_max_incomplete_event_size=_LARGEST_HEAD,
    )


class Connection(H11Protocol):
    """If there are too many connections, the one that has been idle for longest is ended."""

    _ended = itertools.count(1)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts the connection, and ends it later if no request comes."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._limit = self.loop.call_later(_SILENT_SECONDS, self._end_if_silent)
        others = (each for each in self.connections if isinstance(each, Connection) and each is not self)
        silent = [each for each in others if each.cycle is None or each.cycle.response_complete]
        if len(self.connections) > MAX_CONNECTIONS and silent:
            oldest = min(silent, key=lambda each: each._since)  # noqa: SLF001 - one of us
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees its resources."""
        super().connection_lost(exc)
        self._limit.cancel()
        if next(self._ended) % _COLLECT_AFTER == 0 and not gc.isenabled():
            gc.collect()

    def _end_if_silent(self) -> None:
        first_request: object = self.cycle
        if first_request is None:
            self.transport.abort()


def make_app(routes: Sequence[Route], http: HttpSettings, clock: Clock | None = None) -> ASGIApp:
    """Returns the application around routes, each of which says with :func:`refused` which role it needs.

    Raises:
        CommandConfigError: the file of tokens cannot be used.
    """
    handlers = {HTTPException: _http_problem, Exception: _fault}
    return _Guarded(Starlette(routes=[*routes], exception_handlers=handlers), http, clock or SystemClock())


class _Guarded:
    """Identifies clients; answers only under expected names, and limits the requests of each address.

    Probes are answered to everybody, but then they give no reasons.
    """

    def __init__(self, app: ASGIApp, http: HttpSettings, clock: Clock) -> None:
        self._app = app
        self._http = http
        self._gate = Gate(http.access.tokens)
        per_second = http.access.requests_per_second
        self._limit = RateLimit(per_second, max(1, int(per_second * _BURST_SECONDS)), clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        address = request.client.host if request.client else "unknown"
        refusal = self._refusal(request.headers.get("host", ""), address)
        if refusal is None:
            request.state.client = self._gate.admit(request.headers.get("authorization", ""), address)
        elif request.url.path in _PROBES:
            request.state.client = Client(address, None)
        await (self._app if refusal is None or request.url.path in _PROBES else refusal)(scope, receive, send)

    def _refusal(self, host: str, address: str) -> Response | None:
        section = self._http.section
        if not self._http.serves(host):
            hint = f"ask its address; other names need {section}.tokens or {section}.certificate"
            return problem(HTTPStatus.MISDIRECTED_REQUEST, "this name is not served", hint)
        wait = self._limit.take(address)
        if wait == 0:
            return None
        hint = f"send fewer requests, or raise {section}.requests_per_second"
        response = problem(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", hint)
        response.headers["Retry-After"] = str(int(wait) + 1)
        return response


class RateLimit:
    """Limits the requests of each client per second; one that was idle may send a burst at once."""

    def __init__(self, per_second: float, burst: int, clock: Clock) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The requests that each client has left, and as of when, in the order of their last requests."""

    def take(self, client: str) -> float:
        """Takes a request; returns the seconds until it is allowed. 0 means now, and only then it counts."""
        now = self._clock.monotonic()
        left, since = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        is_allowed = left >= 1
        self._left[client] = (left - 1 if is_allowed else left), now
        if len(self._left) > _MANY_CLIENTS:
            self._left.popitem(last=False)
        return 0.0 if is_allowed else (1 - left) / self._per_second


def refused(request: Request, role: Role = Role.VIEWER, hint: str = "") -> Response | None:
    """Returns the refusal for clients without a role; None for those that have it.

    The hint is for viewers who would have to be operators.
    """
    client: Client = request.state.client
    if client.role is None:
        hint = "send it as Authorization: Bearer TOKEN; an operator makes one: slackwater token"
        response = problem(HTTPStatus.UNAUTHORIZED, "a token is needed", hint)
        response.headers["WWW-Authenticate"] = "Bearer"
        return response
    if role is Role.OPERATOR and client.role is not Role.OPERATOR:
        return problem(HTTPStatus.FORBIDDEN, f"this needs the role {role}", hint)
    return None


def response_headers() -> dict[str, str]:
    """Returns the headers of every answer: no other site may frame it, or run scripts in it."""
    return {**_HEADERS, "Date": formatdate(usegmt=True)}


def json_response(content: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Returns an object as a page."""
    body = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return Response(body, status, response_headers(), JSON)


def problem(status: HTTPStatus, error: str, hint: str = "") -> Response:
    """Returns a problem as a page."""
    return json_response(Problem(error=error, hint=hint), status)


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - nothing else comes here
    return problem(HTTPStatus(error.status_code), error.detail)


async def _fault(request: Request, error: Exception) -> Response:
    _log.error("a request for %s failed", request.url.path, exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the log of this process")


def service_routes(
    registry: CollectorRegistry,
    silent: Callable[[], Mapping[str, float]],
    blocked_after: timedelta,
    not_ready: Callable[[], Mapping[str, str | None]],
    **pages: Callable[[], object],
) -> list[Route]:
    """Returns the pages of a process that runs loops. All are called by any thread.

    Args:
        registry: Its metrics.
        silent: For each loop, the seconds since it last turned.
        blocked_after: A loop that has been silent for longer is not healthy.
        not_ready: For each loop, why it is not ready; None if it is.
        pages: Further pages in JSON, by their names.
    """

    def healthz() -> Mapping[str, str]:
        return {
            name: f"its loop has been blocked for {seconds:.0f} s"
            for name, seconds in silent().items()
            if seconds > blocked_after.total_seconds()
        }

    def readyz() -> Mapping[str, str]:
        return {name: reason for name, reason in not_ready().items() if reason is not None}

    def metrics() -> Response:
        return Response(generate_latest(registry), HTTPStatus.OK, response_headers(), PROMETHEUS)

    def page(answer: Callable[[], object]) -> Callable[[], Response]:
        return lambda: json_response(answer())

    def nowhere() -> Response:
        hint = f"the pages are /metrics, /healthz, /readyz{''.join(f', /{name}' for name in pages)}"
        return problem(HTTPStatus.NOT_FOUND, "there is no such page", hint)

    return [
        Route("/metrics", _for_viewers(metrics)),
        Route("/healthz", _probe("healthy", healthz)),
        Route("/readyz", _probe("ready", readyz)),
        *(Route(f"/{name}", _for_viewers(page(answer))) for name, answer in pages.items()),
        Route("/{path:path}", _for_viewers(nowhere)),
    ]


def _for_viewers(answer: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        refusal = refused(request)
        return await run_in_threadpool(answer) if refusal is None else refusal

    return endpoint


def _probe(word: str, why_not: Callable[[], Mapping[str, str]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        reasons = await run_in_threadpool(why_not)
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        is_shown = refused(request) is None
        return json_response(
            {word: not reasons, "why_not": reasons} if is_shown else {"ok": not reasons}, status
        )

    return endpoint
