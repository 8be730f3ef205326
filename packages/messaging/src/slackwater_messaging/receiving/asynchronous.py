"""The inbox table for psycopg's asynchronous connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg

from slackwater_messaging.receiving.receipt import Receipt, as_key
from slackwater_messaging.receiving.statements import CLEAN_AT_ONCE, check_remember, table_statements


class AsyncTableInbox:
    """:class:`TableInbox` for services that use ``asyncio``, with the same table and the same rows.

    Args:
        table: See :class:`TableInbox`.
        remember: See :class:`TableInbox`.
        shards: See :class:`TableInbox`.
    """

    def __init__(self, table: str, *, remember: timedelta = timedelta(days=30), shards: int = 16) -> None:
        self.table = table
        """The name."""
        self._remember = check_remember(table, remember)
        self._sql = table_statements(table, shards)

    async def create(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Creates the table unless it exists."""
        async with connection.transaction():
            for statement in self._sql.create:
                await connection.execute(statement)

    @asynccontextmanager
    async def receive(
        self, connection: psycopg.AsyncConnection[Any], key: bytes | str
    ) -> AsyncIterator[Receipt]:
        """Returns whether a request was received before; see :meth:`TableInbox.receive`."""
        async with connection.transaction():
            receipt = Receipt(as_key(key))
            await self._mark(connection, receipt)
            yield receipt
            if not receipt.is_repeat and receipt.answer is not None:
                await connection.execute(self._sql.store_answers, [[receipt.key], [receipt.answer]])

    async def clean(self, connection: psycopg.AsyncConnection[Any], *, at_most: int = CLEAN_AT_ONCE) -> int:
        """Deletes the oldest expired keys; see :meth:`TableInbox.clean`."""
        async with connection.transaction():
            return (await connection.execute(self._sql.clean, [self._remember, at_most])).rowcount

    async def _mark(self, connection: psycopg.AsyncConnection[Any], receipt: Receipt) -> None:
        while True:
            inserted = await connection.execute(self._sql.insert, [[receipt.key]])
            if await inserted.fetchone() is not None:
                return
            found = await (await connection.execute(self._sql.answers, [[receipt.key]])).fetchone()
            if found is not None:
                receipt.become_repeat(found[1])
                return
