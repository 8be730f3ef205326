"""Cuts and markers in the cut log and the marker store; registrations and reports of pipelines."""

from slackwater.cuts.compacted_topic import KafkaLeaseLog, KafkaPipelineLog, LeaseLog, PipelineLog
from slackwater.cuts.cut_log import CutLog, KafkaCutLog, LoggedRecord, cuts_of
from slackwater.cuts.errors import (
    CompactedTopicUnavailableError,
    CutLogDamagedError,
    CutLogReplacedError,
    CutLogUnavailableError,
    MarkerStoreContentError,
    MarkerStoreRefusedError,
    MarkerStoreUnavailableError,
    RecordsGoneError,
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
from slackwater.protocol import FrontierState, FrontierStatus, RegressionNotice

__all__ = [
    "CompactedTopicUnavailableError",
    "CutLog",
    "CutLogDamagedError",
    "CutLogReplacedError",
    "CutLogUnavailableError",
    "CutRetention",
    "FrontierState",
    "FrontierStatus",
    "KafkaCutLog",
    "KafkaLeaseLog",
    "KafkaPipelineLog",
    "KafkaRetry",
    "LeaseLog",
    "LoggedRecord",
    "MarkerStore",
    "MarkerStoreContentError",
    "MarkerStoreRefusedError",
    "MarkerStoreUnavailableError",
    "PipelineLog",
    "RecordsGoneError",
    "RedisMarkerStore",
    "RegressionNotice",
    "StoredPosition",
    "cuts_of",
    "markers_of",
    "merged_markers",
]
