"""An OpenTelemetry collector that keeps what it is sent, for tests: OTLP over HTTP, in protobuf."""

import gzip
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as it was sent."""

    service: str
    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    begin_ms: int
    end_ms: int
    attributes: Mapping[str, str | int]


class Collector:
    """Listens on a free port of this machine while the block lasts; its lists grow meanwhile.

    Args:
        tls: What encrypts connections; None: nothing does.
        admits: Whether a request with these headers is taken; others get 401.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        admits: Callable[[Message], bool] = lambda _: True,
    ) -> None:
        self.admits = admits
        self.refused = 0
        """Requests that were not taken."""
        self.spans: list[ReceivedSpan] = []
        self.metrics: list[Any] = []
        """Every metric of every export, as protobuf has it."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        if tls is not None:
            # The handshake is for the thread of the connection, where it may fail.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def address(self) -> str:
        """Where it listens, as the setting ``telemetry.otlp`` has it."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, path: str, body: bytes) -> None:
        """Keeps what was sent to a path."""
        if path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = str(_values(group.resource.attributes)["service.name"])
                self.spans += [_span(service, span) for scope in group.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics += [metric for scope in group.scope_metrics for metric in scope.metrics]


def _span(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        trace_id=int.from_bytes(span.trace_id),
        span_id=int.from_bytes(span.span_id),
        parent_id=int.from_bytes(span.parent_span_id) or None,
        name=span.name,
        begin_ms=span.start_time_unix_nano // 1_000_000,
        end_ms=span.end_time_unix_nano // 1_000_000,
        attributes=_values(span.attributes),
    )


def _values(attributes: Any) -> dict[str, str | int]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            is_admitted = collector.admits(self.headers)
            if is_admitted:
                collector.take(self.path, body)
            else:
                collector.refused += 1
            self.send_response(200 if is_admitted else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    return Handler
