"""PostgreSQL, Kafka, Connect with Debezium and Redis on loopback, without containers."""

from slackwater.dev.java import Collector, JarSet, PinnedJar, cache_folder, resolve_jars
from slackwater.dev.kafka import ConnectMode, ConnectWorker, KafkaBroker
from slackwater.dev.postgres import PostgresServer
from slackwater.dev.processes import Lifetime
from slackwater.dev.redis_server import RedisServer
from slackwater.dev.server import RunState, Server, ServerStatus
from slackwater.dev.stack import DevStack, DevStackSettings, StackStatus, down, status, up

__all__ = [
    "Collector",
    "ConnectMode",
    "ConnectWorker",
    "DevStack",
    "DevStackSettings",
    "JarSet",
    "KafkaBroker",
    "Lifetime",
    "PinnedJar",
    "PostgresServer",
    "RedisServer",
    "RunState",
    "Server",
    "ServerStatus",
    "StackStatus",
    "cache_folder",
    "down",
    "resolve_jars",
    "status",
    "up",
]
