"""Traces from a sender over an outbox and Kafka to a receiver."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.messaging.sending.world import World
from slackwater_messaging import Message, PollingRelay, SavedSender
from slackwater_messaging.receiving import (
    AsyncReceiver,
    ReceivedMessage,
    Receiver,
    TableInbox,
    TransactionalProcessor,
)
from slackwater_messaging.sender import SendingTransaction
from slackwater_messaging.tracing import HEADER_TRACE, processing, with_trace

BY_HAND = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MESSAGE = Message(topic="t", value=b"")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[World]:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    yield made
    made.connection.close()


def received(*headers: tuple[str, bytes]) -> ReceivedMessage:
    return ReceivedMessage(topic="t", value=b"", partition=1, offset=7, headers=headers)


def tracer() -> trace.Tracer:
    return trace.get_tracer("service")


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [each for each in spans.get_finished_spans() if each.name == name]
    return found


def check_child(child: ReadableSpan, parent: ReadableSpan) -> None:
    assert child.parent is not None
    assert parent.context is not None
    assert (child.parent.trace_id, child.parent.span_id) == (parent.context.trace_id, parent.context.span_id)
    assert child.parent.is_remote


@pytest.mark.usefixtures("spans")
def test_a_message_without_a_span_and_one_with_a_header_stay_as_they_are() -> None:
    assert with_trace(MESSAGE) is MESSAGE
    own = Message(topic="t", value=b"", headers=((HEADER_TRACE, BY_HAND),))
    with tracer().start_as_current_span("work"):
        assert with_trace(own) is own


def test_a_trace_that_was_set_by_hand_is_the_parent_and_what_is_none_is_ignored(
    spans: InMemorySpanExporter,
) -> None:
    with processing(received((HEADER_TRACE, BY_HAND))):
        pass
    (span,) = spans.get_finished_spans()
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == BY_HAND.decode()[3:-3]
    assert span.attributes is not None
    assert (span.attributes["messaging.destination.name"], span.attributes["messaging.kafka.offset"]) == (
        "t",
        7,
    )
    for nonsense in ((), ((HEADER_TRACE, b"\xff"),), ((HEADER_TRACE, b"00-0-0-00"),)):
        spans.clear()
        with tracer().start_as_current_span("another"), processing(received(*nonsense)):
            pass
        assert named(spans, "process t").parent is None


def test_messages_of_a_sender_have_the_span_in_which_they_were_sent(spans: InMemorySpanExporter) -> None:
    sending = SendingTransaction(None)
    with tracer().start_as_current_span("one"):
        sending.send(MESSAGE)
    sending.send(MESSAGE)
    first, second = sending.messages
    one = named(spans, "one").context
    assert one is not None
    assert dict(first.headers)[HEADER_TRACE].decode()[3:-3] == f"{one.trace_id:032x}-{one.span_id:016x}"
    assert second is MESSAGE


@pytest.mark.integration
@pytest.mark.parametrize("way", ["outbox", "saved"])
def test_a_trace_goes_over_the_outbox_and_kafka_to_the_handler_and_its_messages(
    world: World, spans: InMemorySpanExporter, way: str
) -> None:
    answers = world.make_topic("answers")
    inbox = TableInbox(f"{world.name}_inbox")
    inbox.create(world.connection)
    with tracer().start_as_current_span("request"):
        if way == "outbox":
            world.outbox.send(world.connection, world.message("1"))
        else:
            with (
                SavedSender(world.kafka, world.outbox, world.name) as sender,
                sender.transaction(world.connection) as sending,
            ):
                sending.send(world.message("1"))
    with PollingRelay(world.dsn, world.kafka, world.outbox) as relay:
        relay.run_once()

        def handle(connection: psycopg.Connection[Any], message: ReceivedMessage) -> None:
            with tracer().start_as_current_span("inside"):
                world.outbox.send(connection, Message(topic=answers, value=message.value))

        connect = lambda: psycopg.connect(world.dsn)  # noqa: E731
        with Receiver(world.kafka, [world.topic], group=world.name, inbox=inbox, connect=connect) as receiver:
            while not receiver.poll(handle):
                pass
        relay.run_once()
    process, inside = named(spans, f"process {world.topic}"), named(spans, "inside")
    check_child(process, named(spans, "request"))
    assert process.context is not None
    assert inside.parent is not None
    assert inside.parent.span_id == process.context.span_id
    assert inside.context is not None
    (answer,) = world.records(answers)
    found = dict(answer.headers() or [])[HEADER_TRACE]
    assert f"{inside.context.trace_id:032x}-{inside.context.span_id:016x}" in str(found)


@pytest.mark.integration
def test_a_trace_goes_on_in_an_event_loop(world: World, spans: InMemorySpanExporter) -> None:
    inbox = TableInbox(f"{world.name}_inbox")
    inbox.create(world.connection)

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(world.dsn)

    async def work() -> None:
        async with AsyncReceiver(
            world.kafka, [world.topic], group=world.name, inbox=inbox, connect=connect
        ) as receiver:

            async def handle(connection: psycopg.AsyncConnection[Any], message: ReceivedMessage) -> None:
                with tracer().start_as_current_span("inside"):
                    await connection.execute("SELECT 1")
                receiver.stop()

            await receiver.run(handle)

    async def request() -> None:
        with tracer().start_as_current_span("request"):
            async with await psycopg.AsyncConnection.connect(world.dsn) as connection:
                await world.outbox.send_async(connection, world.message("1"))

    asyncio.run(request())
    with PollingRelay(world.dsn, world.kafka, world.outbox) as relay:
        relay.run_once()
    asyncio.run(work())
    process, inside = named(spans, f"process {world.topic}"), named(spans, "inside")
    check_child(process, named(spans, "request"))
    assert process.context is not None
    assert inside.parent is not None
    assert inside.parent.span_id == process.context.span_id


@pytest.mark.integration
def test_outputs_within_kafka_have_the_span_of_their_input(world: World, spans: InMemorySpanExporter) -> None:
    output = world.make_topic("made")
    with PollingRelay(world.dsn, world.kafka, world.outbox) as relay:
        with tracer().start_as_current_span("request"):
            world.outbox.send(world.connection, world.message("1"))
        relay.run_once()
    with TransactionalProcessor(
        world.kafka, [world.topic], group=world.name, transactional_id=world.name
    ) as processor:
        while not processor.poll(lambda message: [Message(topic=output, value=message.value)]):
            pass
    process = named(spans, f"process {world.topic}")
    check_child(process, named(spans, "request"))
    assert process.context is not None
    while not (records := world.records(output)):  # brokers show what is committed a moment later
        pass
    assert f"{process.context.span_id:016x}" in str(dict(records[0].headers() or [])[HEADER_TRACE])


WITHOUT = """
import sys
for name in list(sys.modules):
    assert not name.startswith("opentelemetry"), name
sys.modules["opentelemetry"] = None
from slackwater_messaging.receiving import ReceivedMessage
from slackwater_messaging.tracing import processing, with_trace
message = ReceivedMessage(topic="t", value=b"", partition=0, offset=0)
assert with_trace(message) is message
with processing(message):
    pass
"""


def test_without_opentelemetry_nothing_is_imported_and_nothing_breaks() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)
