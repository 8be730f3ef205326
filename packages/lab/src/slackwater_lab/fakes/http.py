"""Servers of this process that speak HTTP."""

import json
import ssl
from abc import abstractmethod
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from slackwater_lab.watching import Background


class HttpFake(Background):
    """Listens on a free port of this machine while the block lasts, or from start to stop."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__("http-fake")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        if tls is not None:
            # The handshake is for the thread of the connection, where it may fail.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        """Where it listens."""

    @abstractmethod
    def answer(self, method: str, path: str, headers: Message, body: bytes) -> tuple[int, object]:
        """Returns the HTTP status for a request, and the document, which is sent as JSON."""

    def stop(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        super().stop()
        self._server.server_close()

    def _work(self) -> None:
        self._server.serve_forever(0.05)


def _handler(server: HttpFake) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = server.answer(self.command, self.path, self.headers, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    return Handler
