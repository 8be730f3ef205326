"""PostgreSQL, Kafka, Connect with Debezium and Redis on loopback, without containers."""

from slackwater.dev.connect import ConnectorState, ConnectWorker
from slackwater.dev.java import JarSet, PinnedJar, cache_folder, resolve_jars
from slackwater.dev.kafka import KafkaBroker, SecondKafkaBroker
from slackwater.dev.kafka_security import (
    NOBODY_SAYS,
    ListenerSecurity,
    plain_users,
    scram_users,
    token_users,
)
from slackwater.dev.loopback import TcpProxy
from slackwater.dev.postgres import PostgresServer
from slackwater.dev.processes import Lifetime
from slackwater.dev.redis_server import RedisServer
from slackwater.dev.server import Server
from slackwater.dev.settings import Collector, ConnectMode, ConnectPlugin, DevStackSettings
from slackwater.dev.stack import DevStack, down, status, up
from slackwater.dev.state import RunState, ServerStatus, StackStatus

__all__ = [
    "NOBODY_SAYS",
    "Collector",
    "ConnectMode",
    "ConnectPlugin",
    "ConnectWorker",
    "ConnectorState",
    "DevStack",
    "DevStackSettings",
    "JarSet",
    "KafkaBroker",
    "Lifetime",
    "ListenerSecurity",
    "PinnedJar",
    "PostgresServer",
    "RedisServer",
    "RunState",
    "SecondKafkaBroker",
    "Server",
    "ServerStatus",
    "StackStatus",
    "TcpProxy",
    "cache_folder",
    "down",
    "plain_users",
    "resolve_jars",
    "scram_users",
    "status",
    "token_users",
    "up",
]
