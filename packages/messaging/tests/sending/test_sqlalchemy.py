"""SQLAlchemy's sessions with the ways of sending."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from slackwater_messaging import (
    ChainedSender,
    CommitOrder,
    MessagingConfigError,
    PreparedSender,
    SavedSender,
)
from slackwater_messaging.sending.sqlalchemy import Sender, connection_of, session_transaction
from slackwater_testing.messaging.sending.world import World

pytestmark = pytest.mark.integration


class Base(DeclarativeBase):
    pass


class Business(Base):
    __tablename__ = "business"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    engine = sa.create_engine(world.dsn.replace("postgresql://", "postgresql+psycopg://"))
    renamed = engine.execution_options(schema_translate_map={None: "public"})
    world.connection.execute(b"CREATE TABLE IF NOT EXISTS business (number bigint PRIMARY KEY)")
    world.connection.execute(b"TRUNCATE business")
    with Session(renamed) as made:
        yield made
    engine.dispose()


def senders(world: World) -> dict[str, Sender]:
    return {
        "chained": ChainedSender(world.kafka, world.name, order=CommitOrder.DATABASE_FIRST),
        "saved": SavedSender(world.kafka, world.outbox, world.name),
        "prepared": PreparedSender(world.kafka, world.name),
    }


def numbers(world: World) -> list[int]:
    return [n for (n,) in world.connection.execute(b"SELECT number FROM business ORDER BY number")]


def test_an_outbox_writes_in_the_session_s_transaction(world: World, session: Session) -> None:
    with session.begin():
        session.add(Business(number=1))
        world.outbox.send(connection_of(session), world.message("1"))
        assert world.waiting == 0
    session.add(Business(number=2))
    world.outbox.send(connection_of(session), world.message("2"))
    session.rollback()
    assert (numbers(world), world.waiting) == ([1], 1)


@pytest.mark.parametrize("way", ["chained", "saved", "prepared"])
def test_a_sender_commits_what_the_session_has_changed(world: World, session: Session, way: str) -> None:
    sender = senders(world)[way]

    def do(number: int) -> None:
        with session_transaction(sender, session) as sending:
            session.add(Business(number=number))
            sending.send(world.message(str(number)))

    for number in (1, 2):
        do(number)
        assert not session.in_transaction()
    with pytest.raises(sa.exc.IntegrityError):
        do(2)
    do(3)
    assert (numbers(world), world.values()) == ([1, 2, 3], ["1", "2", "3"])


def test_a_session_in_a_transaction_is_refused(world: World, session: Session) -> None:
    session.begin()
    with (
        pytest.raises(MessagingConfigError, match="already has an open transaction"),
        session_transaction(senders(world)["saved"], session),
    ):
        pass


def test_another_driver_is_refused() -> None:
    with (
        Session(sa.create_engine("sqlite://")) as session,
        pytest.raises(MessagingConfigError, match=r"driver is sqlite3.*postgresql\+psycopg"),
    ):
        connection_of(session)
