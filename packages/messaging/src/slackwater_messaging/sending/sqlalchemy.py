"""Combines sessions of SQLAlchemy 2 over psycopg with all ways of sending.

::

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.send(connection_of(session), message)

    with Session(engine) as session, session_transaction(sender, session) as sending:
        session.add(order)
        sending.send(message)
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import psycopg
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from slackwater_messaging.errors import MessagingConfigError
from slackwater_messaging.sending.outbox import Database
from slackwater_messaging.sending.transaction import SendingTransaction


class Sender(Protocol):
    """What senders have in common."""

    def transaction(self, connection: Database) -> AbstractContextManager[SendingTransaction[Database]]:
        """Opens a transaction."""
        ...


def connection_of(session: Session | Connection) -> Database:
    """Returns the psycopg connection of a session or connection, in its transaction.

    Raises:
        MessagingConfigError: The engine uses another driver.
    """
    connection = session.connection() if isinstance(session, Session) else session
    found = connection.connection.driver_connection
    if not isinstance(found, psycopg.Connection):
        driver = type(found).__module__
        problem = f"the engine's driver is {driver}: its connection is a {driver}.{type(found).__name__}"
        raise MessagingConfigError(problem, "create the engine with postgresql+psycopg://…")
    return found


@contextmanager
def session_transaction(sender: Sender, session: Session) -> Iterator[SendingTransaction[Database]]:
    """Opens a sender's transaction together with a session; the changes of the session commit with it.

    The session must not have an open transaction. It is flushed at the end of the block, and commits with the
    sender; do not call its ``commit``. If the block raises, the session is rolled back.

    Raises:
        MessagingConfigError: The session has an open transaction, or uses another driver.
        MessagingError: The same errors as the sender's ``transaction``.
    """
    if session.in_transaction():
        hint = "commit or roll back first, and do all work of the new transaction inside the with block"
        raise MessagingConfigError("the session already has an open transaction", hint)
    try:
        with sender.transaction(connection_of(session)) as sending:
            yield sending
            session.flush()
    except BaseException:
        session.rollback()
        raise
    session.commit()  # The database has committed already; this only ends the session's transaction.
