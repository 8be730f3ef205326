"""Whole source transactions for a service: the consumer side of Slackwater. No Spark, no JVM."""

from slackwater_client.async_consumer import AsyncTransaction, AsyncTransactionalConsumer
from slackwater_client.consumer import ConsumerSettings, TransactionalConsumer
from slackwater_client.errors import (
    ClientConfigError,
    ClientError,
    ClientStateError,
    ClientUnavailableError,
    NotVisibleError,
    RecordsMissingError,
    StateNotKeptError,
    TransactionLostError,
)
from slackwater_client.inputs import ChangeTopics, OutputTopics
from slackwater_client.shares import ByPartition, ByUnit, Everything, Share
from slackwater_client.snapshot import (
    PipelineOutput,
    ViewSnapshot,
    VisibleCommit,
    read_views,
    read_views_async,
    wait_visible,
    wait_visible_async,
)
from slackwater_client.topic_views import TopicOutput
from slackwater_client.transaction import Commit, Transaction

__all__ = [
    "AsyncTransaction",
    "AsyncTransactionalConsumer",
    "ByPartition",
    "ByUnit",
    "ChangeTopics",
    "ClientConfigError",
    "ClientError",
    "ClientStateError",
    "ClientUnavailableError",
    "Commit",
    "ConsumerSettings",
    "Everything",
    "NotVisibleError",
    "OutputTopics",
    "PipelineOutput",
    "RecordsMissingError",
    "Share",
    "StateNotKeptError",
    "TopicOutput",
    "Transaction",
    "TransactionLostError",
    "TransactionalConsumer",
    "ViewSnapshot",
    "VisibleCommit",
    "read_views",
    "read_views_async",
    "wait_visible",
    "wait_visible_async",
]
