"""The inbox table for sessions and connections of SQLAlchemy 2."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from slackwater_messaging.receiving.receipt import Receipt, as_key
from slackwater_messaging.receiving.table import TableInbox
from slackwater_messaging.sending.sqlalchemy import connection_of


@contextmanager
def receive(inbox: TableInbox, session: Session | Connection, key: bytes | str) -> Iterator[Receipt]:
    """Returns whether a request was received before; see :meth:`TableInbox.receive`.

    The block is a savepoint in the session's transaction, which its owner commits. The session is flushed at
    the end of the block.

    Raises:
        MessagingConfigError: The session does not use PostgreSQL with psycopg 3, or the key is not valid.
        psycopg.Error: The database rejects a statement of the inbox.
        sqlalchemy.exc.SQLAlchemyError: The database rejects a statement of the session.
    """
    with session.begin_nested():
        connection = connection_of(session)
        receipt = Receipt(as_key(key))
        inbox.mark(connection, [receipt])
        yield receipt
        inbox.store(connection, [receipt])
