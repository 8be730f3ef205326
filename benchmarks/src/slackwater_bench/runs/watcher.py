"""What a ``read_committed`` consumer of a pipeline's commit topic sees, and when."""

from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from slackwater_bench.errors import RunFailedError
from slackwater_protocol import Clock, decode_commit_record
from slackwater_protocol.keys import commit_topic

LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """A commit record and when the consumer got it."""

    commit_lsn: int
    at: float
    """Seconds of the monotonic clock."""
    wall_ms: float
    """Wall clock, milliseconds since the epoch."""


class CommitWatcher:
    """Follows the commit records of an output. Used by one thread; also before the topic exists.

    Args:
        bootstrap: The broker.
        output: Output topic of the pipeline.
        clock: Takes the times.
        check: Called while it waits; raises when there is nothing more to wait for.
    """

    def __init__(self, bootstrap: str, output: str, clock: Clock, check: Callable[[], None]) -> None:
        self.seen: list[SeenCommit] = []
        """Ascending."""
        self._clock = clock
        self._check = check
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "slackwater-bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 20,
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
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
                    "the output", f"stands at {self.newest_lsn} of {commit_lsn} after {seconds:g} s"
                )
            self.look()
        return next(commit for commit in self.seen if commit.commit_lsn >= commit_lsn)

    def look_until(self, time: float) -> None:
        """Takes what comes until a time of the monotonic clock."""
        while self._clock.monotonic() < time:
            self.look()

    def look(self) -> None:
        """Takes what is there, or waits a moment."""
        self._check()
        message = self._consumer.poll(LOOK_SECONDS)
        if message is None or message.error():
            return
        now, wall = self._clock.monotonic(), self._clock.now()
        record = decode_commit_record(message.value() or b"")
        self.seen.append(SeenCommit(record.commit_lsn, now, wall.timestamp() * 1000))

    @property
    def newest_lsn(self) -> int:
        """Up to where everything is visible; 0 at the start."""
        return self.seen[-1].commit_lsn if self.seen else 0

    def close(self) -> None:
        """Frees the connection."""
        self._consumer.close()
