"""Published cuts and markers: the cut log in Kafka, the marker store in Redis or memory."""

from slackwater_markers.cut_log import CutLog, LoggedRecord, cuts_of
from slackwater_markers.errors import (
    CutLogDamagedError,
    CutLogError,
    CutLogReplacedError,
    CutLogTruncatedError,
    CutLogUnavailableError,
    MarkersError,
    MarkerStoreContentError,
    MarkerStoreUnavailableError,
)
from slackwater_markers.kafka_log import KafkaCutLog
from slackwater_markers.kafka_retry import KafkaRetry
from slackwater_markers.memory import InMemoryCutLog, InMemoryMarkerStore
from slackwater_markers.redis_store import RedisMarkerStore
from slackwater_markers.store import (
    CutRetention,
    FrontierState,
    FrontierStatus,
    MarkerStore,
    PipelineStatus,
    RegressionNotice,
    StoredPosition,
    markers_of,
    merged_markers,
)

__all__ = [
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
    "InMemoryMarkerStore",
    "KafkaCutLog",
    "KafkaRetry",
    "LoggedRecord",
    "MarkerStore",
    "MarkerStoreContentError",
    "MarkerStoreUnavailableError",
    "MarkersError",
    "PipelineStatus",
    "RedisMarkerStore",
    "RegressionNotice",
    "StoredPosition",
    "cuts_of",
    "markers_of",
    "merged_markers",
]
