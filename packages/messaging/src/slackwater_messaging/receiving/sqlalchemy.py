"""The inbox table within sessions and connections of SQLAlchemy 2."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from slackwater_messaging.receiving.receipt import Receipt, as_key
from slackwater_messaging.receiving.table import TableInbox
from slackwater_messaging.sending.sqlalchemy import connection_of


@contextmanager
def receive(inbox: TableInbox, session: Session | Connection, key: bytes | str) -> Iterator[Receipt]:
    """Says whether a request came before; see :meth:`TableInbox.receive`.

    The block is a part (a savepoint) of the session's transaction, which its owner commits. What the session
    has not written yet is written at the end of the block.

    Raises:
        MessagingConfigError: The session is not of PostgreSQL over psycopg 3, or the key cannot be used.
        psycopg.Error: The database refuses the inbox.
        sqlalchemy.exc.SQLAlchemyError: The database refuses what the session writes.
    """
    with session.begin_nested():
        connection = connection_of(session)
        receipt = Receipt(as_key(key))
        inbox.mark(connection, [receipt])
        yield receipt
        inbox.store(connection, [receipt])
