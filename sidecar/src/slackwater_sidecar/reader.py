"""Reads the topics of a source into a frontier."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Protocol

from confluent_kafka.admin import AdminClient

from slackwater.cdc import EndOffsets, Frontier, Partition
from slackwater.cdc.columns import ParsedRows
from slackwater_sidecar.consumption import Consumption, Failure, Pairs, PartitionId, RecordSink
from slackwater_sidecar.lookup import Lookup, Starts
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.workers import WorkerPool, WorkerSettings

logger = logging.getLogger(__name__)

_LISTED = 20
_FAR_AHEAD = 100_000
"""How many transactions may be known of a partition, or twice as many ENDs, before reading it is paused."""
_RECORDS_BETWEEN_COMPARISONS = 20_000
"""How many records are read between two comparisons: one costs time for every partition."""


class SourceReader(Protocol):
    """Reads the topics of a source into one frontier. Used by one thread."""

    def discover(self) -> list[str]:
        """Looks for topics and partitions that are not read yet and begins to; returns all data topics.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
            InputError: a partition does not have the offset from which it must be read.
        """
        ...

    def poll(self, timeout_seconds: float) -> int:
        """Gives the frontier what has come, after at most the time-out; returns the number of records.

        Raises:
            SidecarUnavailableError: a topic cannot be read.
            InputError: records were deleted before they were read.
        """
        ...

    def end_offsets(self) -> EndOffsets:
        """Returns high watermarks, as of now, of all that is read: what is written counts, committed or not.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
        """
        ...

    def held_back(self) -> int:
        """Returns how many offsets, of all that is read, cannot be read: their Kafka transaction is open.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
        """
        ...

    def balance(self, *, needs_commits: bool = False) -> None:
        """Pauses what is far ahead of the rest, so that memory stays bounded.

        Args:
            needs_commits: Whether the transaction topic has to be read to its end, however far ahead it is.
        """
        ...

    @property
    def paused_partitions(self) -> int:
        """Counts the partitions that are not read at present."""
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class RecordReader(Protocol):
    """Takes records of partitions out of Kafka: with a consumer in this process, or with worker processes."""

    def assign(self, starts: Mapping[PartitionId, int]) -> None:
        """Begins to read further partitions, from these offsets; all or none.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
        """
        ...

    def read(self, sink: RecordSink, timeout_seconds: float) -> int:
        """Hands over what has come, after at most the time-out; returns the number of records, about.

        Raises:
            SidecarUnavailableError: the schema registry does not answer; nothing is lost, call again.
        """
        ...

    def hold(self, pause: frozenset[PartitionId], resume: frozenset[PartitionId]) -> None:
        """Pauses and resumes partitions."""
        ...

    @property
    def orphans(self) -> frozenset[PartitionId]:
        """Partitions that nobody reads any more: assign them again."""
        ...

    @property
    def pids(self) -> list[int]:
        """The worker processes; none: this process reads."""
        ...

    def close(self) -> None:
        """Frees connections and ends processes."""
        ...


def connect(settings: SidecarSettings, others: frozenset[str], partitions: int) -> RecordReader:
    """Returns a reader of records: in this process, or with as many workers as the settings say.

    Args:
        settings: Brokers, schema registry, number of workers.
        others: Topics that are no data topics.
        partitions: How many are read at first.
    """
    if settings.workers > 1:
        return WorkerPool(WorkerSettings(settings, others, partitions), min(settings.workers, partitions))
    return Consumption(settings, others, partitions)


class KafkaSourceReader:
    """Implements :class:`SourceReader`.

    The frontier stays in this process, also with workers: they know nothing but offsets. What one has handed
    over is in the frontier; what it has not, its successor reads again from there. So a worker may be killed
    at any moment, and nothing starts over.

    Args:
        settings: Source, brokers, tables, number of workers.
        starts: From where partitions are read.
        frontier: Whom records are for.
        admin: Whom to ask where topics begin and end; None: connects as the settings say.
        connect: Makes what takes records out of Kafka.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        starts: Starts,
        frontier: Frontier,
        *,
        admin: AdminClient | None = None,
        connect: Callable[[SidecarSettings, frozenset[str], int], RecordReader] = connect,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._lookup = Lookup(settings, starts, admin)
        self._balance = Balance(self._lookup.transactions)
        self._assigned: set[PartitionId] = set()
        self._frontier = frontier
        self._intake = _Intake(frontier, self._lookup.transactions)
        self._records: RecordReader | None = None
        """None until there is a partition to read."""

    @property
    def pids(self) -> list[int]:
        """The worker processes; none: this process reads."""
        return [] if self._records is None else self._records.pids

    def discover(self) -> list[str]:
        """See the protocol; also gives partitions whose worker has ended to another."""
        found = self._lookup.find(self._assigned, self._frontier.named_topics())
        if self._records is not None and self._records.orphans:
            self._adopt(self._records, self._intake.positions(self._records.orphans))
        if found.starts:
            self._begin(found.starts, found.data_topics)
        return found.data_topics

    def poll(self, timeout_seconds: float) -> int:
        """See the protocol."""
        if self._records is None:
            time.sleep(timeout_seconds)  # nothing is there to be waited for
            return 0
        count = self._records.read(self._intake, timeout_seconds)
        self._balance.record(count)
        for failure in self._intake.take_failures():
            self._raise_or_log(failure)
        return count

    def end_offsets(self) -> EndOffsets:
        """See the protocol."""
        return self._lookup.end_offsets(self._assigned)

    def held_back(self) -> int:
        """See the protocol."""
        return self._lookup.held_back(self._assigned)

    def balance(self, *, needs_commits: bool = False) -> None:
        """See the protocol."""
        if self._records is None:
            return
        pause, resume = self._balance.update(
            self._frontier, self._intake.partitions.values(), self._assigned, needs_commits=needs_commits
        )
        if pause or resume:
            self._records.hold(pause, resume)

    @property
    def paused_partitions(self) -> int:
        """See the protocol."""
        return len(self._balance.paused)

    def close(self) -> None:
        """See the protocol."""
        if self._records is not None:
            self._records.close()

    def _begin(self, starts: Mapping[PartitionId, int], data_topics: Collection[str]) -> None:
        if self._records is None:
            others = frozenset({self._lookup.transactions[0], self._lookup.notifications[0]})
            self._records = self._connect(self._settings, others, len(starts))
        self._records.assign(starts)
        self._assigned.update(starts)
        for key, start in starts.items():
            self._intake.add(key, start, has_rows=key[0] in data_topics)
        workers = len(self._records.pids)
        logger.info("reading %s%s", _listed(starts), f" with {workers} workers" if workers else "")

    def _adopt(self, records: RecordReader, orphans: Mapping[PartitionId, int]) -> None:
        records.assign(orphans)
        records.hold(self._balance.paused.intersection(orphans), frozenset())

    def _raise_or_log(self, failure: Failure) -> None:
        error = self._lookup.error_of(failure, self._assigned)
        if error is not None:
            raise error
        logger.warning("Kafka: %s", failure.reason)


class _Intake:
    """Gives the frontier what was read, in this process or by a worker.

    Args:
        frontier: Whom records are for.
        transactions: The partition with BEGIN and END.
    """

    def __init__(self, frontier: Frontier, transactions: PartitionId) -> None:
        self._frontier = frontier
        self._transactions = transactions
        self._failures: list[Failure] = []
        self.partitions: dict[PartitionId, Partition] = {}
        """Partitions of data topics."""
        self.others: dict[PartitionId, int] = {}
        """The next offset of partitions that hold no rows."""

    def add(self, key: PartitionId, start: int, *, has_rows: bool) -> None:
        """Expects records of a partition from an offset on."""
        if has_rows:
            self.partitions[key] = self._frontier.add_partition(*key, start)
        else:
            self.others[key] = start

    def positions(self, keys: frozenset[PartitionId]) -> dict[PartitionId, int]:
        """Returns the offsets from which reading of partitions continues."""
        rows = self.partitions
        return {key: rows[key].position if key in rows else self.others[key] for key in keys}

    def take_failures(self) -> list[Failure]:
        """Returns the failures since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def take_rows(
        self, key: PartitionId, rows: Pairs, run: str, timestamp_ms: int, *, is_keyless: bool
    ) -> None:
        self.partitions[key].read(rows, run, timestamp_ms=timestamp_ms, is_keyless=is_keyless)

    def take_parsed_rows(
        self, key: PartitionId, rows: ParsedRows, run: str, timestamp_ms: int, *, is_keyless: bool
    ) -> None:
        self.partitions[key].read_parsed(rows, run, timestamp_ms=timestamp_ms, is_keyless=is_keyless)

    def take_others(self, key: PartitionId, records: Sequence[tuple[int, bytes | None, int]]) -> None:
        if key == self._transactions:
            self._frontier.read_transactions(records)
        else:
            self._frontier.read_notifications((offset, value) for offset, value, _ in records)
        self._move_to(key, records[-1][0] + 1)

    def take_end(self, key: PartitionId, offset: int) -> None:
        partition = self.partitions.get(key)
        if partition is not None:
            partition.skip_to(offset)
            return
        if key == self._transactions:
            self._frontier.skip_transactions_to(offset)
        else:
            self._frontier.skip_notifications_to(offset)
        self._move_to(key, offset)

    def take_failure(self, failure: Failure) -> None:
        self._failures.append(failure)

    def _move_to(self, key: PartitionId, offset: int) -> None:
        self.others[key] = max(self.others.get(key, 0), offset)


def _listed(starts: Mapping[PartitionId, int]) -> str:
    """Names where reading begins; of many partitions only the first ones."""
    first = ", ".join(f"{t}/{n} from {s}" for (t, n), s in islice(starts.items(), _LISTED))
    return first if len(starts) <= _LISTED else f"{first} and {len(starts) - _LISTED} more"


class Balance:
    """Compares partitions and remembers which are paused.

    Args:
        transactions: The partition with BEGIN and END.
    """

    def __init__(self, transactions: PartitionId) -> None:
        self._transactions = transactions
        self._new_records = 0
        self.paused: frozenset[PartitionId] = frozenset()
        """Partitions that are not to be read at present."""

    def record(self, records: int) -> None:
        """Counts records that were read since the last comparison."""
        self._new_records += records

    def update(
        self,
        frontier: Frontier,
        partitions: Collection[Partition],
        assigned: Collection[PartitionId],
        *,
        needs_commits: bool = False,
    ) -> tuple[frozenset[PartitionId], frozenset[PartitionId]]:
        """Returns the partitions that are to be paused now, and those that are to be resumed."""
        if self._new_records < _RECORDS_BETWEEN_COMPARISONS and not self.paused:
            return frozenset(), frozenset()
        self._new_records = 0
        ahead = {p.key for p in partitions if self._is_ahead(p.key, p.backlog)}
        may_pause = self._transactions in assigned and not needs_commits
        if may_pause and self._is_ahead(self._transactions, frontier.queue_length // 2):
            ahead.add(self._transactions)
        before, self.paused = self.paused, frozenset(ahead if len(ahead) < len(assigned) else ())
        return self.paused - before, before - self.paused

    def _is_ahead(self, key: PartitionId, backlog: int) -> bool:
        return backlog > (_FAR_AHEAD // 2 if key in self.paused else _FAR_AHEAD)
