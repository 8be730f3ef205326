"""How the sidecar's Kafka clients are set up."""

from collections.abc import Mapping

from slackwater_sidecar.settings import SidecarSettings

_FETCH_PAUSE_MS = 10
"""Once a partition's queue is full; librdkafka's default of a second leaves the sidecar idle in catch-up."""
_QUEUE_KIB = 96 * 1024
"""For records fetched and not yet read, over all partitions."""
_QUEUE_KIB_OF_PARTITION = (128, 32 * 1024)
"""The least and the most for one partition."""
_FETCH_KIB = 1024
"""The most per partition and fetch, compressed: small, so that partitions are read evenly."""
_MANY_PARTITIONS = 200
"""From here on fetches are fewer and larger: each names every partition, which is work for the broker."""
_OF_CONNECTIONS = (
    "security.",
    "sasl.",
    "ssl.",
    "socket.",
    "client.",
    "broker.",
    "metadata.",
    "reconnect.",
    "retry.",
)


def admin_config(settings: SidecarSettings) -> dict[str, str | int | float | bool]:
    """Of the client that asks for topics and offsets."""
    return {"bootstrap.servers": settings.bootstrap, **_connection(settings.kafka)}


def consumer_config(settings: SidecarSettings, partitions: int) -> dict[str, str | int | bool]:
    """Of the consumer; what it keeps in its queues is bounded over all partitions known at the start."""
    least, most = _QUEUE_KIB_OF_PARTITION
    is_wide = partitions > _MANY_PARTITIONS
    queue_kib = min(most, max(least, _QUEUE_KIB // partitions))
    return {
        "bootstrap.servers": settings.bootstrap,
        "group.id": f"slackwater-sidecar-{settings.source}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": min(100, partitions // 20) if is_wide else 10,
        "fetch.min.bytes": 64 * partitions if is_wide else 1,
        "fetch.queue.backoff.ms": _FETCH_PAUSE_MS,
        "fetch.message.max.bytes": 1024 * min(_FETCH_KIB, max(least, queue_kib // 4)),
        "queued.min.messages": 50_000,
        "queued.max.messages.kbytes": queue_kib,
        **settings.kafka,
    }


def _connection(kafka: Mapping[str, str]) -> dict[str, str]:
    """Those of the settings that say how to connect: an admin client complains about the others."""
    names = (
        "security.",
        "sasl.",
        "ssl.",
        "socket.",
        "client.",
        "broker.",
        "metadata.",
        "reconnect.",
        "retry.",
    )
    return {name: value for name, value in kafka.items() if name.startswith(names)}
