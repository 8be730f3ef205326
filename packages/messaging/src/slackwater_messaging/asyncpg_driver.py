"""The driver for asyncpg's connections. Needs the extra ``asyncpg``."""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from slackwater_messaging.bridge import AsyncDriver, Rows, Statement
from slackwater_messaging.database import LOST_CONNECTION


class AsyncpgDriver(AsyncDriver):
    """Uses a connection of asyncpg, or of its pool.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._open: Any = None
        """The transaction that BEGIN has begun. It is asyncpg's, so that blocks of the service nest in it."""

    @property
    def is_closed(self) -> bool:
        """See the base class."""
        return bool(self._connection.is_closed())

    def lost(self, error: Exception) -> psycopg.Error | None:
        """See the base class."""
        if isinstance(error, asyncpg.PostgresError):
            meaning = _meaning(error)
            return meaning(str(error)) if issubclass(meaning, LOST_CONNECTION) else None
        return psycopg.OperationalError(str(error)) if self.is_closed else None

    async def status(self) -> TransactionStatus:
        """See the base class. asyncpg does not say whether a transaction has failed, so it is tried."""
        if not self._connection.is_in_transaction():
            return TransactionStatus.IDLE
        try:
            await self.execute("SELECT 1")
        except psycopg.errors.InFailedSqlTransaction:
            return TransactionStatus.INERROR
        return TransactionStatus.INTRANS

    async def execute(self, query: Statement, parameters: Sequence[object] | None = None) -> Rows:
        """See the base class."""
        with _translated():
            text = _text(query)
            if text == "BEGIN":
                self._open = self._connection.transaction()
                await self._open.start()
                return Rows([], -1, text)
            prepared = await self._connection.prepare(_numbered(text) if parameters else text)
            rows = await prepared.fetch(*parameters or ())
            status = prepared.get_statusmsg()
        count = (status or "").rpartition(" ")[2]
        return Rows([tuple(row) for row in rows], int(count) if count.isdigit() else -1, status)

    async def set_autocommit(self, value: bool) -> None:
        """See the base class. asyncpg begins no transactions by itself."""

    async def commit(self) -> None:
        """See the base class."""
        opened, self._open = self._open, None
        if opened is not None:
            with _translated():
                await opened.commit()

    async def rollback(self) -> None:
        """See the base class."""
        opened, self._open = self._open, None
        if opened is not None:
            with _translated():
                await opened.rollback()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """See the base class."""
        with _translated():
            block = self._connection.transaction()  # refused if the connection is closed
            await block.start()
        try:
            yield
        except BaseException:
            with _translated():
                await block.rollback()
            raise
        with _translated():
            await block.commit()

    async def close(self) -> None:
        """See the base class."""
        await self._connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Raises psycopg's errors for asyncpg's."""
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _meaning(error)(str(error)) from error
    except (asyncpg.InterfaceError, OSError) as error:
        raise psycopg.OperationalError(str(error)) from error


def _meaning(error: asyncpg.PostgresError) -> type[psycopg.Error]:
    try:
        return psycopg.errors.lookup(error.sqlstate)
    except KeyError:
        return psycopg.DatabaseError


def _text(query: Statement) -> str:
    if isinstance(query, sql.SQL | sql.Composed):
        return query.as_string(None)
    return query.decode() if isinstance(query, bytes) else str(query)


def _numbered(text: str) -> str:
    """Returns a statement with asyncpg's placeholders."""
    numbers = iter(range(1, text.count("%s") + 1))
    return re.sub("%s", lambda _: f"${next(numbers)}", text)
