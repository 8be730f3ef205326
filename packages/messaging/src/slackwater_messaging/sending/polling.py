"""Way 1, outbox by polling: a relay reads the outbox, sends, and removes what has arrived."""

import logging
import threading
from dataclasses import dataclass
from datetime import timedelta

from slackwater_messaging.errors import LOST_CONNECTION, MessagingError, MessagingUnavailableError
from slackwater_messaging.sending.closing import Closing, KeptConnection
from slackwater_messaging.sending.kafka import BatchProducer
from slackwater_messaging.sending.outbox import LANES, Database, Outbox, SavedMessage
from slackwater_messaging.sending.step import SendProbe, SendStep, no_probe
from slackwater_protocol import Clock, KafkaSettings, SystemClock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay works."""

    batch: int = 500
    """Messages that are sent in one database transaction, at most."""
    first_pause: timedelta = timedelta(milliseconds=10)
    """Time to the next look after nothing was found; it doubles with each look."""
    longest_pause: timedelta = timedelta(seconds=1)
    """The longest time between two looks; so late may a message be after an idle time."""
    request_timeout: timedelta = timedelta(seconds=30)
    """For the messages of a batch to arrive; so long may a database transaction stand open."""
    retry_after: timedelta = timedelta(seconds=30)
    """Time to the next attempt with a lane in which a message was refused."""


class PollingRelay(Closing):
    """Sends the messages of an outbox: at least once, in the order of each key.

    Any number of relays may work on one outbox: each lane is sent by one of them at a time, which an
    advisory lock of its transaction sees to. Without work a relay asks one question, at growing intervals.

    A message that Kafka refuses is named in the log and in :attr:`refused`, and holds up its lane until the
    topic is mended or the row removed; other lanes go on.

    Not thread-safe. Close it, or use it in a ``with`` block.

    Args:
        database: A connection string of libpq.
        kafka: The brokers.
        outbox: The table.
        settings: How it works.
        clock: For pauses.
        probe: Is told of each step.
    """

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
        self._outbox = outbox
        self._settings, self._clock, self._probe = settings or RelaySettings(), clock or SystemClock(), probe
        self._producer = BatchProducer(kafka, self._settings.request_timeout)
        self._connection = KeptConnection(database)
        self._next = 0
        self._held_until: dict[int, float] = {}
        self.refused: dict[int, MessagingError] = {}
        """By lane, the refusal that holds it up."""

    def run(self, stop: threading.Event) -> None:
        """Sends what comes until it is told to stop. Waits for servers that are away."""
        pause = self._settings.first_pause
        while not stop.is_set():
            try:
                sent = self.run_once()
            except (MessagingUnavailableError, *LOST_CONNECTION) as error:
                logger.warning("outbox %s: %s; trying again", self._outbox.table, error)
                self._connection.close()
                sent, pause = 0, self._settings.longest_pause
            if sent:
                pause = self._settings.first_pause
            else:
                stop.wait(pause.total_seconds())
                pause = min(2 * pause, self._settings.longest_pause)

    def run_once(self) -> int:
        """Sends a batch of each lane that has messages and no other relay; returns how many were sent.

        Raises:
            MessagingUnavailableError: Kafka does not answer. Messages of a batch may have arrived: they are
                sent again.
            psycopg.Error: The database does not do its part; likewise.
        """
        connection = self._connection.open()
        now = self._clock.monotonic()
        busy = [
            lane for lane in self._outbox.busy_lanes(connection) if self._held_until.get(lane, now) <= now
        ]
        self._next = (self._next + 1) % LANES  # relays that begin with different lanes meet less often
        turn = sorted(busy, key=lambda lane: (lane - self._next) % LANES)
        return sum(self._send(connection, lane) for lane in turn)

    def close(self) -> None:
        """Lets go of both servers. Idempotent."""
        self._producer.discard()
        self._connection.close()

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

    def _note(self, lane: int, taken: list[SavedMessage], refused: dict[int, MessagingError]) -> None:
        self.refused.pop(lane, None)
        self._held_until.pop(lane, None)
        for place, error in refused.items():
            logger.error("outbox %s: message %s: %s", self._outbox.table, taken[place].id, error)
            self.refused.setdefault(lane, error)
        if refused:
            self._held_until[lane] = self._clock.monotonic() + self._settings.retry_after.total_seconds()
