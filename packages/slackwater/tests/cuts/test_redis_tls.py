"""Redis over TLS: the standard library ends it in front of the tests' server, which has none built in."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slackwater.cuts import (
    FrontierState,
    FrontierStatus,
    MarkerStoreUnavailableError,
    RedisMarkerStore,
)
from slackwater.dev import RedisServer
from slackwater.protocol import Cut, PublishedCut
from slackwater_lab.secured_servers import Certificate, certificate
from slackwater_lab.servers.proxy import TcpProxy

pytestmark = pytest.mark.integration

STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1000, sidecar="a")
LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Certificate:
    return certificate(folder, "authority", None)


Serve = Callable[..., int]


@pytest.fixture
def serve(redis_server: RedisServer, authority: Certificate) -> Iterator[Serve]:
    """Begins to take TLS connections with a certificate; returns the port."""
    ends: list[TcpProxy] = []

    def begin(own: Certificate, *, wants_certificate: bool = False) -> int:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
        context.load_cert_chain(own.path, own.key_path)
        context.verify_mode = ssl.CERT_REQUIRED if wants_certificate else ssl.CERT_NONE
        ends.append(TcpProxy(lambda: redis_server.port, tls=context))
        ends[-1].start()
        return ends[-1].port

    yield begin
    for end in ends:
        end.stop()


def is_usable(store: RedisMarkerStore, cut: Cut) -> bool:
    try:
        return store.put_cut(PublishedCut(cut, 0), STATUS) and store.newest(cut.source, 0) is not None
    finally:
        store.close()


def test_a_server_whose_authority_is_named_is_trusted(
    make_cut: Callable[..., Cut], source: str, serve: Serve, folder: Path, authority: Certificate
) -> None:
    port = serve(certificate(folder, "server", authority))
    url = f"rediss://{LOOPBACK}:{port}/0?ssl_ca_certs={authority.path}"
    assert is_usable(RedisMarkerStore.connect(url), make_cut(source, 10))


def test_a_client_shows_its_certificate_to_a_server_that_wants_one(
    make_cut: Callable[..., Cut], source: str, serve: Serve, folder: Path, authority: Certificate
) -> None:
    port = serve(certificate(folder, "server", authority), wants_certificate=True)
    own = certificate(folder, "client", authority)
    url = (
        f"rediss://{LOOPBACK}:{port}/0?ssl_ca_certs={authority.path}"
        f"&ssl_certfile={own.path}&ssl_keyfile={own.key_path}"
    )
    assert is_usable(RedisMarkerStore.connect(url), make_cut(source, 10))


@pytest.mark.parametrize("problem", ["unknown authority", "another host", "no certificate", "no TLS"])
def test_what_is_not_safe_is_refused_with_the_reason(
    make_cut: Callable[..., Cut],
    source: str,
    serve: Serve,
    folder: Path,
    authority: Certificate,
    problem: str,
) -> None:
    host = "127.0.0.2" if problem == "another host" else LOOPBACK
    port = serve(
        certificate(folder, "server", authority, host=host), wants_certificate=problem == "no certificate"
    )
    scheme = "redis" if problem == "no TLS" else "rediss"
    query = f"?ssl_ca_certs={authority.path}" if problem in ("another host", "no certificate") else ""
    store = RedisMarkerStore.connect(f"{scheme}://{LOOPBACK}:{port}/0{query}", password="secret")
    with pytest.raises(MarkerStoreUnavailableError, match=REASONS[problem]) as caught:
        is_usable(store, make_cut(source, 10))
    assert "secret" not in str(caught.value)
    assert f"{LOOPBACK}:{port}" in str(caught.value)


REASONS = {
    "unknown authority": "certificate verify failed",
    "another host": "IP address mismatch",
    "no certificate": "(?i)certificate required|Connection closed|Connection reset|Broken pipe",
    "no TLS": "Connection closed|Connection reset|Broken pipe",
}
