"""PostgreSQL, Kafka, Connect with Debezium and Redis on loopback, without containers."""

from slackwater_devstack.connect import ConnectorState, ConnectWorker
from slackwater_devstack.errors import (
    DevStackConfigError,
    DevStackError,
    DevStackStateError,
    DevStackUnavailableError,
)
from slackwater_devstack.hdfs import DataNode, NameNode
from slackwater_devstack.java import JarSet, PinnedJar, cache_folder, resolve_jars
from slackwater_devstack.kafka import KafkaBroker, SecondKafkaBroker
from slackwater_devstack.kafka_security import (
    NOBODY_SAYS,
    ListenerSecurity,
    plain_users,
    scram_users,
    token_users,
)
from slackwater_devstack.loopback import TcpProxy
from slackwater_devstack.object_store import ObjectStore
from slackwater_devstack.postgres import DatabaseLog, LoggedChange, LoggedTransaction, PostgresServer
from slackwater_devstack.processes import Lifetime
from slackwater_devstack.redis_server import RedisServer
from slackwater_devstack.server import Server
from slackwater_devstack.settings import Collector, ConnectMode, ConnectPlugin, DevStackSettings
from slackwater_devstack.spark_cluster import SparkMaster, SparkWorker
from slackwater_devstack.stack import DevStack, down, status, up
from slackwater_devstack.state import RunState, ServerStatus, StackStatus

__version__ = "0.1.0"

__all__ = [
    "NOBODY_SAYS",
    "Collector",
    "ConnectMode",
    "ConnectPlugin",
    "ConnectWorker",
    "ConnectorState",
    "DataNode",
    "DatabaseLog",
    "DevStack",
    "DevStackConfigError",
    "DevStackError",
    "DevStackSettings",
    "DevStackStateError",
    "DevStackUnavailableError",
    "JarSet",
    "KafkaBroker",
    "Lifetime",
    "ListenerSecurity",
    "LoggedChange",
    "LoggedTransaction",
    "NameNode",
    "ObjectStore",
    "PinnedJar",
    "PostgresServer",
    "RedisServer",
    "RunState",
    "SecondKafkaBroker",
    "Server",
    "ServerStatus",
    "SparkMaster",
    "SparkWorker",
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
