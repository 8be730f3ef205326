"""Counts what clients ask PostgreSQL and Kafka, from the bytes that they send."""

from collections import Counter
from collections.abc import Callable

_STATEMENTS = b"QE"
"""Query and Execute: each is one statement."""
_ROUND_TRIPS = b"QS"
"""Query and Sync: behind each the client waits for the server to be ready."""
_PROTOCOL_3 = 3
_WRITING = {
    0: "produce",
    8: "commit offsets",
    24: "add partitions",
    25: "add offsets",
    26: "end transaction",
    28: "commit offsets in a transaction",
}
"""The requests of Kafka's protocol that write, by number; what only asks or fetches is not counted."""


class PostgresRequests:
    """Counts the statements and round trips of one connection to PostgreSQL.

    Args:
        count: Receives ``statements`` and ``round_trips``.
    """

    def __init__(self, count: Counter[str]) -> None:
        self._count, self._buffer, self._has_started = count, bytearray(), False

    def __call__(self, chunk: bytes) -> None:
        """Takes what the client has sent."""
        self._buffer += chunk
        while self._take():
            pass

    def _take(self) -> bool:
        """Takes one message from the buffer; returns whether it was whole."""
        start = 1 if self._has_started else 0  # the first messages have no type
        if len(self._buffer) < start + 4:
            return False
        size = int.from_bytes(self._buffer[start : start + 4])
        if len(self._buffer) < start + size:
            return False
        if not self._has_started:
            self._has_started = int.from_bytes(self._buffer[4:6]) == _PROTOCOL_3
        else:
            self._count["statements"] += self._buffer[0] in _STATEMENTS
            self._count["round_trips"] += self._buffer[0] in _ROUND_TRIPS
        del self._buffer[: start + size]
        return True


class KafkaRequests:
    """Counts the requests of one connection to a broker that write something.

    Args:
        count: Receives ``kafka_requests``.
    """

    def __init__(self, count: Counter[str]) -> None:
        self._count, self._buffer = count, bytearray()

    def __call__(self, chunk: bytes) -> None:
        """Takes what the client has sent."""
        self._buffer += chunk
        while len(self._buffer) >= 6:
            size = int.from_bytes(self._buffer[:4])
            if len(self._buffer) < 4 + size:
                return
            self._count["kafka_requests"] += int.from_bytes(self._buffer[4:6]) in _WRITING
            del self._buffer[: 4 + size]


Watch = Callable[[], Callable[[bytes], None]]


def watching(kind: type[PostgresRequests] | type[KafkaRequests], count: Counter[str]) -> Watch:
    """Returns what a proxy needs to count all its connections together."""
    return lambda: kind(count)
