"""The process of the control plane: its address, TLS, certificates of clients. Its page needs no Kafka."""

import socket
import ssl
import threading
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from slackwater.cli.control.server import ControlPlane, control_plane
from slackwater.protocol import SystemClock
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import Settings
from slackwater_lab.certificates import Certificate, certificate

pytestmark = pytest.mark.integration

SECONDS = 300


def settings(**control: object) -> Settings:
    content = {"listen": "127.0.0.1:0", **control}
    return Settings.model_validate(
        {
            "source": "inv",
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "redis": {"url": "redis://127.0.0.1:1"},
            "control": content,
        }
    )


def page(plane: ControlPlane, context: ssl.SSLContext | None = None) -> str:
    """Asks for the page until the process answers; a refusal by TLS is an answer."""
    address = urlsplit(plane.address).netloc
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + SECONDS
    while True:
        connection = (
            HTTPConnection(address, timeout=60)
            if context is None
            else HTTPSConnection(address, timeout=60, context=context)
        )
        try:
            connection.request("GET", "/")
            return connection.getresponse().read().decode()
        except ConnectionRefusedError:
            assert clock.monotonic() < deadline
            pause.wait(0.05)
        finally:
            connection.close()


def trusting(authority: Certificate, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if own is not None:
        context.load_cert_chain(own.path, own.key_path)
    return context


def test_the_page_is_served_until_the_block_ends() -> None:
    with control_plane(settings()) as plane:
        assert plane is not None
        assert plane.address.startswith("http://127.0.0.1:")
        assert "<title>Slackwater</title>" in page(plane)
        with pytest.raises(CommandConfigError, match="cannot listen at"):
            ControlPlane(settings(listen=urlsplit(plane.address).netloc))
    with pytest.raises(ConnectionRefusedError):
        HTTPConnection(urlsplit(plane.address).netloc, timeout=60).request("GET", "/")


def test_without_an_address_there_is_none() -> None:
    with control_plane(settings(listen=None)) as plane:
        assert plane is None


@pytest.mark.parametrize("listen", ["8086", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "192.0.2.1:0"])
def test_an_address_that_cannot_be_used_is_an_error_at_the_start(listen: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("")
    with pytest.raises(CommandConfigError, match=r"control\.listen|cannot listen"):
        ControlPlane(settings(listen=listen, tokens=tokens))


def test_tls_shows_the_certificate_and_asks_for_that_of_the_client(tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority", None)
    server, client = (certificate(tmp_path, name, authority) for name in ("server", "client"))
    stranger = certificate(tmp_path, "stranger", certificate(tmp_path, "other", None))
    files = {"certificate": server.path, "key": server.key_path}
    with control_plane(settings(**files)) as plane:
        assert plane is not None
        assert plane.address.startswith("https://")
        assert "Slackwater" in page(plane, trusting(authority))
        with pytest.raises(ssl.SSLError):
            page(plane, ssl.create_default_context())
    with control_plane(settings(**files, client_ca=authority.path)) as plane:
        assert plane is not None
        assert "Slackwater" in page(plane, trusting(authority, client))
        for other in (None, stranger):
            with pytest.raises((ssl.SSLError, ConnectionResetError, BrokenPipeError)):
                page(plane, trusting(authority, other))


def test_who_sends_nothing_keeps_nobody_else_from_the_page(tmp_path: Path) -> None:
    with control_plane(settings()) as plane:
        assert plane is not None
        page(plane)
        address = urlsplit(plane.address)
        silent = [socket.create_connection((address.hostname, address.port), SECONDS) for _ in range(300)]
        try:
            for each in silent[::2]:
                each.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
            assert "Slackwater" in page(plane)
        finally:
            for each in silent:
                each.close()
