"""Reads a source from Kafka with several processes; the frontier stays in the one that calls."""

import logging
from collections.abc import Mapping

from slackwater_cdc import EndOffsets, Frontier, Partition
from slackwater_sidecar.balance import Balance
from slackwater_sidecar.consumption import MAX_RECORDS, Failure, Key
from slackwater_sidecar.kafka_reader import KafkaSourceReader, listed, skip_to
from slackwater_sidecar.lookup import Lookup
from slackwater_sidecar.reader import SourceReader, Starts
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.worker import EndRead, Report, RowsRead, WorkerSettings
from slackwater_sidecar.worker_pool import WorkerPool

logger = logging.getLogger(__name__)


def source_reader(settings: SidecarSettings, starts: Starts) -> SourceReader:
    """What reads a source: this process, or as many workers as the settings say."""
    if settings.workers > 1:
        return WorkerSourceReader(settings, starts)
    return KafkaSourceReader(settings, starts)


class WorkerSourceReader:
    """Implements :class:`~slackwater_sidecar.reader.SourceReader`.

    The workers know nothing but offsets. What a worker has handed over is in the frontier, what it has not is
    read again by its successor from there: so one may be killed at any moment, and nothing starts over.

    Args:
        settings: Source, brokers, tables, number of workers.
        starts: From where partitions are read.
    """

    def __init__(self, settings: SidecarSettings, starts: Starts) -> None:
        self._settings = settings
        self._lookup = Lookup(settings, starts)
        self._balance = Balance(self._lookup.transactions)
        self._partitions: dict[Key, Partition] = {}
        self._positions: dict[Key, int] = {}
        """Of partitions that are no data: the next offset to be read."""
        self._pool: WorkerPool | None = None

    @property
    def pids(self) -> list[int]:
        """Of the workers."""
        return [] if self._pool is None else self._pool.pids

    def discover(self, frontier: Frontier) -> list[str]:
        """See the protocol; also gives partitions whose worker has ended to another."""
        found = self._lookup.find(self._assigned)
        if self._pool is not None and self._pool.orphans:
            self._adopt(self._pool, self._pool.orphans)
        if found.starts:
            self._begin(frontier, found.starts)
        return found.data_topics

    def poll(self, frontier: Frontier, timeout_seconds: float) -> int:
        """See the protocol."""
        if self._pool is None:
            return 0
        count, timeout = 0, timeout_seconds
        failures: list[Failure] = []
        while count < MAX_RECORDS:
            before = count
            for reports in self._pool.reports(timeout):
                failures += [report for report in reports if isinstance(report, Failure)]
                for report in reports:
                    count += self._take(frontier, report)
            if count == before:
                break
            timeout = 0.0
        self._balance.note(count)
        for failure in failures:  # when all that came with them is taken
            self._take_failure(failure)
        return count

    def end_offsets(self) -> EndOffsets:
        """See the protocol."""
        return self._lookup.end_offsets(self._assigned)

    def balance(self, frontier: Frontier) -> None:
        """See the protocol."""
        if self._pool is None:
            return
        pause, resume = self._balance.look(frontier, self._partitions.values(), self._assigned)
        if pause or resume:
            self._pool.hold(pause, resume)

    @property
    def paused_partitions(self) -> int:
        """See the protocol."""
        return len(self._balance.paused)

    def close(self) -> None:
        """See the protocol."""
        if self._pool is not None:
            self._pool.close()

    @property
    def _assigned(self) -> set[Key]:
        return {*self._partitions, *self._positions}

    def _begin(self, frontier: Frontier, starts: Mapping[Key, int]) -> None:
        if self._pool is None:
            others = frozenset({self._lookup.transactions[0], self._lookup.notifications[0]})
            settings = WorkerSettings(self._settings, others, len(starts))
            self._pool = WorkerPool(settings, min(self._settings.workers, len(starts)))
        for key, start in starts.items():
            if self._lookup.is_data_topic(key[0]):
                self._partitions[key] = frontier.add_partition(*key, start)
            else:
                self._positions[key] = start
        self._pool.assign(starts)
        logger.info("reading %s with %d workers", listed(starts), len(self._pool.pids))

    def _adopt(self, pool: WorkerPool, orphans: frozenset[Key]) -> None:
        positions = {key: partition.position for key, partition in self._partitions.items()}
        positions.update(self._positions)
        pool.assign({key: positions[key] for key in orphans})
        pool.hold(self._balance.paused & orphans, frozenset())

    def _take(self, frontier: Frontier, report: Report) -> int:
        if isinstance(report, RowsRead):
            self._partitions[report.key].read_parsed(
                report.parsed, report.run, timestamp_ms=report.timestamp_ms, is_keyless=report.is_keyless
            )
            return report.records
        if isinstance(report, EndRead):
            topic = report.key[0]
            skip_to(frontier, self._partitions.get(report.key), report.offset, self._lookup, topic)
            self._note_position(report.key, report.offset)
            return 0
        if isinstance(report, Failure):
            return 0
        others = report.values
        if report.key == self._lookup.transactions:
            frontier.read_transactions(others)
        else:
            frontier.read_notifications((offset, value) for offset, value, _ in others)
        self._note_position(report.key, others[-1][0] + 1)
        return len(others)

    def _note_position(self, key: Key, position: int) -> None:
        if key in self._positions:
            self._positions[key] = max(self._positions[key], position)

    def _take_failure(self, failure: Failure) -> None:
        error = self._lookup.error_of(failure, self._assigned)
        if error is not None:
            raise error
        logger.warning("Kafka: %s", failure.reason)
