"""The bridge to connections of asyncpg. Needs the extra ``asyncpg``."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from slackwater_messaging.database import LOST_CONNECTION, Bridge, Rows, Statement


class AsyncpgBridge(Bridge):
    """Uses a connection of asyncpg, or of its pool. It begins no transaction by itself."""

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(connection, loop)
        self._open: Any = None
        """The transaction that BEGIN has begun. It is asyncpg's, so that blocks of the service nest in it."""

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return bool(self.connection.is_closed())

    @property
    def autocommit(self) -> bool:
        """Always true, because each statement outside a transaction is committed by itself."""
        return True

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        pass

    async def execute_async(self, query: Statement, parameters: Sequence[object] | None = None) -> Rows:
        """Runs a statement; called in the event loop."""
        with _translated():
            text = _text(query)
            if text == "BEGIN":
                self._open = self.connection.transaction()
                await self._open.start()
                return Rows([], -1, text)
            prepared = await self.connection.prepare(_numbered(text) if parameters else text)
            rows = await prepared.fetch(*parameters or ())
            status = prepared.get_statusmsg()
        count = (status or "").rpartition(" ")[2]
        return Rows([tuple(row) for row in rows], int(count) if count.isdigit() else -1, status)

    def commit(self) -> None:
        """Commits the open transaction."""
        self._end("commit")

    def rollback(self) -> None:
        """Rolls the open transaction back."""
        self._end("rollback")

    def lost(self, error: Exception) -> psycopg.Error | None:
        """Returns psycopg's error for a failed statement of the service if a retry may succeed."""
        if isinstance(error, asyncpg.PostgresError):
            meaning = _meaning(error)
            return meaning(str(error)) if issubclass(meaning, LOST_CONNECTION) else None
        return psycopg.OperationalError(str(error)) if self.closed else None

    async def _status(self) -> TransactionStatus:
        """Returns the state; asyncpg does not say whether a transaction has failed, so it is tried."""
        if not self.connection.is_in_transaction():
            return TransactionStatus.IDLE
        try:
            await self.execute_async("SELECT 1")
        except psycopg.errors.InFailedSqlTransaction:
            return TransactionStatus.INERROR
        return TransactionStatus.INTRANS

    @asynccontextmanager
    async def _block(self) -> AsyncIterator[None]:
        with _translated():
            block = self.connection.transaction()  # refused if the connection is closed
            await block.start()
        try:
            yield
        except BaseException:
            with _translated():
                await block.rollback()
            raise
        with _translated():
            await block.commit()

    def _end(self, how: str) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            with _translated():
                self._run(getattr(opened, how)())


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
