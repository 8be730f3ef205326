"""Proof of delivery: reads the destination topics, and removes the rows of the messages found there."""

from collections.abc import Collection
from datetime import timedelta

from slackwater.protocol import KafkaSettings, UnavailableError
from slackwater_messaging.database import LOST_CONNECTION, KeptConnection
from slackwater_messaging.group import GroupMember
from slackwater_messaging.message import HEADER_MESSAGE, MessageId, ReceivedMessage, header_of
from slackwater_messaging.running import Runner
from slackwater_messaging.sending.outbox import Outbox
from slackwater_messaging.sending.transaction import SendProbe, SendStep, no_probe
from slackwater_messaging.topics import explained

_AT_ONCE = 5_000


class DeliveryListener(Runner):
    """Removes messages from an outbox that its destination topics contain, many rows at once.

    Listeners with the same group share the topics. If one dies, the records whose rows it had not removed are
    read again; removing is idempotent. Records that do not come from the outbox are ignored.

    Not thread-safe: a second thread or task is refused. Close it, or use it in a ``with`` block.

    Args:
        database: A connection string of libpq.
        kafka: The brokers.
        outbox: The table.
        topics: The destination topics of its messages.
        group: The consumer group.
        probe: Called after each step.
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
            self._member.read(_AT_ONCE, timeout.total_seconds())
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

    def _id_of(self, message: ReceivedMessage) -> MessageId | None:
        text = header_of(message.headers, HEADER_MESSAGE)
        found = None if text is None else MessageId.parse(text)
        return found if found is not None and found.outbox == self._outbox.table else None

    def _remove(self) -> int:
        found = [found for each in self._member.batch if (found := self._id_of(each)) is not None]
        if not found:
            return 0
        self._probe(SendStep.TAKEN)
        removed = self._outbox.remove(self._connection.open(), found)
        self._probe(SendStep.REMOVED)
        return removed
