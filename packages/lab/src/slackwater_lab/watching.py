"""Watches a pipeline's output and a sidecar's cuts as a ``read_committed`` consumer sees them."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from slackwater.cdc.envelope import End, decode_transaction
from slackwater.protocol import Clock, CommitRecord, Cut, SystemClock, decode_commit_record, decode_log_record
from slackwater.protocol.keys import commit_topic, cut_log_topic, transaction_topic
from slackwater_lab.errors import RunFailedError
from slackwater_lab.topics import open_consumer, read_to_end

LOOK_SECONDS = 0.05
_ASK_SECONDS = 0.25
"""Between two questions to a ledger."""


def wait_until(
    condition: Callable[[], bool],
    seconds: float,
    *,
    check: Callable[[], object] = lambda: None,
    clock: Clock | None = None,
) -> bool:
    """Waits for a condition; returns whether it came true in time.

    It is checked meanwhile: that raises when there is nothing more to wait for.
    """
    clock, pause = clock or SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds
    while not condition():
        check()
        if clock.monotonic() > deadline:
            return False
        pause.wait(LOOK_SECONDS)
    return True


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """A commit record and when the consumer got it.

    Attributes:
        record: The record.
        at: Seconds of the monotonic clock.
        wall_ms: Wall clock, milliseconds since the epoch.
    """

    record: CommitRecord
    at: float
    wall_ms: float

    @property
    def commit_lsn(self) -> int:
        """Everything up to here is visible."""
        return self.record.commit_lsn

    @property
    def documents(self) -> int:
        """The number of records of the output that belong to it."""
        return sum(r.count for ranges in self.record.offsets.values() for r in ranges.values())

    @property
    def delay_ms(self) -> float:
        """The time from the newest commit that it covers to visibility, if both clocks are one."""
        return self.wall_ms - self.record.commit_ts_ms


class CommitWatcher:
    """Follows the commit records of an output. Used by one thread; also before the topic exists.

    It is checked while it waits: that raises when there is nothing more to wait for.
    """

    def __init__(
        self, bootstrap: str, output: str, clock: Clock, check: Callable[[], None] = lambda: None
    ) -> None:
        self.seen: list[SeenCommit] = []
        """Ascending."""
        self._clock = clock
        self._check = check
        self._consumer = open_consumer(bootstrap)
        self._consumer.assign([TopicPartition(commit_topic(output), 0, OFFSET_BEGINNING)])

    def until(self, commit_lsn: int, seconds: float) -> SeenCommit:
        """Reads on until everything up to a commit is visible; returns the commit record that says so.

        Raises:
            RunFailedError: it does not become visible in time.
        """
        deadline = self._clock.monotonic() + seconds
        while self.newest_lsn < commit_lsn:
            if self._clock.monotonic() > deadline:
                raise RunFailedError(
                    "the output", f"is at {self.newest_lsn} of {commit_lsn} after {seconds:g} s"
                )
            self.poll()
        return next(commit for commit in self.seen if commit.commit_lsn >= commit_lsn)

    def poll_until(self, time: float) -> None:
        while self._clock.monotonic() < time:
            self.poll()

    def poll(self) -> None:
        """Takes what is there, or waits a moment."""
        self._check()
        message = self._consumer.poll(LOOK_SECONDS)
        if message is None or message.error():
            return
        now, wall = self._clock.monotonic(), self._clock.now()
        record = decode_commit_record(message.value() or b"")
        self.seen.append(SeenCommit(record, now, wall.timestamp() * 1000))

    @property
    def newest_lsn(self) -> int:
        """Up to where everything is visible; 0 at the start."""
        return self.seen[-1].commit_lsn if self.seen else 0

    def close(self) -> None:
        self._consumer.close()


class Background(ABC):
    """A thread that works until it is stopped; what it raised is raised again by :meth:`raise_failure`."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._guard, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread. Idempotent; does not raise."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _guard(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asks
            self._failure = error

    @abstractmethod
    def _work(self) -> None:
        """Runs until ``_stop`` is set."""


@dataclass(frozen=True, slots=True)
class SeenPosition:
    """A position of a ledger, and when it was read, in seconds of the monotonic clock."""

    commit_lsn: int
    at: float


class OutputWatch(Background):
    """Follows how far an output has come, on a thread of its own; waits while its server is away."""

    def __init__(self, name: str, seen: Sequence[SeenCommit] | Sequence[SeenPosition]) -> None:
        super().__init__(name)
        self._seen = seen

    @property
    def newest_lsn(self) -> int:
        """Everything up to here is visible; 0: nothing yet.

        Raises:
            Exception: what ended the thread.
        """
        self.raise_failure()
        return self._seen[-1].commit_lsn if self._seen else 0

    def first_at(self, lsn: int) -> float | None:
        """When a commit became visible, in seconds of the monotonic clock; None: it is not."""
        return next((seen.at for seen in self._seen[:] if seen.commit_lsn >= lsn), None)


class Visibility(OutputWatch):
    """Reads the commit records of an output in Kafka."""

    def __init__(self, bootstrap: str, output: str, clock: Clock) -> None:
        self._watcher = CommitWatcher(bootstrap, output, clock)
        super().__init__("visibility", self._watcher.seen)

    @property
    def seen(self) -> list[SeenCommit]:
        return self._watcher.seen[:]

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._watcher.poll()
        finally:
            self._watcher.close()


class LedgerWatch(OutputWatch):
    """Asks a ledger again and again.

    Args:
        position: Reads the commit LSN of the newest batch; None: there is none, or no answer.
        clock: Takes the times.
    """

    def __init__(self, position: Callable[[], int | None], clock: Clock) -> None:
        self._positions: list[SeenPosition] = []
        super().__init__("ledger-watch", self._positions)
        self._position = position
        self._clock = clock

    def _work(self) -> None:
        while not self._stop.wait(_ASK_SECONDS):
            found = self._position()
            if found is not None and (not self._positions or found > self._positions[-1].commit_lsn):
                self._positions.append(SeenPosition(found, self._clock.monotonic()))


@dataclass(frozen=True, slots=True)
class SeenCut:
    """A cut and when the sidecar handed it to Kafka."""

    cut: Cut
    at_ms: int
    """Wall clock, milliseconds since the epoch."""


def read_cuts(bootstrap: str, source: str) -> list[SeenCut]:
    """Reads all cuts that are in a source's log now, ascending, each once: as it was first published.

    Raises:
        RunFailedError: the log cannot be read to its end.
    """
    found: dict[int, SeenCut] = {}
    for message in read_to_end(bootstrap, cut_log_topic(source)):
        record = decode_log_record(message.value() or b"")
        if isinstance(record, Cut):
            found.setdefault(record.lsn, SeenCut(record, message.timestamp()[1]))
    return list(found.values())


def read_ends(bootstrap: str, source: str) -> dict[int, int]:
    """Reads when the connector handed each transaction's END to Kafka; the first, where it is repeated.

    Returns:
        The END record's time in Kafka by commit LSN, milliseconds since the epoch. The ``ts_ms`` inside the
        record is the time of the commit in the database.

    Raises:
        RunFailedError: the transaction topic cannot be read to its end.
    """
    found: dict[int, int] = {}
    for message in read_to_end(bootstrap, transaction_topic(source)):
        event = decode_transaction(message.value() or b"")
        if isinstance(event, End):
            found.setdefault(event.commit_lsn, message.timestamp()[1])
    return found
