"""Serves a board: ``/metrics`` for Prometheus, ``/samples`` for a load generator."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication

from prometheus_client import make_wsgi_app

from slackwater_bench.visibility.board import Board

HOST = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def application(board: Board) -> WSGIApplication:
    """``GET /samples`` hands out ``[[commit LSN, delay in ms], ...]`` once; all else is ``/metrics``."""
    metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(board.registry)

    def serve(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/samples":
            return metrics(environ, start_response)
        samples = [[sample.commit_lsn, sample.delay_ms] for sample in board.take()]
        start_response(f"{HTTPStatus.OK:d} OK", [("Content-Type", "application/json")])
        return [json.dumps(samples).encode()]

    return serve


@contextmanager
def serving(board: Board, port: int) -> Iterator[int]:
    """Serves in a thread until the block ends; gives the port (a free one for ``port`` 0)."""
    server = make_server(HOST, port, application(board), _Server, _QuietHandler)
    thread = threading.Thread(target=server.serve_forever, name="probe-http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
