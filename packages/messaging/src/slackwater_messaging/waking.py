"""Wakes a relay by NOTIFY while it sleeps, so that it need not poll an empty outbox.

PostgreSQL commits transactions with a NOTIFY one after the other. Therefore the trigger of an outbox notifies
only while a relay sleeps, which a lock tells: a sleeping relay holds it alone, and otherwise transactions
with messages share it until they end. Nobody waits for it. A relay that gets it looks once more; then every
message that it has not seen is from a transaction that notifies.
"""

import logging
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from psycopg import sql

from slackwater.protocol import Clock
from slackwater_messaging.database import Database

LOCK_CLASS: Final = 0x51AC4E77
"""The first half of the key of the lock; the second half is the number of the table."""
CHANNEL: Final = "slackwater_outbox_"
"""The beginning of the name of the channel; the number of the table follows."""
NAMES: Final[Mapping[str, sql.Composable]] = MappingProxyType(
    {
        "class": sql.Literal(LOCK_CLASS),
        "channel": sql.Literal(CHANNEL),
        "trigger": sql.Identifier("wake_relay"),
    }
)
"""What the definition of an outbox has to contain."""

_FIND: Final = b"""
SELECT outbox::int8, pg_backend_pid(),
    EXISTS (
        SELECT FROM pg_trigger WHERE tgrelid = outbox AND tgname = 'wake_relay' AND tgenabled IN ('O', 'A')
    ),
    has_function_privilege('pg_try_advisory_lock(int, int)', 'EXECUTE')
        AND has_function_privilege('pg_advisory_unlock(int, int)', 'EXECUTE')
FROM (SELECT to_regclass(%s)::oid) AS found (outbox)
"""
_LOCK: Final = b"SELECT pg_try_advisory_lock(%s, %s::oid::int)"
_UNLOCK: Final = b"SELECT pg_advisory_unlock(%s, %s::oid::int)"
_SLICE_SECONDS: Final = 0.2
"""How soon a relay that waits for a notification notices that it is to stop."""

logger = logging.getLogger(__name__)


class Waking:
    """The notifications of an outbox, over the connection of a relay. Used by one thread.

    Args:
        table: The name of the outbox as SQL.
    """

    def __init__(self, table: str, clock: Clock) -> None:
        self._table, self._clock = table, clock
        self._connection: Database | None = None
        self._number = 0
        self.is_asleep = False
        """Whether all messages that were not seen yet notify."""
        self.problem: str | None = None
        """Why nothing notifies; None: the relay can sleep, or has not connected yet."""

    def listen(self, connection: Database) -> None:
        """Begins to listen, once for each connection; says in the log if the relay can only poll.

        Raises:
            psycopg.Error: The database failed or did not answer.
        """
        if connection is self._connection:
            return
        self.is_asleep = False
        before, self.problem = self.problem, self._listened(connection)
        if self.problem not in (None, before):
            logger.warning("outbox %s: the relay only polls, because %s", self._table, self.problem)
        self._connection = connection

    def sleep(self) -> bool:
        """Tries to have the next messages notify; then look once more before :meth:`wait`.

        False if the relay can only poll, a transaction with messages is open that will not notify, or
        another relay of the outbox sleeps.
        """
        if self._connection is None or self.problem is not None:
            return False
        row = self._connection.execute(_LOCK, [LOCK_CLASS, self._number]).fetchone()
        self.is_asleep = row is not None and bool(row[0])
        return self.is_asleep

    def wake(self) -> None:
        """Says that the relay looks by itself again."""
        if self.is_asleep and self._connection is not None:
            self._connection.execute(_UNLOCK, [LOCK_CLASS, self._number])
        self.is_asleep = False

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Waits for a notification, for a time at most, or until it is to stop; returns whether one came."""
        connection = self._connection
        if connection is None or self.problem is not None:
            stop.wait(seconds)
            return False
        deadline = self._clock.monotonic() + seconds
        while not stop.is_set() and (left := deadline - self._clock.monotonic()) > 0:
            if list(connection.notifies(timeout=min(left, _SLICE_SECONDS), stop_after=1)):
                return True
        return False

    def _listened(self, connection: Database) -> str | None:
        """Listens; returns why the relay could not be woken."""
        number, server, has_trigger, has_rights = connection.execute(_FIND, [self._table]).fetchall()[0]
        if server != connection.info.backend_pid:
            return (
                "its connection goes through a pooler, which passes no notifications on; give it a direct one"
            )
        if not has_trigger:
            return (
                "the table has no enabled trigger wake_relay; let the owner of the table call Outbox.create"
            )
        if not has_rights:
            return "its user may not execute pg_try_advisory_lock and pg_advisory_unlock"
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"{CHANNEL}{number}")))
        self._number = number
        return None
