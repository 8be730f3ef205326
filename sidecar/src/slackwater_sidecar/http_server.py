"""Serves the pages of a sidecar over HTTP. Reads only; runs nobody's code."""

import logging
import socket
import threading
from collections import deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from slackwater_sidecar.errors import SidecarConfigError
from slackwater_sidecar.pages import SidecarPages

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_CLIENT_SECONDS = 5.0
MAX_CONNECTIONS: Final = 32
"""At once: a few probes, scrapes and people. Each costs a thread."""


class HttpServer:
    """Answers on one address, in threads of its own, from :meth:`start` to :meth:`close`.

    Args:
        address: ``host:port``; port 0: any free one.
        pages: What to answer.

    Raises:
        SidecarConfigError: the address is malformed, in use or not this machine's.
    """

    def __init__(self, address: str, pages: SidecarPages) -> None:
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise _cannot_listen(address, "expected host:port")
        try:
            self._server = _Server((host.strip("[]") or "127.0.0.1", int(port)), _handler(pages))
        except (OSError, OverflowError) as error:
            raise _cannot_listen(address, str(error)) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="slackwater-http", daemon=True
        )

    @property
    def address(self) -> str:
        """``host:port`` with the port that was chosen."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()
        logger.info("answering at http://%s", self.address, extra={"address": self.address})

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


def _cannot_listen(address: str, reason: str) -> SidecarConfigError:
    return SidecarConfigError(
        f"cannot answer HTTP at {address}: {reason}",
        "set sidecar.http to host:port of this machine, port 0 for any free one",
    )


def _handler(pages: SidecarPages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_SECONDS
        server_version = "slackwater"
        sys_version = ""

        def do_GET(self) -> None:
            status, content_type, body = pages.answer(self.path.partition("?")[0])
            self.send_response(status)
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
