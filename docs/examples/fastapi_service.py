"""A web service that writes a row and its message in one session, and processes each message once.

    uvicorn.run(make_app("localhost:9092", "postgresql://shop@localhost/shop"))

Stop or kill it whenever you like: what was committed is sent, and each order is shipped once.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from sqlalchemy import create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from slackwater.protocol import KafkaSettings
from slackwater_messaging import DeadLetters, Message, Outbox, PollingRelay
from slackwater_messaging.receiving import (
    AsyncReceiver,
    ReceivedMessage,
    ReceiverSettings,
    TableInbox,
    header_key,
)
from slackwater_messaging.sqlalchemy import async_connection_of, connection_of, with_async_sessions

OUTBOX = Outbox("order_outbox")
INBOX = TableInbox("shipping_inbox", key_of=header_key("slackwater-message"))
LETTERS = DeadLetters("dead_letters", attempts=5)


class Base(DeclarativeBase):
    """The tables of the service."""


class Order(Base):
    """What was ordered."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    product: Mapped[str]


class Shipment(Base):
    """What was shipped: one for each order."""

    __tablename__ = "shipments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]


def ordered(number: int, topic: str) -> Message:
    """Returns the message of an order."""
    return Message(topic=topic, key=str(number).encode(), value=str(number).encode())


async def ship(session: AsyncSession, message: ReceivedMessage) -> None:
    """Handles a message, in the transaction in which the inbox notes it."""
    session.add(Shipment(order=int(message.value or b"")))


def one_session(request: Request) -> Iterator[Session]:
    """Provides a session for a request; the endpoint commits."""
    with Session(request.app.state.engine) as session:
        yield session


async def one_async_session(request: Request) -> AsyncIterator[AsyncSession]:
    """Provides an asynchronous session for a request; the endpoint commits."""
    async with AsyncSession(request.app.state.async_engine) as session:
        yield session


OneSession = Annotated[Session, Depends(one_session)]
OneAsyncSession = Annotated[AsyncSession, Depends(one_async_session)]


router = APIRouter()


@router.post("/orders/{number}", status_code=201)
def order(number: int, product: str, session: OneSession, request: Request) -> None:
    """Writes an order and its message, in one session."""
    try:
        session.add(Order(number=number, product=product))
        OUTBOX.send(connection_of(session), ordered(number, request.app.state.topic))
        session.commit()
    except IntegrityError:
        raise HTTPException(409, "this order exists") from None


@router.post("/async-orders/{number}", status_code=201)
async def order_async(number: int, product: str, session: OneAsyncSession, request: Request) -> None:
    """Does the same with an asynchronous session."""
    try:
        session.add(Order(number=number, product=product))
        connection = await async_connection_of(session)
        await OUTBOX.send_async(connection, ordered(number, request.app.state.topic))
        await session.commit()
    except IntegrityError:
        raise HTTPException(409, "this order exists") from None


@router.get("/shipments")
def shipments(session: OneSession) -> list[int]:
    """Returns the orders that were shipped."""
    return list(session.scalars(select(Shipment.order).order_by(Shipment.order)))


@router.get("/health")
async def health(request: Request) -> str:
    """Says whether the relay and the receiver run; an error ends them."""
    for task in request.app.state.running:
        if task.done():
            raise HTTPException(503, repr(task.exception()))
    return "the relay and the receiver run"


def make_app(bootstrap: str, database: str, topic: str = "orders", group: str = "shipping") -> FastAPI:
    """Returns the service, which relays and receives while it runs."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        kafka, address = KafkaSettings(bootstrap), database.replace("postgresql://", "postgresql+{}://")
        app.state.topic = topic
        app.state.engine = create_engine(address.format("psycopg"))
        app.state.async_engine = create_async_engine(address.format("asyncpg"))
        with app.state.engine.begin() as connection:
            Base.metadata.create_all(connection)
            for table in (OUTBOX, INBOX, LETTERS):
                table.create(connection_of(connection))
        connect, handle = with_async_sessions(app.state.async_engine, ship)
        settings = ReceiverSettings(dead_letters=LETTERS)
        async with AsyncExitStack() as stack:
            relay = stack.enter_context(PollingRelay(database, kafka, OUTBOX))
            receiver = await stack.enter_async_context(
                AsyncReceiver(kafka, [topic], group=group, inbox=INBOX, connect=connect, settings=settings)
            )
            work = relay.run_async(), receiver.run(handle)
            app.state.running = [asyncio.create_task(each) for each in work]
            yield
            for task in app.state.running:
                task.cancel()
            await asyncio.gather(*app.state.running, return_exceptions=True)
        await app.state.async_engine.dispose()
        app.state.engine.dispose()

    app = FastAPI(lifespan=lifespan)
    app.include_router(router)
    return app
