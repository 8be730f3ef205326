"""Two readers that watch the demo live, each in its thread: of the commit records, and the naive one."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.demo.naive import NaiveJoin
from slackwater.topics import follow
from slackwater_protocol import Clock, CommitRecord, decode_commit_record


class _Observer(ABC):
    """A thread that ends when stopped; what it raised is raised again by :meth:`raise_failure`."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._guard, name=name, daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread. Idempotent; does not raise."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def raise_failure(self) -> None:
        """Raises what ended the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def _guard(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            self._failure = error

    @abstractmethod
    def _watch(self) -> None:
        """Runs until ``_stop`` is set."""


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """A commit record and when a ``read_committed`` consumer had it."""

    record: CommitRecord
    seen_ms: int
    """Wall clock, milliseconds since the epoch; the same machine as the database's."""

    @property
    def documents(self) -> int:
        """Records of the output that belong to it."""
        return sum(r.count for ranges in self.record.offsets.values() for r in ranges.values())

    @property
    def lag_ms(self) -> int:
        """From the newest source commit to visibility."""
        return self.seen_ms - self.record.commit_ts_ms


class CommitWatcher(_Observer):
    """Reads the commit topic as it grows."""

    def __init__(self, bootstrap: str, topic: str, clock: Clock) -> None:
        super().__init__("commit-watcher")
        self._source = (bootstrap, topic)
        self._clock = clock
        self._seen: list[SeenCommit] = []

    @property
    def seen(self) -> Sequence[SeenCommit]:
        """All commit records so far, in the order of the topic."""
        return self._seen[:]

    @property
    def newest_lsn(self) -> int:
        """Commit LSN of the newest commit record; 0 before the first."""
        return self._seen[-1].record.commit_lsn if self._seen else 0

    def _watch(self) -> None:
        bootstrap, topic = self._source
        for messages in follow(bootstrap, [topic], self._stop, batch=1, wait_seconds=0.1):
            now_ms = int(self._clock.now().timestamp() * 1000)
            for message in messages:
                self._seen.append(SeenCommit(decode_commit_record(message.value() or b""), now_ms))


class NaiveReader(_Observer):
    """Runs the naive join over the data topics as they grow."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        super().__init__("naive-reader")
        self._source = (bootstrap, topics)
        self.join = NaiveJoin()

    def _watch(self) -> None:
        bootstrap, topics = self._source
        for messages in follow(bootstrap, topics, self._stop, batch=500, wait_seconds=0.05):
            self.join.poll(value for message in messages if (value := message.value()) is not None)
