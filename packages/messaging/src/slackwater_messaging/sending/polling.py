"""Way 1, outbox by polling: a relay reads the outbox, sends the messages, and removes those that arrived."""

import logging
import threading
from dataclasses import dataclass
from datetime import timedelta

from slackwater.protocol import Clock, KafkaSettings, SlackwaterError, UnavailableError
from slackwater_messaging.database import LOST_CONNECTION, Database, KeptConnection
from slackwater_messaging.running import Runner
from slackwater_messaging.sending.kafka import BatchProducer
from slackwater_messaging.sending.outbox import LANES, Outbox, SavedMessage
from slackwater_messaging.sending.transaction import SendProbe, SendStep, no_probe

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """The settings of a relay."""

    batch: int = 500
    """The maximum number of messages that are sent in one database transaction."""
    first_pause: timedelta = timedelta(milliseconds=10)
    """The time until the next poll after an empty one. It doubles with each empty poll."""
    longest_pause: timedelta = timedelta(seconds=1)
    """The maximum time between two polls, which can delay a message after an idle period."""
    request_timeout: timedelta = timedelta(seconds=30)
    """How long the messages of a batch may take to arrive. A database transaction is open for this time."""
    retry_after: timedelta = timedelta(seconds=30)
    """The time until the next attempt with a lane in which a message was rejected."""


class PollingRelay(Runner):
    """Sends the messages of an outbox at least once, in the order of each key.

    Any number of relays may work on one outbox. An advisory lock in the relay's transaction ensures that only
    one of them sends a lane at a time. While there are no messages, a relay runs one query at growing
    intervals.

    A message that Kafka rejects is reported in the log and in :attr:`refused`. It blocks its lane until the
    topic is repaired or the row is removed; other lanes continue.

    Not thread-safe: a second thread or task is refused. Close it, or use it in a ``with`` block.

    Args:
        database: A connection string of libpq.
        kafka: The brokers.
        outbox: The table.
        settings: The relay's settings.
        clock: Measures pauses.
        probe: Called after each step.
    """

    passing = UnavailableError, *LOST_CONNECTION

    def __init__(
        self,
        database: str,
        kafka: KafkaSettings,
        outbox: Outbox,
        *,
        settings: RelaySettings | None = None,
        clock: Clock | None = None,
        probe: SendProbe = no_probe,
    ) -> None:
        super().__init__(f"the relay of outbox {outbox.table}", clock)
        self._outbox = outbox
        self._settings, self._probe = settings or RelaySettings(), probe
        self._pause = self._settings.first_pause
        self._producer = BatchProducer(kafka, self._settings.request_timeout)
        self._connection = KeptConnection(database)
        self._next = 0
        self._held_until: dict[int, float] = {}
        self.refused: dict[int, SlackwaterError] = {}
        """For each blocked lane, the error that blocks it."""

    def run_once(self) -> int:
        """Sends a batch from each lane that has messages and no other relay; returns the number of messages.

        Raises:
            UnavailableError: Kafka does not answer. Messages of a batch may have arrived, and will
                be sent again.
            ConfigError: The relay is in use by another thread or task.
            psycopg.Error: The database failed or did not answer; the same applies.
        """
        with self._use.held():
            return self._send_busy()

    def close(self) -> None:
        """Closes the connections to both servers. Idempotent."""
        self._producer.discard()
        self._connection.close()

    def _disconnect(self) -> None:
        self._connection.close()

    def _rest(self, stop: threading.Event, done: int) -> None:
        """Polls at growing intervals while there are no messages."""
        if done:
            self._pause = self._settings.first_pause
        else:
            stop.wait(self._pause.total_seconds())
            self._pause = min(2 * self._pause, self._settings.longest_pause)

    def _send_busy(self) -> int:
        connection = self._connection.open()
        now = self._clock.monotonic()
        busy = [
            lane for lane in self._outbox.busy_lanes(connection) if self._held_until.get(lane, now) <= now
        ]
        self._next = (self._next + 1) % LANES  # relays that begin with different lanes collide less often
        turn = sorted(busy, key=lambda lane: (lane - self._next) % LANES)
        return sum(self._send(connection, lane) for lane in turn)

    def _send(self, connection: Database, lane: int) -> int:
        with connection.transaction():
            taken = self._outbox.take(connection, lane, self._settings.batch)
            if not taken:
                return 0
            self._probe(SendStep.TAKEN)
            refused = self._producer.deliver(taken)
            self._probe(SendStep.PRODUCED)
            arrived = [each for place, each in enumerate(taken) if place not in refused]
            if arrived:
                self._outbox.remove_taken(connection, lane, arrived)
            self._probe(SendStep.REMOVED)
        self._probe(SendStep.DATABASE_COMMITTED)
        self._note(lane, taken, refused)
        return len(arrived)

    def _note(self, lane: int, taken: list[SavedMessage], refused: dict[int, SlackwaterError]) -> None:
        self.refused.pop(lane, None)
        self._held_until.pop(lane, None)
        for place, error in refused.items():
            logger.error("outbox %s: message %s: %s", self._outbox.table, taken[place].id, error)
            self.refused.setdefault(lane, error)
        if refused:
            self._held_until[lane] = self._clock.monotonic() + self._settings.retry_after.total_seconds()
