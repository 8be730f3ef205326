"""Cuts and markers in the cut log and the marker store; registrations and reports of pipelines."""

from slackwater.cuts.compacted_topic import LeaseLog, PipelineLog
from slackwater.cuts.cut_log import CutLog, LoggedRecord, cuts_of
from slackwater.cuts.errors import (
    CutLogDamagedError,
    CutLogReplacedError,
    MarkerStoreUnavailableError,
    RecordsGoneError,
    StoreFault,
)
from slackwater.cuts.redis_store import RedisMarkerStore
from slackwater.cuts.store import (
    CutRetention,
    MarkerStore,
    StoredPosition,
    markers_of,
    merged_markers,
)
from slackwater.kafka.retry import KafkaRetry
from slackwater.kafka.topic import TopicUnavailableError
from slackwater.protocol import FrontierState, FrontierStatus, RegressionNotice

__all__ = [
    "CutLog",
    "CutLogDamagedError",
    "CutLogReplacedError",
    "CutRetention",
    "FrontierState",
    "FrontierStatus",
    "KafkaRetry",
    "LeaseLog",
    "LoggedRecord",
    "MarkerStore",
    "MarkerStoreUnavailableError",
    "PipelineLog",
    "RecordsGoneError",
    "RedisMarkerStore",
    "RegressionNotice",
    "StoreFault",
    "StoredPosition",
    "TopicUnavailableError",
    "cuts_of",
    "markers_of",
    "merged_markers",
]
