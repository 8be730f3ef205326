"""Trace context in headers, as W3C defines it: a sender's span is the parent of a receiver's.

The library knows only the API of OpenTelemetry, and uses it only if the service has imported it.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from slackwater_messaging.message import Message, ReceivedMessage

HEADER_TRACE: Final = "traceparent"
"""The record header with the trace and the span of the sender."""

_API: Final = "opentelemetry.trace"
_SCOPE: Final = "slackwater_messaging"


def with_trace(message: Message) -> Message:
    """Returns a message with the headers ``traceparent`` and ``tracestate`` of the current span.

    A message that has the first one keeps it, so a service may set it by other means.
    """
    if _API not in sys.modules or any(name == HEADER_TRACE for name, _ in message.headers):
        return message
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    added = ((name, value.encode()) for name, value in found.items())
    return replace(message, headers=(*message.headers, *added)) if found else message


def processing(message: ReceivedMessage) -> AbstractContextManager[object]:
    """Opens a span for the processing of a message, below the span of its sender, or at the top."""
    if _API not in sys.modules:
        return nullcontext()
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name: value.decode(errors="replace") for name, value in message.headers}
    return trace.get_tracer(_SCOPE).start_as_current_span(
        f"process {message.topic}",
        context=TraceContextTextMapPropagator().extract(carrier),
        kind=trace.SpanKind.CONSUMER,
        attributes={
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.topic,
            "messaging.destination.partition.id": str(message.partition),
            "messaging.kafka.offset": message.offset,
        },
    )
