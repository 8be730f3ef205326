"""Metrics and pages, without servers behind them."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slackwater.command.tokens import Role, new_token
from slackwater.cuts import FrontierState
from slackwater.protocol import Clock, ConfigError, Cut, OpenTransaction
from slackwater.protocol.metrics import SIDECAR_METRICS, series_of
from slackwater.settings.errors import CommandConfigError
from slackwater_lab.certificates import Certificate, certificate
from slackwater_sidecar import SidecarStatus
from slackwater_sidecar.http_server import MAX_CONNECTIONS, HttpServer, SidecarPages, is_local_name
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.settings import HttpSettings

CUT = Cut(
    source="inv",
    timeline=1,
    lsn=500,
    previous_lsn=0,
    commit_ts_ms=1_000,
    event_count=3,
    transactions=(),
    end_offsets={},
    transaction_offset=0,
)
WAITED_FOR = OpenTransaction(
    xid=77, commit_lsn=600, since_ms=0, expected={"s.a": 2}, received={"s.a": 1}, places={"inv.s.a/0": (3, 4)}
)


def status(
    state: FrontierState = FrontierState.RUNNING, *, open_: tuple[OpenTransaction, ...] = (), kafka: str = ""
) -> SidecarStatus:
    return SidecarStatus(
        source="inv",
        timeline=2,
        state=state,
        detail="because",
        lsn=500,
        event_count=3,
        records_read=10,
        records_per_second=1.5,
        lag_ms=7,
        open=open_,
        redis_error=None,
        kafka_error=kafka or None,
    )


@pytest.fixture
def monitor(clock: Clock) -> SourceMonitor:
    return SourceMonitor("inv", clock)


@pytest.fixture
def pages(monitor: SourceMonitor) -> SidecarPages:
    return SidecarPages([monitor])


def body(pages: SidecarPages, path: str) -> tuple[HTTPStatus, dict[str, Any]]:
    code, _, text = pages.answer(path)
    return code, json.loads(text)


def samples(pages: SidecarPages) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(pages.answer("/metrics")[2].decode())
    return {(s.name, *(v for k, v in sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def test_what_is_exposed_is_the_list(pages: SidecarPages, monitor: SourceMonitor) -> None:
    monitor.status, monitor.newest = status(), CUT

    families = list(text_string_to_metric_families(pages.answer("/metrics")[2].decode()))

    named = {m.name.removesuffix("_total"): m for m in SIDECAR_METRICS}
    assert [f.name for f in families] == list(named)
    for family in families:
        metric = named[family.name]
        assert (family.type, family.documentation) == (str(metric.kind), metric.help)
        assert {s.name for s in family.samples} == set(series_of(metric))
        for sample in family.samples:
            bound = {"le"} if sample.name.endswith("_bucket") else set()
            assert set(sample.labels) == set(metric.labels) | bound


def test_before_the_first_cut_there_is_no_age_of_a_commit(pages: SidecarPages) -> None:
    names = {key[0] for key in samples(pages)}
    assert "slackwater_newest_commit_age_seconds" not in names
    assert len(names) == len([n for m in SIDECAR_METRICS for n in series_of(m)]) - 1


def test_values_are_those_of_the_monitor(pages: SidecarPages, monitor: SourceMonitor, clock: Clock) -> None:
    monitor.status, monitor.newest = status(FrontierState.STALLED, open_=(WAITED_FOR,)), CUT
    monitor.records, monitor.decisions["skip"], monitor.redis_corrections = 10, 2, 3
    monitor.cut_bytes.observe(100)

    seen = samples(pages)

    now = clock.now().timestamp()
    assert seen["slackwater_frontier_lsn", "inv"] == 500
    assert seen["slackwater_timeline", "inv"] == 2
    assert seen["slackwater_newest_commit_age_seconds", "inv"] == pytest.approx(now - 1)
    assert seen["slackwater_oldest_open_transaction_age_seconds", "inv"] == pytest.approx(now)
    assert seen["slackwater_decisions_total", "skip", "inv"] == 2
    assert seen["slackwater_redis_corrections_total", "inv"] == 3
    assert seen["slackwater_records_read_total", "inv"] == 10
    assert (seen["slackwater_cut_bytes_sum", "inv"], seen["slackwater_cut_bytes_count", "inv"]) == (100, 1)
    assert seen["slackwater_cut_bytes_bucket", "64.0", "inv"] == 0
    assert seen["slackwater_cut_bytes_bucket", "256.0", "inv"] == 1


def test_exactly_one_state_is_shown(pages: SidecarPages, monitor: SourceMonitor) -> None:
    monitor.status = status(FrontierState.REGRESSED)
    states = {key[2]: value for key, value in samples(pages).items() if key[0] == "slackwater_state"}
    assert set(states) == set(FrontierState)
    assert [state for state, value in states.items() if value] == ["regressed"]


def test_no_metric_has_a_label_for_each_transaction(pages: SidecarPages, monitor: SourceMonitor) -> None:
    monitor.status = status(open_=(WAITED_FOR,))
    assert not any("77" in label for key in samples(pages) for label in key)


def test_a_loop_that_does_not_turn_is_not_healthy(pages: SidecarPages, clock: Clock) -> None:
    assert body(pages, "/healthz") == (HTTPStatus.OK, {"healthy": True, "why_not": {}})
    clock.seconds += 31  # type: ignore[attr-defined]

    code, said = body(pages, "/healthz")

    assert code == HTTPStatus.SERVICE_UNAVAILABLE
    assert said["why_not"] == {"inv": "its loop has been blocked for 31 s"}


def test_a_loop_that_has_ended_does_not_make_the_others_unhealthy(
    pages: SidecarPages, monitor: SourceMonitor, clock: Clock
) -> None:
    monitor.failure, monitor.has_ended = "records are gone", True
    clock.seconds += 31  # type: ignore[attr-defined]
    assert body(pages, "/healthz")[0] == HTTPStatus.OK
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "records are gone"}


@pytest.mark.parametrize("state", [FrontierState.RUNNING, FrontierState.STALLED])
def test_a_source_with_cuts_is_ready(
    state: FrontierState, pages: SidecarPages, monitor: SourceMonitor
) -> None:
    monitor.status, monitor.newest = status(state), CUT
    assert body(pages, "/readyz") == (HTTPStatus.OK, {"ready": True, "why_not": {}})


@pytest.mark.parametrize(
    "state", [FrontierState.BAD_INPUT, FrontierState.REGRESSED, FrontierState.MISCONFIGURED]
)
def test_a_source_no_cut_can_be_made_of_is_not_ready_and_says_why(
    state: FrontierState, pages: SidecarPages, monitor: SourceMonitor
) -> None:
    monitor.status, monitor.newest = status(state), CUT
    code, said = body(pages, "/readyz")
    assert code == HTTPStatus.SERVICE_UNAVAILABLE
    assert said["why_not"] == {"inv": f"{state}: because"}


def test_waiting_for_topics_is_ready_only_with_a_cut(pages: SidecarPages, monitor: SourceMonitor) -> None:
    monitor.status = status(FrontierState.WAITING)
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "waiting: because"}
    monitor.newest = CUT
    assert body(pages, "/readyz")[0] == HTTPStatus.OK


def test_a_source_whose_kafka_is_away_is_not_ready(pages: SidecarPages, monitor: SourceMonitor) -> None:
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "the sidecar is starting"}
    monitor.waits_for = "cut log: no answer"
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "cut log: no answer"}
    monitor.waits_for, monitor.status, monitor.newest = None, status(kafka="refused"), CUT
    assert body(pages, "/readyz")[1]["why_not"] == {"inv": "refused"}
    assert samples(pages)["slackwater_dependency_trouble", "kafka", "inv"] == 1


def test_the_status_page_names_open_transactions(pages: SidecarPages, monitor: SourceMonitor) -> None:
    monitor.status, monitor.newest = status(FrontierState.STALLED, open_=(WAITED_FOR,)), CUT
    _, said = body(pages, "/status")
    source: dict[str, Any] = said["sources"][0]
    assert (source["state"], source["frontier"], source["timeline"]) == ("stalled", "0/1F4", 2)
    assert source["open_transactions"][0]["xid"] == 77
    assert source["open_transactions"][0]["places"] == {"inv.s.a/0": [3, 4]}


def test_a_page_that_does_not_exist_lists_those_that_do(pages: SidecarPages) -> None:
    code, said = body(pages, "/nowhere")
    assert code == HTTPStatus.NOT_FOUND
    assert said["pages"] == ["/metrics", "/healthz", "/readyz", "/status"]


ANY = "127.0.0.1:0"


def netloc(server: HttpServer) -> str:
    return urlsplit(server.address).netloc


@pytest.fixture
def server(pages: SidecarPages) -> Iterator[HttpServer]:
    server = HttpServer(HttpSettings(address=ANY), pages)
    server.start()
    yield server
    server.close()


def asked(server: HttpServer, method: str, path: str) -> tuple[int, str | None, bytes]:
    connection = HTTPConnection(netloc(server), timeout=120)
    connection.request(method, path)
    response = connection.getresponse()
    result = response.status, response.getheader("Content-Type"), response.read()
    connection.close()
    return result


def test_pages_are_answered_over_http_at_the_port_that_was_chosen(server: HttpServer) -> None:
    assert not server.address.endswith(":0")
    code, content_type, text = asked(server, "GET", "/metrics?debug=1")
    assert (code, (content_type or "")[:10]) == (200, "text/plain")
    assert b"slackwater_frontier_lsn" in text
    assert asked(server, "HEAD", "/status") == (200, "application/json", b"")
    assert asked(server, "GET", "/readyz")[0] == 503


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1:9400", True),
        ("[::1]:9400", True),
        ("10.1.2.3:9400", True),
        ("localhost", True),
        ("sidecar:9400", True),
        ("sidecar.streams.svc.cluster.local.:9400", True),
        ("sidecar.streams.svc", True),
        ("", True),
        ("rebound.example.com:9400", False),
        ("127.0.0.1.example.com", False),
        ("svc.example.com", False),
        ("examplesvc.com", False),
    ],
)
def test_names_that_somebody_can_register_are_not_local(host: str, is_local: bool) -> None:
    assert is_local_name(host) is is_local


def test_without_tokens_pages_are_answered_under_local_names_only(
    pages: SidecarPages, server: HttpServer, tmp_path: Path
) -> None:
    def status(asked: HttpServer, path: str, **headers: str) -> int:
        connection = HTTPConnection(netloc(asked), timeout=60)
        try:
            connection.request("GET", path, headers={"Host": "rebound.example.com"} | headers)
            return connection.getresponse().status
        finally:
            connection.close()

    assert [status(server, path) for path in ("/status", "/metrics", "/healthz")] == [421, 421, 200]
    assert status(server, "/status", Host="localhost:1") == 200
    token, entry = new_token("prometheus", Role.VIEWER)
    (tmp_path / "tokens.toml").write_text(entry)
    with_tokens = HttpServer(HttpSettings(address=ANY, tokens=tmp_path / "tokens.toml"), pages)
    with_tokens.start()
    try:
        assert status(with_tokens, "/status", Authorization=f"Bearer {token}") == 200
    finally:
        with_tokens.close()


def test_nothing_can_be_changed_over_http(server: HttpServer) -> None:
    assert asked(server, "POST", "/status")[0] == 501


def test_an_address_that_is_taken_or_malformed_is_an_error_that_says_what_to_set(
    server: HttpServer, pages: SidecarPages
) -> None:
    with pytest.raises(ConfigError, match=r"set sidecar\.http"):
        HttpServer(HttpSettings(address=netloc(server)), pages)
    for address in ("localhost", "127.0.0.1:http", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match="cannot listen for HTTP"):
            HttpServer(HttpSettings(address=address), pages)


def test_clients_that_say_nothing_are_dropped_before_others_have_to_wait(
    pages: SidecarPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater_sidecar.http_server._CLIENT_SECONDS", 3600.0)
    server = HttpServer(HttpSettings(address=ANY), pages)
    server.start()
    host, _, port = netloc(server).rpartition(":")
    with ExitStack() as running:
        running.callback(server.close)
        silent = [
            running.enter_context(socket.create_connection((host, int(port)), timeout=60))
            for _ in range(MAX_CONNECTIONS + 1)
        ]
        assert asked(server, "GET", "/metrics")[0] == 200
        assert [client.recv(1) for client in silent[:2]] == [b"", b""]
        silent[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[2].recv(1)


def test_connections_that_were_answered_do_not_count(
    pages: SidecarPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater_sidecar.http_server._CLIENT_SECONDS", 3600.0)
    server = HttpServer(HttpSettings(address=ANY), pages)
    server.start()
    host, _, port = netloc(server).rpartition(":")
    with closing(server), socket.create_connection((host, int(port)), timeout=60) as other:
        other.sendall(b"GET /metrics HTTP/1.1\r\n")
        for _ in range(MAX_CONNECTIONS + 1):
            assert asked(server, "HEAD", "/healthz")[0] == 200
        other.sendall(b"Connection: close\r\n\r\n")
        assert other.recv(8) == b"HTTP/1.0"


def test_a_client_that_says_nothing_for_too_long_is_dropped(
    pages: SidecarPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater_sidecar.http_server._CLIENT_SECONDS", 0.01)
    server = HttpServer(HttpSettings(address=ANY), pages)
    server.start()
    host, _, port = netloc(server).rpartition(":")
    with closing(server), socket.create_connection((host, int(port)), timeout=60) as client:
        assert client.recv(1) == b""


def told(
    server: HttpServer, path: str, token: str = "", context: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    where = netloc(server)
    connection = (
        HTTPConnection(where, timeout=120)
        if context is None
        else HTTPSConnection(where, timeout=120, context=context)
    )
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.status, response.read()


def test_with_tokens_only_probes_are_answered_without_one_and_give_no_reasons(
    pages: SidecarPages, tmp_path: Path
) -> None:
    token, entry = new_token("prometheus", Role.VIEWER)
    (tmp_path / "tokens.toml").write_text(entry)
    server = HttpServer(HttpSettings(address=ANY, tokens=tmp_path / "tokens.toml"), pages)
    server.start()
    try:
        for path in ("/metrics", "/status"):
            assert told(server, path)[0] == told(server, path, "slackwater_other")[0] == 401
            assert told(server, path, token)[0] == 200
        assert told(server, "/healthz") == (200, b'{\n  "ok": true\n}\n')
        assert told(server, "/readyz") == (503, b'{\n  "ok": false\n}\n')
        assert b"why_not" in told(server, "/readyz", token)[1]
    finally:
        server.close()


def trusting(authority: Certificate, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if own is not None:
        context.load_cert_chain(own.path, own.key_path)
    return context


def test_tls_shows_the_certificate_asks_for_that_of_the_client_and_waits_for_nobody(
    pages: SidecarPages, tmp_path: Path
) -> None:
    authority = certificate(tmp_path, "authority", None)
    own, client = (certificate(tmp_path, name, authority) for name in ("server", "client"))
    settings = HttpSettings(address=ANY, certificate=own.path, key=own.key_path, client_ca=authority.path)
    server = HttpServer(settings, pages)
    server.start()
    assert server.address.startswith("https://")
    host, _, port = netloc(server).rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=60):  # who never says a word
            assert told(server, "/healthz", context=trusting(authority, client))[0] == 200
        for context in (trusting(authority), ssl.create_default_context()):
            with pytest.raises((ssl.SSLError, ConnectionResetError, BrokenPipeError)):
                told(server, "/healthz", context=context)
        # No page on the internet has this certificate, so a name need not be local.
        connection = HTTPSConnection(netloc(server), timeout=60, context=trusting(authority, client))
        connection.request("GET", "/status", headers={"Host": "sidecar.example.com"})
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        server.close()


@pytest.mark.parametrize(
    "given", [{"certificate"}, {"key"}, {"client_ca"}, {"certificate", "key"}, {"tokens"}]
)
def test_files_that_are_missing_are_named(pages: SidecarPages, tmp_path: Path, given: set[str]) -> None:
    files = dict.fromkeys(given, tmp_path / "none")
    with pytest.raises((ConfigError, CommandConfigError), match=r"http\.|file of tokens"):
        HttpServer(HttpSettings(address=ANY, **files), pages)
