"""Reads a source from Kafka with one consumer, in the process that owns the frontier."""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from slackwater_cdc import EndOffsets, Frontier, Partition
from slackwater_sidecar.balance import Balance
from slackwater_sidecar.consumption import Consumption, Failure, Key, RecordSink
from slackwater_sidecar.lookup import Lookup
from slackwater_sidecar.reader import Starts
from slackwater_sidecar.segments import by_run, is_keyless, pairs, triples
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

_LISTED = 20


class KafkaSourceReader:
    """Implements :class:`~slackwater_sidecar.reader.SourceReader`.

    Args:
        settings: Source, brokers, tables.
        starts: From where partitions are read.
        admin: Whom to ask where topics begin and end; None: connects as the settings say.
        consume: Makes what takes records out of Kafka.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        starts: Starts,
        *,
        admin: AdminClient | None = None,
        consume: Callable[[SidecarSettings, int, RecordSink], Consumption] = Consumption,
    ) -> None:
        self._settings = settings
        self._consume = consume
        self._lookup = Lookup(settings, starts, admin)
        self._assigned: set[Key] = set()
        self._balance = Balance(self._lookup.transactions)
        self._intake: _Intake | None = None
        self._consumption: Consumption | None = None

    def discover(self, frontier: Frontier) -> list[str]:
        """See the protocol."""
        found = self._lookup.find(self._assigned)
        if found.starts:
            self._begin(frontier, found.starts)
        return found.data_topics

    def poll(self, frontier: Frontier, timeout_seconds: float) -> int:
        """See the protocol."""
        if self._consumption is None:
            return 0
        count = self._consumption.poll(timeout_seconds)
        self._balance.note(count)
        return count

    def end_offsets(self) -> EndOffsets:
        """See the protocol."""
        return self._lookup.end_offsets(self._assigned)

    def balance(self, frontier: Frontier) -> None:
        """See the protocol."""
        if self._consumption is None or self._intake is None:
            return
        pause, resume = self._balance.look(frontier, self._intake.partitions.values(), self._assigned)
        if pause:
            self._consumption.pause(pause)
        if resume:
            self._consumption.resume(resume)

    @property
    def paused_partitions(self) -> int:
        """See the protocol."""
        return len(self._balance.paused)

    def close(self) -> None:
        """See the protocol."""
        if self._consumption is not None:
            self._consumption.close()

    def _begin(self, frontier: Frontier, starts: Mapping[Key, int]) -> None:
        intake = self._intake = self._intake or _Intake(frontier, self._lookup, self._assigned)
        if self._consumption is None:
            self._consumption = self._consume(self._settings, len(starts), intake)
        self._consumption.assign(starts)
        self._assigned.update(starts)
        for key, start in starts.items():
            if self._lookup.is_data_topic(key[0]):
                intake.partitions[key] = frontier.add_partition(*key, start)
        logger.info("reading %s", listed(starts))


class _Intake:
    """Gives records to the frontier."""

    def __init__(self, frontier: Frontier, lookup: Lookup, assigned: set[Key]) -> None:
        self.partitions: dict[Key, Partition] = {}
        self._frontier = frontier
        self._lookup = lookup
        self._assigned = assigned

    def take(self, topic: str, number: int, messages: Sequence[Message]) -> None:
        partition = self.partitions.get((topic, number))
        if partition is not None:
            keyless = is_keyless(messages)
            for run, part in by_run(messages):
                newest_ms = part[-1].timestamp()[1]
                partition.read(pairs(part), run, timestamp_ms=newest_ms, is_keyless=keyless)
        elif topic == self._lookup.transactions[0]:
            self._frontier.read_transactions(triples(messages))
        else:
            self._frontier.read_notifications(pairs(messages))

    def take_end(self, topic: str, number: int, offset: int) -> None:
        skip_to(self._frontier, self.partitions.get((topic, number)), offset, self._lookup, topic)

    def take_failure(self, failure: Failure) -> None:
        error = self._lookup.error_of(failure, self._assigned)
        if error is not None:
            raise error
        logger.warning("Kafka: %s", failure.reason)


def skip_to(frontier: Frontier, partition: Partition | None, offset: int, lookup: Lookup, topic: str) -> None:
    """Says that a partition of a source holds nothing more below an offset."""
    if partition is not None:
        partition.skip_to(offset)
    elif topic == lookup.transactions[0]:
        frontier.skip_transactions_to(offset)
    else:
        frontier.skip_notifications_to(offset)


def listed(starts: Mapping[Key, int]) -> str:
    """Where reading begins; of many partitions only the first ones."""
    first = ", ".join(f"{t}/{n} from {s}" for (t, n), s in islice(starts.items(), _LISTED))
    return first if len(starts) <= _LISTED else f"{first} and {len(starts) - _LISTED} more"
