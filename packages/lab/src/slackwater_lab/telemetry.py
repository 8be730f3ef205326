"""What the product tells of itself, received as in production: by an OTLP collector."""

import gzip
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from slackwater_lab.fakes.http import HttpFake


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


class Collector(HttpFake):
    """An OpenTelemetry collector that keeps what it is sent: OTLP over HTTP, in protobuf. Its lists grow.

    Requests whose headers are not admitted get 401.
    """

    def __init__(
        self, tls: ssl.SSLContext | None = None, admits: Callable[[Message], bool] = lambda _: True
    ) -> None:
        super().__init__(tls)
        self.admits = admits
        self.refused = 0
        """Requests that were not taken."""
        self.spans: list[ReceivedSpan] = []
        self.metrics: list[Any] = []
        """Every metric of every export, as protobuf has it."""

    def answer(self, method: str, path: str, headers: Message, body: bytes) -> tuple[int, object]:
        del method
        if not self.admits(headers):
            self.refused += 1
            return HTTPStatus.UNAUTHORIZED, {}
        self._take(path, gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body)
        return HTTPStatus.OK, {}

    def _take(self, path: str, body: bytes) -> None:
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
