"""The proxy with real sockets on loopback."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from slackwater.dev.server import LOOPBACK, free_port
from slackwater_lab.servers.proxy import TcpProxy

SECONDS = 300.0


class EchoServer:
    """Answers with what it got, on every connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: EchoServer) -> Iterator[TcpProxy]:
    made = TcpProxy(lambda: echo.port)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection((LOOPBACK, proxy.port), SECONDS) as connection:
        yield connection


def received(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := client.recv(size - len(data))):
        data += more
    return data


def has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_everything_passes_in_order_and_complete(client: socket.socket) -> None:
    data = bytes(range(256)) * 20_000
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert received(client, len(data)) == data
    sender.join()


def test_nothing_passes_while_paused_and_nothing_is_lost(client: socket.socket, proxy: TcpProxy) -> None:
    client.sendall(b"before")
    assert received(client, 6) == b"before"
    proxy.pause()
    assert proxy.is_paused
    client.sendall(b"held back")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(SECONDS)
    proxy.resume()
    assert received(client, 9) == b"held back"


def test_a_connection_made_while_paused_works_after_the_pause(proxy: TcpProxy) -> None:
    proxy.pause()
    with socket.create_connection((LOOPBACK, proxy.port), SECONDS) as client:
        client.sendall(b"late")
        proxy.resume()
        assert received(client, 4) == b"late"


def test_a_delay_counts_once_for_each_direction(client: socket.socket, proxy: TcpProxy) -> None:
    proxy.delay(timedelta(milliseconds=100))
    started = time.monotonic()
    client.sendall(b"slow")
    assert received(client, 4) == b"slow"
    assert time.monotonic() - started >= 0.2
    proxy.delay(timedelta())


def test_cut_ends_connections_and_accepts_new_ones(client: socket.socket, proxy: TcpProxy) -> None:
    client.sendall(b"x")
    assert received(client, 1) == b"x"
    proxy.cut()
    assert has_ended(client)
    with socket.create_connection((LOOPBACK, proxy.port), SECONDS) as other:
        other.sendall(b"again")
        assert received(other, 5) == b"again"


def test_the_end_of_one_side_reaches_the_other(client: socket.socket, proxy: TcpProxy) -> None:
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert received(client, 4) == b"last"
    assert client.recv(1) == b""


def test_a_target_that_is_down_ends_the_connection() -> None:
    nobody = free_port()
    proxy = TcpProxy(lambda: nobody)
    proxy.start()
    with socket.create_connection((LOOPBACK, proxy.port), SECONDS) as client:
        assert has_ended(client)
    proxy.stop()


def test_connections_are_counted_and_forgotten(proxy: TcpProxy, wait_until: Callable[..., None]) -> None:
    assert proxy.connections == 0
    with socket.create_connection((LOOPBACK, proxy.port), SECONDS):
        wait_until(lambda: proxy.connections == 1)
    wait_until(lambda: proxy.connections == 0)


def test_the_proxy_stops_twice_and_starts_again_on_its_port(echo: EchoServer) -> None:
    proxy = TcpProxy(lambda: echo.port)
    for _ in range(2):
        proxy.start()
        with socket.create_connection((LOOPBACK, proxy.port), SECONDS) as client:
            client.sendall(b"y")
            assert received(client, 1) == b"y"
        proxy.stop()
        proxy.stop()
    assert not proxy.is_running
