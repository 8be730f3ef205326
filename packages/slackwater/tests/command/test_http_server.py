"""What the pages of sidecars and runs and the control plane have in common: to whom they answer, how often.

Seen to fail. Tokens: ``refused`` returns nothing. Names: ``HttpSettings.serves`` agrees.
Silence: ``Connection.connection_made`` ends nobody. Rates: ``RateLimit.take`` never takes from the burst.
"""

import gc
import logging
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slackwater.cli.commands.run import run_routes
from slackwater.cli.control.api import control_routes
from slackwater.cli.control.picture import ClusterPicture
from slackwater.cli.control.server import control_settings
from slackwater.command.http_server import MAX_CONNECTIONS, HttpServer, RateLimit, web_config
from slackwater.command.listening import HttpSettings, Role, listening_socket, new_token
from slackwater.control import Topology, make_topology, measure_delays
from slackwater.pipeline import RunMonitor
from slackwater.protocol import SystemClock
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import ControlSection, HttpSection
from slackwater_lab.secured_servers import Certificate, certificate
from slackwater_sidecar.monitor import SourceMonitor, sidecar_routes

ANYWHERE = "127.0.0.1:0"
SECONDS = 60


class EmptyPicture:
    """A cluster in which nothing runs."""

    def topology(self) -> Topology:
        return make_topology([], {}, 0)

    def delays(self) -> object:
        return measure_delays(self.topology())

    def leases(self) -> tuple[object, ...]:
        return ()


def control_plane(**access: Any) -> HttpServer:
    routes = control_routes(cast(ClusterPicture, EmptyPicture()), has_tokens="tokens" in access)
    return HttpServer(routes, control_settings(ControlSection(listen=ANYWHERE, **access)))


def sidecar(**access: Any) -> HttpServer:
    return HttpServer(sidecar_routes([SourceMonitor("inv", SystemClock())]), http(**access))


def run(**access: Any) -> HttpServer:
    return HttpServer(run_routes(RunMonitor("orders", "inv"), timedelta(minutes=15)), http(**access))


SERVICES: list[Callable[..., HttpServer]] = [sidecar, run]
SERVERS = [*SERVICES, control_plane]


@pytest.fixture(params=SERVERS, ids=lambda make: make.__name__)
def make_server(request: pytest.FixtureRequest) -> Callable[..., HttpServer]:
    return cast(Callable[..., HttpServer], request.param)


@contextmanager
def started(server: HttpServer) -> Iterator[HttpServer]:
    server.start()
    with closing(server):
        yield server


@pytest.fixture
def server(make_server: Callable[..., HttpServer]) -> Iterator[HttpServer]:
    with started(make_server()) as found:
        yield found


def http(**access: Any) -> HttpSettings:
    return HttpSettings(setting="sidecar.http", address=ANYWHERE, access=HttpSection(**access))


def host_and_port(server: HttpServer) -> tuple[str, int]:
    found = urlsplit(server.address)
    return str(found.hostname), int(found.port or 0)


def ask(
    server: HttpServer,
    path: str = "/metrics",
    method: str = "GET",
    *,
    token: str = "",
    context: ssl.SSLContext | None = None,
    **headers: str,
) -> tuple[int, HTTPResponse, bytes]:
    where = host_and_port(server)
    connection = (
        HTTPConnection(*where, timeout=SECONDS)
        if context is None
        else HTTPSConnection(*where, timeout=SECONDS, context=context)
    )
    with closing(connection):
        all_headers = headers | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request(method, path, headers=all_headers)
        response = connection.getresponse()
        return response.status, response, response.read()


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Path, str]:
    token, entry = new_token("prometheus", Role.VIEWER)
    (tmp_path / "tokens.toml").write_text(entry)
    return tmp_path / "tokens.toml", token


def test_metrics_are_answered_at_the_port_that_was_chosen(server: HttpServer) -> None:
    assert not server.address.endswith(":0")
    status, response, body = ask(server, "/metrics?debug=1")
    assert (status, response.getheader("Content-Type", "").partition(";")[0]) == (200, "text/plain")
    assert b"# HELP slackwater_" in body
    assert ask(server, method="HEAD")[::2] == (200, b"")


def test_nothing_can_be_changed_where_only_reading_is_meant(server: HttpServer) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, method=method)[0] == 405


def test_no_answer_may_be_framed_sniffed_or_run_scripts_of_others(server: HttpServer) -> None:
    for path in ("/", "/metrics", "/none"):
        headers = ask(server, path)[1]
        policy = headers.getheader("Content-Security-Policy", "")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers.getheader("X-Content-Type-Options") == "nosniff"
        assert headers.getheader("Date")


def test_with_tokens_nobody_reads_without_one(
    make_server: Callable[..., HttpServer], tokens: tuple[Path, str]
) -> None:
    path, token = tokens
    with started(make_server(tokens=path)) as server:
        status, response, _ = ask(server)
        assert (status, response.getheader("WWW-Authenticate")) == (401, "Bearer")
        assert ask(server, token="slackwater_other")[0] == 401
        assert ask(server, token=token)[0] == 200


LOCAL = ["127.0.0.1:9400", "[::1]:9400", "localhost"]
PRIVATE = ["10.1.2.3:9400", "sidecar:9400", "sidecar.streams.svc.cluster.local.:9400", "sidecar.streams.svc"]
FOREIGN = [
    "rebound.example.com:9400",
    "127.0.0.1.example.com",
    "svc.example.com",
    "examplesvc.com",
    "[",
]


@pytest.mark.parametrize("host", [*LOCAL, *PRIVATE, *FOREIGN, ""])
def test_names_that_somebody_can_register_are_not_served(host: str, tokens: tuple[Path, str]) -> None:
    public = http()
    private = replace(public, is_private=True)
    assert public.serves(host) is (host not in FOREIGN)
    assert private.serves(host) is (host in [*LOCAL, ""])
    assert replace(private, access=HttpSection(tokens=tokens[0])).serves(host)
    assert replace(private, access=HttpSection(certificate=tokens[0])).serves(host)


def test_another_sites_name_that_leads_here_is_not_answered(
    make_server: Callable[..., HttpServer], server: HttpServer, tokens: tuple[Path, str]
) -> None:
    for path in ("/", "/metrics"):
        assert ask(server, path, Host="rebound.example.com")[0] == 421
    assert ask(server, Host="localhost:9")[0] == 200
    with started(make_server(tokens=tokens[0])) as with_tokens:
        assert ask(with_tokens, token=tokens[1], Host="rebound.example.com")[0] == 200


def test_a_client_that_asks_too_often_waits(make_server: Callable[..., HttpServer]) -> None:
    with started(make_server(requests_per_second=0.001)) as server:
        assert ask(server)[0] == 200
        status, response, _ = ask(server)
        assert (status, int(response.getheader("Retry-After", "0")) > 1) == (429, True)


@pytest.mark.parametrize("make_service", SERVICES)
def test_probes_are_answered_to_everybody_but_give_strangers_no_reasons(
    make_service: Callable[..., HttpServer], tokens: tuple[Path, str]
) -> None:
    with started(make_service(tokens=tokens[0], requests_per_second=0.001)) as server:
        assert b"why_not" in ask(server, "/readyz", token=tokens[1])[2]
        for _ in range(3):
            assert ask(server, "/healthz")[::2] == (200, b'{\n  "ok": true\n}\n')
            assert ask(server, "/readyz")[::2] == (503, b'{\n  "ok": false\n}\n')
    with started(make_service()) as server:
        assert ask(server, "/healthz", Host="rebound.example.com")[::2] == (200, b'{\n  "ok": true\n}\n')
        assert b"why_not" in ask(server, "/healthz")[2]


def trusting(authority: Certificate, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if own is not None:
        context.load_cert_chain(own.path, own.key_path)
    return context


def test_tls_shows_the_certificate_asks_for_that_of_the_client_and_waits_for_nobody(
    make_server: Callable[..., HttpServer], tmp_path: Path
) -> None:
    authority = certificate(tmp_path, "authority", None)
    own, client = (certificate(tmp_path, name, authority) for name in ("server", "client"))
    stranger = certificate(tmp_path, "stranger", certificate(tmp_path, "other", None))
    files = {"certificate": own.path, "key": own.key_path}
    with started(make_server(**files)) as server:
        assert server.address.startswith("https://")
        assert ask(server, context=trusting(authority))[0] == 200
        with pytest.raises(ssl.SSLError):
            ask(server, context=ssl.create_default_context())
    with (
        started(make_server(**files, client_ca=authority.path)) as server,
        socket.create_connection(host_and_port(server), timeout=SECONDS),  # who never says a word
    ):
        trusted = trusting(authority, client)
        assert ask(server, context=trusted)[0] == 200
        # No page on the internet has this certificate, so a name need not be local.
        assert ask(server, context=trusted, Host="sidecar.example.com")[0] == 200
        for context in (trusting(authority), trusting(authority, stranger)):
            with pytest.raises((ssl.SSLError, ConnectionResetError, BrokenPipeError)):
                ask(server, context=context)


@pytest.mark.parametrize(
    "given", [{"certificate"}, {"key"}, {"client_ca"}, {"certificate", "key"}, {"tokens"}]
)
def test_files_that_are_missing_are_named(
    make_server: Callable[..., HttpServer], tmp_path: Path, given: set[str]
) -> None:
    with pytest.raises(CommandConfigError, match=r"(http|control)\.|file of tokens"):
        make_server(**dict.fromkeys(given, tmp_path / "none"))


@pytest.mark.parametrize("address", ["8086", "localhost", "127.0.0.1:http", "127.0.0.1:99999", "192.0.2.1:0"])
def test_an_address_that_cannot_be_used_is_an_error_that_says_what_to_set(address: str) -> None:
    with pytest.raises(CommandConfigError, match=r"cannot listen for HTTP.*set sidecar\.http"):
        listening_socket(replace(http(), address=address))


def test_an_address_that_is_taken_is_refused(server: HttpServer) -> None:
    with pytest.raises(CommandConfigError, match="in use"):
        listening_socket(replace(http(), address=urlsplit(server.address).netloc))


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "127.1.2.3:0", ":0"])
def test_this_machine_needs_no_tokens(address: str) -> None:
    listening_socket(replace(http(), address=address, is_private=True)).close()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.0.0.1:80", "db.example:80"])
def test_other_machines_read_what_is_private_only_with_tokens_or_certificates(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "create_server", lambda *_, **__: "a socket")
    private, file = replace(http(), address=address, is_private=True), Path("file")
    for insufficient in (HttpSection(), HttpSection(certificate=file, key=file)):
        with pytest.raises(CommandConfigError, match="other machines could read everything"):
            listening_socket(replace(private, access=insufficient))
    for sufficient in (
        HttpSection(tokens=file),
        HttpSection(certificate=file, key=file, client_ca=file),
    ):
        assert listening_socket(replace(private, access=sufficient))
    assert listening_socket(replace(private, is_private=False))


class HandClock(SystemClock):
    """Shows the same time until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_a_client_may_ask_at_its_rate_and_for_a_moment_more_often() -> None:
    clock = HandClock()
    limit = RateLimit(2, 4, clock)
    assert [limit.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert limit.take("b") == 0
    clock.seconds = 1.0
    assert [limit.take("a") for _ in range(3)] == [0, 0, 0.5]
    clock.seconds = 100.0
    assert [limit.take("a") > 0 for _ in range(5)] == [False] * 4 + [True]


def test_only_so_many_clients_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.command.http_server._MANY_CLIENTS", 2)
    limit = RateLimit(1, 1, HandClock())
    assert [limit.take(name) > 0 for name in "abacba"] == [False, False, True, False, False, False]


def test_headers_answers_and_silence_have_limits() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    config = web_config(app)
    assert (config.limit_concurrency, config.h11_max_incomplete_event_size) == (256, 16 << 10)
    assert (config.timeout_keep_alive, config.proxy_headers) == (30, False)
    assert (config.access_log, config.ws, config.lifespan) == (False, "none", "off")


def connected(server: HttpServer, running: ExitStack, count: int) -> list[socket.socket]:
    where = host_and_port(server)
    return [running.enter_context(socket.create_connection(where, timeout=SECONDS)) for _ in range(count)]


def test_clients_that_say_nothing_are_dropped_before_others_have_to_wait(
    make_server: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.command.http_server._SILENT_SECONDS", 3600.0)
    with ExitStack() as running:
        server = running.enter_context(started(make_server()))
        silent = connected(server, running, MAX_CONNECTIONS + 1)
        for each in silent[1::2]:
            each.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
        assert ask(server)[0] == 200
        assert [received(each) for each in silent[:2]] == [b"", b""]
        silent[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[2].recv(1)


def received(client: socket.socket) -> bytes:
    try:
        return client.recv(1)
    except ConnectionResetError:
        return b""


def test_a_request_that_is_being_answered_is_never_ended_for_others() -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(_: Request) -> Response:
        asked.set()
        answer.wait(SECONDS)
        return Response(b"done")

    with ExitStack() as running:
        server = running.enter_context(started(HttpServer([Route("/slow", slow)], http())))
        (first,) = connected(server, running, 1)
        first.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert asked.wait(SECONDS)
        connected(server, running, MAX_CONNECTIONS + 1)
        assert ask(server, "/none")[0] == 404
        answer.set()
        assert first.recv(12) == b"HTTP/1.1 200"


def test_a_client_that_says_nothing_for_too_long_is_dropped(
    make_server: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.command.http_server._SILENT_SECONDS", 0.01)
    with ExitStack() as running:
        server = running.enter_context(started(make_server()))
        for first in (b"", b"GET /metrics HTTP/1.1\r\nX: "):
            (client,) = connected(server, running, 1)
            client.sendall(first)
            assert received(client) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000,
    ],
)
def test_what_is_no_http_is_a_mistake_of_the_client_and_no_fault(
    server: HttpServer, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as running:
        (client,) = connected(server, running, 1)
        client.sendall(sent)
        assert client.recv(12) == b"HTTP/1.1 400"
    assert [each for each in caplog.records if each.levelno > logging.WARNING or each.exc_info] == []


def test_a_fault_tells_nobody_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Request) -> Response:
        raise ZeroDivisionError("of a secret")

    with started(HttpServer([Route("/fault", fail)], http())) as server:
        status, _, body = ask(server, "/fault")
    assert (status, b"secret" in body) == (500, False)
    assert "of a secret" in caplog.text


def test_closing_waits_for_no_client(server: HttpServer) -> None:
    with ExitStack() as running:
        (silent,) = connected(server, running, 1)
        assert ask(server)[0] == 200
        server.close()
        server.wait()
        assert received(silent) == b""
        with pytest.raises(ConnectionRefusedError):
            ask(server)


def test_what_connections_leave_is_found_even_where_nobody_looks_for_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slackwater.command.http_server._COLLECT_AFTER", 1)

    class Cycle:
        pass

    cycle: Any = Cycle()
    cycle.itself, is_left = cycle, weakref.ref(cycle)
    gc.disable()
    try:
        del cycle
        with started(HttpServer([], http())) as server:
            ask(server, "/none")
        server.wait()
        assert is_left() is None
    finally:
        gc.enable()
