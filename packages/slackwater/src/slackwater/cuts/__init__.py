"""Cuts and markers in the cut log and the marker store; registrations and reports of pipelines."""

from slackwater.cuts.cut_log import CutLog, LoggedRecord, cuts_of
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
from slackwater.cuts.kafka_log import KafkaCutLog
from slackwater.cuts.kafka_pipeline_log import KafkaPipelineLog
from slackwater.cuts.lease_log import KafkaLeaseLog, LeaseLog
from slackwater.cuts.pipeline_log import PipelineLog
from slackwater.cuts.redis_store import RedisMarkerStore
from slackwater.cuts.store import (
    CutRetention,
    FrontierState,
    FrontierStatus,
    MarkerStore,
    RegressionNotice,
    StoredPosition,
    markers_of,
    merged_markers,
)
from slackwater.kafka.retry import KafkaRetry

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
