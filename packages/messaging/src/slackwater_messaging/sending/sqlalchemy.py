"""SQLAlchemy 2: its sessions over psycopg, with all ways of sending.

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
    """Returns psycopg's connection under a session or connection, in its transaction.

    Raises:
        MessagingConfigError: The engine uses another driver.
    """
    connection = session.connection() if isinstance(session, Session) else session
    found = connection.connection.driver_connection
    if not isinstance(found, psycopg.Connection):
        driver = type(found).__module__
        problem = f"the engine's driver is {driver}: its connection is a {driver}.{type(found).__name__}"
        raise MessagingConfigError(problem, "make the engine with postgresql+psycopg://…")
    return found


@contextmanager
def session_transaction(sender: Sender, session: Session) -> Iterator[SendingTransaction[Database]]:
    """Opens a sender's transaction with a session: what the session has changed commits with it.

    The session must have no transaction open. It is flushed when the block ends, and commits with the sender;
    do not call its ``commit``. If the block raises, it is rolled back.

    Raises:
        MessagingConfigError: The session has a transaction open, or another driver.
        MessagingError: As the sender's ``transaction`` does.
    """
    if session.in_transaction():
        hint = "commit or roll back first; what belongs to the transaction is done in the with block"
        raise MessagingConfigError("the session is in a transaction already", hint)
    try:
        with sender.transaction(connection_of(session)) as sending:
            yield sending
            session.flush()
    except BaseException:
        session.rollback()
        raise
    session.commit()  # nothing is left to be done in the database: the session learns that its part is over
