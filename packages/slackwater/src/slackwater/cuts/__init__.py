"""Cuts and markers in the cut log and the marker store; registrations and reports of pipelines."""

from slackwater_markers.cut_log import CutLog, LoggedRecord, cuts_of
from slackwater_markers.errors import (
    CompactedTopicUnavailableError,
    CutLogDamagedError,
    CutLogError,
    CutLogReplacedError,
    CutLogTruncatedError,
    CutLogUnavailableError,
    MarkersError,
    MarkerStoreContentError,
    MarkerStoreRefusedError,
    MarkerStoreUnavailableError,
)
from slackwater_markers.kafka_log import KafkaCutLog
from slackwater_markers.kafka_pipeline_log import KafkaPipelineLog
from slackwater_markers.kafka_retry import KafkaRetry
from slackwater_markers.lease_log import KafkaLeaseLog, LeaseLog
from slackwater_markers.memory import (
    InMemoryCutLog,
    InMemoryLeaseLog,
    InMemoryMarkerStore,
    InMemoryPipelineLog,
)
from slackwater_markers.pipeline_log import PipelineLog
from slackwater_markers.redis_store import RedisMarkerStore
from slackwater_markers.store import (
    CutRetention,
    FrontierState,
    FrontierStatus,
    MarkerStore,
    RegressionNotice,
    StoredPosition,
    markers_of,
    merged_markers,
)

__version__ = "0.1.0"

__all__ = [
    "CompactedTopicUnavailableError",
    "CutLog",
    "CutLogDamagedError",
    "CutLogError",
    "CutLogReplacedError",
    "CutLogTruncatedError",
    "CutLogUnavailableError",
    "CutRetention",
    "FrontierState",
    "FrontierStatus",
    "InMemoryCutLog",
    "InMemoryLeaseLog",
    "InMemoryMarkerStore",
    "InMemoryPipelineLog",
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
    "MarkersError",
    "PipelineLog",
    "RedisMarkerStore",
    "RegressionNotice",
    "StoredPosition",
    "cuts_of",
    "markers_of",
    "merged_markers",
]
