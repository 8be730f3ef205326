"""Finds the topics of a source, and reads them into a frontier."""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # public in confluent_kafka.admin, but not typed so

from slackwater.cdc import EndOffsets, Frontier, Partition
from slackwater.cdc.partition import ParsedRows
from slackwater.kafka.reader import list_offsets
from slackwater.kafka.retry import reason_of
from slackwater.protocol import ConfigError, InputError, SlackwaterError
from slackwater.protocol.keys import cut_log_topic, progress_topic
from slackwater_sidecar.consumption import (
    Consumption,
    Failure,
    Pairs,
    PartitionId,
    SchemasUnavailableError,
    SidecarUnavailableError,
)
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.workers import WorkerPool

logger = logging.getLogger(__name__)

_LISTED = 20
_FAR_AHEAD = 100_000
"""How many transactions may be known of a partition, or twice as many ENDs, before reading it is paused."""
_RECORDS_BETWEEN_COMPARISONS = 20_000
"""How many records are read between two comparisons: one costs time for every partition."""
_SECONDS = 3.0
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_CONNECTION_SETTINGS = (
    "security.",
    "sasl.",
    "ssl.",
    "socket.",
    "client.",
    "broker.",
    "metadata.",
    "reconnect.",
    "log_level",
    "retry.",
)
"""What librdkafka's settings that say how to connect begin with: an admin client complains about others."""

Starts = Callable[[str, int], int | None]
"""Topic and partition to the offset from which they must be read; None: from the beginning."""


def data_topics(settings: SidecarSettings) -> Callable[[str], bool]:
    """Returns which topics hold rows: those of the tables, or everything named or routed like one."""
    source, topics = settings.source, settings.source_topics
    if settings.tables is not None:
        return frozenset(map(topics.data, settings.tables)).__contains__
    own = {cut_log_topic(source), progress_topic(source)}  # a pipeline may be named like its source
    others = own | {topics.transactions, topics.notifications}
    routed = frozenset(topics.routed.values())
    named = re.compile(re.escape(source) + r"\.[^.]+\.[^.]+").fullmatch
    return lambda topic: topic not in others and (topic in routed or named(topic) is not None)


def truncated(topic: str, partition: int, wanted: int, low: int, high: int) -> InputError:
    """Returns the error for a partition that does not have the offset from which reading has to continue."""
    if wanted < low:
        gone = f"offsets {wanted} to {low - 1} of {topic}/{partition} are gone"
    else:
        gone = f"{topic}/{partition} ends at {high}, but was read up to {wanted}: it was recreated"
    return InputError(
        f"{gone}. The frontier cannot advance without loss",
        "take a new snapshot and start over: new checkpoints, a new cut log (delete its topic), longer "
        "retention.ms on the data topics",
    )


def _scattered(topic: str, partitions: int) -> ConfigError:
    """Returns the error for a topic whose records must be in one order and are not."""
    return ConfigError(
        f"{topic} has {partitions} partitions, expected 1: BEGIN and END have different keys, so their order "
        "would be lost",
        "delete the topic, let the connector create it with one partition "
        "(topic.creation.<group>.partitions=1 in its configuration), and take a new snapshot",
    )


def admin_config(settings: SidecarSettings) -> dict[str, str | int | float | bool]:
    """Returns the settings of the client that asks for topics and offsets."""
    kafka = settings.servers.kafka
    connection = {k: v for k, v in kafka.options.items() if k.startswith(_CONNECTION_SETTINGS)}
    return {"bootstrap.servers": kafka.bootstrap, **connection}


RecordReader = Consumption | WorkerPool
"""Takes records of partitions out of Kafka: with a consumer in this process, or with worker processes."""


def connect(settings: SidecarSettings, others: frozenset[str], partitions: int) -> RecordReader:
    """Returns a reader of records: in this process, or with as many workers as the settings say."""
    if settings.workers > 1:
        return WorkerPool((settings, others, partitions), min(settings.workers, partitions))
    return Consumption(settings, others, partitions)


class SourceReader:
    """Reads the topics of a source into one frontier. Used by one thread.

    The frontier stays in this process, also with workers: they know nothing but offsets. What one has handed
    over is in the frontier; what it has not, its successor reads again from there. So a worker may be killed
    at any moment, and nothing starts over.

    ``starts`` says from where partitions must be read. Without ``admin``, it connects as the settings say;
    ``connect`` makes what takes records out of Kafka, and hands them over as to a
    :class:`~slackwater_sidecar.consumption.RecordSink`.
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
        topics = settings.source_topics
        self._transactions: PartitionId = topics.transactions, 0
        self._notifications: PartitionId = topics.notifications, 0
        self._is_data_topic = data_topics(settings)
        self._named: set[str] = set()
        """Topics of tables that the connector has named: they may have more dots than others."""
        self._settings = settings
        self._starts = starts
        self._frontier = frontier
        self._admin = AdminClient(admin_config(settings)) if admin is None else admin
        self._connect = connect
        self._balance = Balance(self._transactions)
        self._assigned: set[PartitionId] = set()
        self._partitions: dict[PartitionId, Partition] = {}
        """Those of data topics."""
        self._others: dict[PartitionId, int] = {}
        """The next offset of partitions that hold no rows."""
        self._failures: list[Failure] = []
        self._records: RecordReader | None = None
        """None until there is a partition to read."""

    @property
    def pids(self) -> Sequence[int]:
        """The worker processes; none: this process reads."""
        return () if self._records is None else self._records.pids

    def discover(self) -> list[str]:
        """Looks for topics and partitions that are not read yet and begins to; returns all data topics.

        Partitions whose worker has ended are given to another.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
            InputError: a partition does not have the offset from which it must be read.
            ConfigError: a topic that tells of order has several partitions.
        """
        with self._asking("listing topics"):
            metadata = self._admin.list_topics(timeout=_SECONDS)
        found = {name: len(t.partitions) for name, t in metadata.topics.items() if t.error is None}
        ordered = self._transactions, self._notifications
        for topic, _ in ordered:
            if found.get(topic, 1) > 1:
                raise _scattered(topic, found[topic])
        self._named.update(self._frontier.named_topics())
        data = sorted(topic for topic in found if self._is_data_topic(topic) or topic in self._named)
        wanted = [(topic, number) for topic in data for number in range(found[topic])]
        wanted += [key for key in ordered if key[0] in found]
        starts = self._starts_of([key for key in wanted if key not in self._assigned])
        if self._records is not None and self._records.orphans:
            rows = self._partitions
            orphans = {k: rows[k].position if k in rows else self._others[k] for k in self._records.orphans}
            self._records.assign(orphans)
            self._records.hold(self._balance.paused.intersection(orphans), frozenset())
        if starts:
            self._begin(starts, data)
        return data

    def poll(self, timeout_seconds: float) -> int:
        """Passes new records to the frontier, after at most the time-out; returns their number.

        Raises:
            SidecarUnavailableError: a topic cannot be read.
            InputError: records were deleted before they were read.
        """
        if self._records is None:
            time.sleep(timeout_seconds)  # nothing is there to be waited for
            return 0
        count = self._records.read(self, timeout_seconds)
        self._balance.record(count)
        failures, self._failures = self._failures, []
        for failure in failures:
            if (error := self._error_of(failure)) is not None:
                raise error
            logger.warning("Kafka: %s", failure.reason)
        return count

    def end_offsets(self) -> EndOffsets:
        """Returns high watermarks, as of now, of all that is read: what is written counts, committed or not.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
        """
        # Everything whose writing any producer was acknowledged before lies below.
        return self._offsets("asking for end offsets", self._assigned, _LATEST)

    def held_back(self) -> int:
        """Returns how many offsets, of all that is read, cannot be read: their Kafka transaction is open.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
        """
        # In this order: what is committed in between makes the difference smaller, not larger.
        ends = self.end_offsets()
        stable = self._offsets("asking for last stable offsets", ends, _LATEST, is_committed=True)
        return sum(max(0, end - stable[key]) for key, end in ends.items())

    def balance(self, *, needs_commits: bool = False) -> None:
        """Pauses what is far ahead of the rest, so that memory stays bounded.

        ``needs_commits``: the transaction topic has to be read to its end, however far ahead it is.
        """
        if self._records is None:
            return
        pause, resume = self._balance.update(
            self._frontier, self._partitions.values(), self._assigned, needs_commits=needs_commits
        )
        if pause or resume:
            self._records.hold(pause, resume)

    @property
    def paused_partitions(self) -> int:
        """Counts the partitions that are not read at present."""
        return len(self._balance.paused)

    def close(self) -> None:
        """Frees connections."""
        if self._records is not None:
            self._records.close()

    def take_rows(
        self, key: PartitionId, rows: Pairs | ParsedRows, run: str, timestamp_ms: int, *, is_keyless: bool
    ) -> None:
        """See :class:`RecordSink`."""
        partition = self._partitions[key]
        if isinstance(rows, ParsedRows):
            partition.read_parsed(rows, run, timestamp_ms=timestamp_ms, is_keyless=is_keyless)
        else:
            partition.read(rows, run, timestamp_ms=timestamp_ms, is_keyless=is_keyless)

    def take_others(self, key: PartitionId, records: Sequence[tuple[int, bytes | None, int]]) -> None:
        """See :class:`RecordSink`."""
        if key == self._transactions:
            self._frontier.read_transactions(records)
        else:
            self._frontier.read_notifications((offset, value) for offset, value, _ in records)
        self._others[key] = max(self._others.get(key, 0), records[-1][0] + 1)

    def take_end(self, key: PartitionId, offset: int) -> None:
        """See :class:`RecordSink`."""
        partition = self._partitions.get(key)
        if partition is not None:
            partition.skip_to(offset)
            return
        if key == self._transactions:
            self._frontier.skip_transactions_to(offset)
        else:
            self._frontier.skip_notifications_to(offset)
        self._others[key] = max(self._others.get(key, 0), offset)

    def take_failure(self, failure: Failure) -> None:
        """See :class:`RecordSink`."""
        self._failures.append(failure)

    def _begin(self, starts: Mapping[PartitionId, int], data_topics: Collection[str]) -> None:
        if self._records is None:
            others = frozenset({self._transactions[0], self._notifications[0]})
            self._records = self._connect(self._settings, others, len(starts))
        self._records.assign(starts)
        self._assigned.update(starts)
        for key, start in starts.items():
            if key[0] in data_topics:
                self._partitions[key] = self._frontier.add_partition(*key, start)
            else:
                self._others[key] = start
        workers = len(self._records.pids)
        logger.info("reading %s%s", _listed(starts), f" with {workers} workers" if workers else "")

    def _starts_of(self, new: Collection[PartitionId]) -> dict[PartitionId, int]:
        """Returns where to begin with partitions that are not read yet."""
        low = self._offsets("asking for first offsets", new, _EARLIEST)
        high = self._offsets("asking for end offsets", new, _LATEST)
        return {key: self._start(key, low[key], high[key]) for key in new}

    def _start(self, key: PartitionId, low: int, high: int) -> int:
        wanted = self._starts(*key)
        if wanted is None:
            return low
        if not low <= wanted <= high:
            raise truncated(*key, wanted, low, high)
        return wanted

    def _error_of(self, failure: Failure) -> SlackwaterError | None:
        """Returns what a failure of a consumer means; None: it concerns no partition that is read."""
        if failure.registry:
            return SchemasUnavailableError(failure.registry, failure.reason)
        key = failure.topic, failure.number
        if failure.is_lost and key in self._assigned:
            low = self._offsets("asking for first offsets", [key], _EARLIEST)
            high = self._offsets("asking for end offsets", [key], _LATEST)
            return truncated(*key, failure.offset, low[key], high[key])
        if failure.is_fatal or failure.topic in {topic for topic, _ in self._assigned}:
            place = f"reading {failure.topic}/{failure.number}"
            return SidecarUnavailableError(place, self._settings.servers.kafka.bootstrap, failure.reason)
        return None

    def _offsets(
        self, operation: str, keys: Collection[PartitionId], spec: OffsetSpec, *, is_committed: bool = False
    ) -> dict[PartitionId, int]:
        with self._asking(operation):
            return list_offsets(self._admin, keys, spec, _SECONDS, is_committed=is_committed)

    @contextmanager
    def _asking(self, operation: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            bootstrap = self._settings.servers.kafka.bootstrap
            raise SidecarUnavailableError(operation, bootstrap, reason_of(error)) from error


def _listed(starts: Mapping[PartitionId, int]) -> str:
    """Lists where reading begins; for many partitions only the first ones."""
    first = ", ".join(f"{t}/{n} from {s}" for (t, n), s in islice(starts.items(), _LISTED))
    return first if len(starts) <= _LISTED else f"{first} and {len(starts) - _LISTED} more"


class Balance:
    """Compares partitions and remembers which are paused."""

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
