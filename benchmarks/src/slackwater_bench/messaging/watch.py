"""When records of a topic become visible."""

import threading

from confluent_kafka import TopicPartition

from slackwater.protocol import Clock
from slackwater_lab.topics import open_consumer


class TopicWatch:
    """Notes when a ``read_committed`` consumer sees each record of a topic for the first time.

    Args:
        bootstrap: Of the broker.
        topic: Its name.
        partitions: The number of its partitions.
        clock: The time.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, clock: Clock) -> None:
        self._consumer, self._clock = open_consumer(bootstrap), clock
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self.seen: list[tuple[float, bytes, bytes]] = []
        """Time, in seconds since the epoch, key and value."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{topic}", daemon=True)

    def __enter__(self) -> "TopicWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            record = self._consumer.poll(0.1)
            if record is not None and record.error() is None:
                now = self._clock.now().timestamp()
                self.seen.append((now, record.key() or b"", record.value() or b""))
