"""Reads and writes whole source transactions in Kafka, for services. Needs neither Spark nor a JVM."""

from slackwater.client.async_consumer import AsyncTransaction, AsyncTransactionalConsumer
from slackwater.client.comparison import (
    ComparedView,
    Difference,
    DocumentComparison,
    compare_documents,
    compare_views,
)
from slackwater.client.consumer import ConsumerSettings, TransactionalConsumer
from slackwater.client.errors import (
    NotVisibleError,
    OutcomeUnknownError,
    StateNotKeptError,
    TransactionLostError,
)
from slackwater.client.inputs import (
    ByPartition,
    ByUnit,
    ChangeTopics,
    Everything,
    OutputTopics,
    PipelineViews,
    Share,
)
from slackwater.client.leases import end_lease, find_lease, open_leases, renew_lease, take_lease
from slackwater.client.producer import ProducerTransaction, TransactionalProducer
from slackwater.client.snapshot import (
    OfOneSource,
    PipelineOutput,
    ReadableStates,
    ReadLevel,
    ViewSnapshot,
    VisibleCommit,
    read_views,
    read_views_async,
    wait_visible,
    wait_visible_async,
)
from slackwater.client.topic_views import TopicOutput
from slackwater.client.transaction import Commit, Transaction
from slackwater.client.writer import ProducerSettings

__all__ = [
    "AsyncTransaction",
    "AsyncTransactionalConsumer",
    "ByPartition",
    "ByUnit",
    "ChangeTopics",
    "Commit",
    "ComparedView",
    "ConsumerSettings",
    "Difference",
    "DocumentComparison",
    "Everything",
    "NotVisibleError",
    "OfOneSource",
    "OutcomeUnknownError",
    "OutputTopics",
    "PipelineOutput",
    "PipelineViews",
    "ProducerSettings",
    "ProducerTransaction",
    "ReadLevel",
    "ReadableStates",
    "Share",
    "StateNotKeptError",
    "TopicOutput",
    "Transaction",
    "TransactionLostError",
    "TransactionalConsumer",
    "TransactionalProducer",
    "ViewSnapshot",
    "VisibleCommit",
    "compare_documents",
    "compare_views",
    "end_lease",
    "find_lease",
    "open_leases",
    "read_views",
    "read_views_async",
    "renew_lease",
    "take_lease",
    "wait_visible",
    "wait_visible_async",
]
