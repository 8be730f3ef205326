"""Ways 4 and 5: messages are saved in the database transaction, and then sent in a Kafka transaction.

Their rows are removed after Kafka's commit, by the sender (way 4) or by a listener on the destination topics
(way 5). After a failure, recovery reads the topics to find out which messages they contain, and sends only
the others.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg

from slackwater.protocol import (
    Clock,
    KafkaSettings,
    SlackwaterError,
    SystemClock,
    UnavailableError,
    epoch_ms,
)
from slackwater_messaging.database import (
    LOST_CONNECTION,
    Database,
    KeptConnection,
    autocommit,
    check_whole,
    database_transaction,
)
from slackwater_messaging.kafka import SenderSettings
from slackwater_messaging.message import HEADER_MESSAGE, MessageId, header_of
from slackwater_messaging.outbox import Outbox, SavedMessage
from slackwater_messaging.reading import GroupMember, explained, topic_reader
from slackwater_messaging.running import Runner
from slackwater_messaging.sender import (
    Sender,
    SendingTransaction,
    SendProbe,
    SendStep,
    no_probe,
)

logger = logging.getLogger(__name__)

_AT_ONCE = 1_000
"""The maximum number of messages that recovery sends in one Kafka transaction."""
_READ_AT_ONCE = 5_000
"""The maximum number of messages whose rows a listener removes in one statement."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of a recovery."""

    held: int
    """The number of saved messages that their topics already contained."""
    sent: int
    """The number of saved messages that were missing in their topics, and were sent."""


class SavedSender(Sender):
    """Way 4: saves messages with the data, sends them after the commit, and removes them in one statement.

    Readers of committed records see exactly once: whatever process dies, a committed message is in its topic
    exactly once after the sender has recovered, and an uncommitted message never is. Messages of a sender
    keep their order. While Kafka does not answer, transactions still commit, and their messages remain saved.
    Once per ``retry_after``, a transaction checks whether Kafka answers again, and waits for at most
    ``request_timeout``.

    A sender recovers before its first transaction and after every failure: it takes over its name, reads the
    messages saved under it, reads the topics from the time of the oldest saved message on, and sends the
    messages that are missing there. Topics must therefore keep records for longer than a sender may be down.
    The rows of a process that does not return wait until another one recovers under its name.

    If Kafka fails or does not answer after the commit, a transaction logs a warning and raises nothing.
    """

    removes = True
    """Whether the sender removes what it has sent."""

    def __init__(
        self,
        kafka: KafkaSettings,
        outbox: Outbox,
        name: str,
        *,
        settings: SenderSettings | None = None,
        clock: Clock | None = None,
        probe: SendProbe = no_probe,
    ) -> None:
        super().__init__(kafka, name, settings=settings, probe=probe)
        self._outbox, self._clock = outbox, clock or SystemClock()
        self._retry_at = float("-inf")

    @contextmanager
    def _transaction(self, connection: Database) -> Iterator[SendingTransaction[Database]]:
        if not self._is_settled and self._clock.monotonic() >= self._retry_at:
            with self._waiting_for_servers():
                self._recover(connection)
        sending = SendingTransaction(connection)
        with database_transaction(connection):
            yield sending
            check_whole(connection)
            saved: list[SavedMessage] = []
            if sending.messages:
                saved = self._outbox.save(connection, sending.messages, self.name)
                self._probe(SendStep.SAVED)
            is_next = self._unsettle(saved)
        self._probe(SendStep.DATABASE_COMMITTED)
        if is_next:
            with self._waiting_for_servers():
                self._deliver(connection, saved)

    def recover(self, connection: Database) -> Recovery:
        """Sends the sender's saved messages that are missing in their topics, and removes the rows.

        Raises:
            StateError: A topic no longer exists, or another process has taken over the sender's
                name.
            UnavailableError: A server failed or did not answer. The messages remain saved.
            ConfigError: The sender is in use by another thread or task.
        """
        with self._use.held():
            return self._recover(connection)

    def waiting_senders(self, connection: Database) -> set[str]:
        """Returns the names of all senders whose saved messages are in the table."""
        with autocommit(connection):
            return self._outbox.senders(connection)

    def _recover(self, connection: Database) -> Recovery:
        self._is_settled = False
        self._producer.open()
        with autocommit(connection):
            saved = self._outbox.read(connection, self.name)
        missing = self._missing(saved)
        gone = {each.id for each in missing}
        held = [each for each in saved if each.id not in gone]
        self._remove(connection, held)
        for start in range(0, len(missing), _AT_ONCE):
            self._send(missing[start : start + _AT_ONCE])
            if self.removes:
                self._remove(connection, missing[start : start + _AT_ONCE])
        self._is_settled = True
        return Recovery(len(held), len(missing))

    def _unsettle(self, saved: Sequence[SavedMessage]) -> bool:
        """Notes that messages may need recovery from now on, even if the outcome of the commit is not known.

        Returns whether the messages may be sent directly, because no others wait before them.
        """
        is_next = self._is_settled and bool(saved)
        self._is_settled = self._is_settled and not saved
        return is_next

    def _deliver(self, connection: Database, saved: Sequence[SavedMessage]) -> None:
        self._send(saved)
        has_others = self._remove(connection, saved) if self.removes else False
        self._is_settled = not has_others

    def _send(self, saved: Sequence[SavedMessage]) -> None:
        self._producer.write((each.message, each.id) for each in saved)
        self._probe(SendStep.PRODUCED)
        self._producer.commit()
        self._probe(SendStep.KAFKA_COMMITTED)

    def _remove(self, connection: Database, saved: Sequence[SavedMessage]) -> bool:
        """Removes rows; returns whether a previous process with the same name has left others."""
        if not saved:
            return False
        with autocommit(connection):
            has_others = self._outbox.remove_own(connection, [each.id for each in saved], self.name)
        self._probe(SendStep.REMOVED)
        return has_others

    def _missing(self, saved: Sequence[SavedMessage]) -> list[SavedMessage]:
        """Returns the messages that are missing in their topics."""
        if not saved:
            return []
        topics = {each.message.topic for each in saved}
        oldest = datetime.fromtimestamp(min(each.id.created_us for each in saved) / 1e6, UTC)
        wanted = {str(each.id): each for each in saved}
        with topic_reader(self._producer.kafka, self._settings.patience, self._clock) as reader:
            for record in reader.since(topics, epoch_ms(oldest - self._settings.clock_margin)):
                wanted.pop(header_of(record.headers(), HEADER_MESSAGE) or "", None)
        return list(wanted.values())

    @contextmanager
    def _waiting_for_servers(self) -> Iterator[None]:
        """Leaves saved messages to a later attempt when a server fails or does not answer."""
        try:
            yield
        except (SlackwaterError, psycopg.OperationalError) as error:
            self._producer.close()
            self._retry_at = self._clock.monotonic() + self._settings.retry_after.total_seconds()
            logger.warning("sender %s: messages remain saved and will be sent later: %s", self.name, error)


class ProvenSender(SavedSender):
    """Way 5: like :class:`SavedSender`, but a :class:`DeliveryListener` removes the rows.

    The sender needs one statement less per transaction. The listener removes many rows at once after it has
    seen the messages in their topics. The guarantee is the same. Messages of a process whose name was taken
    over are found by the next :meth:`recover`, and not by the next transaction.
    """

    removes = False


class DeliveryListener(Runner):
    """Removes messages from an outbox that its destination topics contain, many rows at once.

    Listeners with the same group share the topics. If one dies, the records whose rows it had not removed are
    read again; removing is idempotent. Records that do not come from the outbox are ignored.

    Not thread-safe: a second thread or task is refused. Close it, or use it in a ``with`` block.
    ``database`` is a connection string of libpq.
    """

    passing = UnavailableError, *LOST_CONNECTION

    def __init__(
        self,
        database: str,
        kafka: KafkaSettings,
        outbox: Outbox,
        *,
        topics: Collection[str],
        group: str,
        probe: SendProbe = no_probe,
    ) -> None:
        super().__init__(f"the listener of group {group}")
        self._outbox, self._probe = outbox, probe
        self._connection = KeptConnection(database)
        self._member = GroupMember(kafka, list(topics), group, latest=False, skips_lost=True)

    def run_once(self, timeout: timedelta = timedelta(milliseconds=200)) -> int:
        """Removes the rows of messages that arrive within ``timeout``; returns the number of rows.

        After an error, the next call first removes the rows that this one could not remove.

        Raises:
            ConfigError: The listener is in use by another thread or task.
            UnavailableError: Kafka rejects a request.
            psycopg.Error: The database failed or did not answer.
        """
        with self._use.held(), explained("reading the destination topics"):
            if not self._member.is_begun:
                self._member.begin({})
            self._member.read(_READ_AT_ONCE, timeout.total_seconds())
            removed = self._remove()
            self._member.done()
            self._member.commit()
            return removed

    def close(self) -> None:
        """Leaves the group. Idempotent."""
        self._member.close()
        self._connection.close()

    def _disconnect(self) -> None:
        self._connection.close()

    def _remove(self) -> int:
        texts = (header_of(each.headers, HEADER_MESSAGE) for each in self._member.batch)
        known = (MessageId.parse(text) for text in texts if text is not None)
        found = [each for each in known if each is not None and each.outbox == self._outbox.table]
        if not found:
            return 0
        self._probe(SendStep.TAKEN)
        removed = self._outbox.remove(self._connection.open(), found)
        self._probe(SendStep.REMOVED)
        return removed
