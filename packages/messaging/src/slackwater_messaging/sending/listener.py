"""Proof of delivery: reads the destination topics, and removes the rows of the messages found there."""

import logging
from collections.abc import Collection
from datetime import timedelta

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import Message as Record

from slackwater.kafka.retry import Retry, is_transient
from slackwater.protocol import KafkaSettings
from slackwater_messaging.errors import LOST_CONNECTION, MessagingUnavailableError
from slackwater_messaging.sending.closing import KeptConnection, Runner
from slackwater_messaging.sending.headers import HEADER_MESSAGE, MessageId, header_of
from slackwater_messaging.sending.outbox import Outbox
from slackwater_messaging.sending.step import SendProbe, SendStep, no_probe
from slackwater_messaging.topics import explained, quiet

logger = logging.getLogger(__name__)

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

    passing = MessagingUnavailableError, *LOST_CONNECTION

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
        self._reading = Retry(f"the listener of group {group}: Kafka")
        self._found: list[MessageId] = []
        """Messages before the consumer's position whose rows were not removed yet."""
        self._connection = KeptConnection(database)
        self._consumer = Consumer(
            {
                **quiet(kafka).client_config,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
            }
        )
        self._consumer.subscribe(list(topics))

    def run_once(self, timeout: timedelta = timedelta(milliseconds=200)) -> int:
        """Removes the rows of messages that arrive within ``timeout``; returns the number of rows.

        After an error, the next call first removes the rows that this one could not remove.

        Raises:
            MessagingConfigError: The listener is in use by another thread or task.
            MessagingUnavailableError: Kafka rejects a request.
            psycopg.Error: The database failed or did not answer.
        """
        with self._use.held():
            has_read = bool(self._found) or self._read(timeout)
            removed = self._remove()
            if has_read:
                with explained("committing the group's offsets"):
                    self._consumer.commit(asynchronous=False)
            return removed

    def close(self) -> None:
        """Leaves the group. Idempotent."""
        self._consumer.close()
        self._connection.close()

    def _disconnect(self) -> None:
        self._connection.close()

    def _read(self, timeout: timedelta) -> bool:
        """Notes messages; returns whether the consumer's position has advanced.

        All records are noted before an error among them is raised, because the position is behind all.
        """
        with explained("reading the destination topics"):
            first = self._consumer.poll(timeout.total_seconds())
            records = [] if first is None else [first, *self._consumer.consume(_AT_ONCE, 0)]
            good = [record for record in records if record.error() is None]
            self._found += [found for record in good if (found := self._id_of(record)) is not None]
            for record in records:
                if (error := record.error()) is None:
                    self._reading.reset()
                elif is_transient(error):
                    self._reading.note(error)
                else:
                    raise KafkaException(error)
        return bool(good)

    def _id_of(self, record: Record) -> MessageId | None:
        text = header_of(record.headers(), HEADER_MESSAGE)
        found = None if text is None else MessageId.parse(text)
        return found if found is not None and found.outbox == self._outbox.table else None

    def _remove(self) -> int:
        if not self._found:
            return 0
        self._probe(SendStep.TAKEN)
        removed = self._outbox.remove(self._connection.open(), self._found)
        self._found = []
        self._probe(SendStep.REMOVED)
        return removed
