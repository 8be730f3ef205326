"""The process of the control plane: its address, TLS, certificates of clients. Its page needs no Kafka."""

import ssl
import threading
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from slackwater.cli.control.server import ControlPlane, control_plane
from slackwater.protocol import SystemClock
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import ControlSection, KafkaSection, RedisSection, Settings
from slackwater_lab.secured_servers import Certificate, certificate

pytestmark = pytest.mark.integration

SECONDS = 300


def settings(**control: Any) -> Settings:
    return Settings(
        source="inv",
        kafka=KafkaSection(bootstrap="127.0.0.1:1"),
        redis=RedisSection(url="redis://127.0.0.1:1"),
        control=ControlSection(**{"listen": "127.0.0.1:0", **control}),
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
        with pytest.raises(CommandConfigError, match="cannot listen for HTTP at"):
            ControlPlane(settings(listen=urlsplit(plane.address).netloc))
    with pytest.raises(ConnectionRefusedError):
        HTTPConnection(urlsplit(plane.address).netloc, timeout=60).request("GET", "/")


def test_without_an_address_there_is_none() -> None:
    with control_plane(settings(listen=None)) as plane:
        assert plane is None


def test_what_cannot_be_used_is_an_error_at_the_start_not_of_the_process(tmp_path: Path) -> None:
    tokens, none = tmp_path / "tokens.toml", tmp_path / "none"
    tokens.write_text("")
    for unusable in (
        {"listen": "192.0.2.1:0", "tokens": tokens},
        {"listen": "0.0.0.0:0"},
        {"tokens": none},
        {"certificate": none, "key": none},
    ):
        with pytest.raises(CommandConfigError, match=r"control\.|file of tokens"):
            ControlPlane(settings(**unusable))


def test_the_process_shows_the_certificate_and_asks_for_that_of_the_client(tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority", None)
    server, client = (certificate(tmp_path, name, authority) for name in ("server", "client"))
    files = {"certificate": server.path, "key": server.key_path, "client_ca": authority.path}
    with control_plane(settings(**files)) as plane:
        assert plane is not None
        assert plane.address.startswith("https://")
        assert "Slackwater" in page(plane, trusting(authority, client))
        with pytest.raises((ssl.SSLError, ConnectionResetError, BrokenPipeError)):
            page(plane, trusting(authority))
