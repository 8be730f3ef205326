"""What a Redis server has done so far, by its own account."""

from dataclasses import dataclass

import redis


@dataclass(frozen=True, slots=True)
class RedisCounters:
    """Totals since the server's start; subtract two to measure."""

    commands: int
    received_bytes: int
    sent_bytes: int
    cpu_seconds: float

    def __sub__(self, earlier: "RedisCounters") -> "RedisCounters":
        return RedisCounters(
            self.commands - earlier.commands,
            self.received_bytes - earlier.received_bytes,
            self.sent_bytes - earlier.sent_bytes,
            self.cpu_seconds - earlier.cpu_seconds,
        )


def redis_counters(url: str) -> RedisCounters:
    """Asks the server; the question itself is counted, too."""
    client = redis.Redis.from_url(url, socket_timeout=5)
    try:
        info = client.info()
    finally:
        client.close()
    return RedisCounters(
        commands=int(info["total_commands_processed"]),
        received_bytes=int(info["total_net_input_bytes"]),
        sent_bytes=int(info["total_net_output_bytes"]),
        cpu_seconds=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
    )
