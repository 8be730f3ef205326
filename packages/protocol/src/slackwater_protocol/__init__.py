"""The language between Slackwater's processes: records about sources and pipelines, names, one codec.

Standard library only; imported by every other member, imports none.
"""

from slackwater_protocol.clock import END_OF_TIME_MS, Clock, SystemClock
from slackwater_protocol.codec import (
    PROTOCOL_VERSION,
    decode_batch_header,
    decode_commit_record,
    decode_cut,
    decode_log_record,
    decode_marker,
    decode_open_transaction,
    decode_progress_record,
    encode_batch_header,
    encode_commit_record,
    encode_cut,
    encode_log_record,
    encode_marker,
    encode_open_transaction,
    encode_progress_record,
)
from slackwater_protocol.commit_position import (
    SNAPSHOT_XID,
    CommitPosition,
    format_position,
    parse_position,
)
from slackwater_protocol.errors import (
    MalformedRecordError,
    ProtocolError,
    ServersConfigError,
    SlackwaterError,
    UnsupportedVersionError,
)
from slackwater_protocol.folders import user_cache
from slackwater_protocol.pipeline_records import (
    BatchHeader,
    CommitRecord,
    OffsetRange,
    ProgressRecord,
    TopicState,
)
from slackwater_protocol.servers import (
    NO_SERVERS,
    KafkaSettings,
    RedisSettings,
    RegistrySettings,
    Servers,
)
from slackwater_protocol.source import Evidence, SourceTopics
from slackwater_protocol.source_records import (
    AheadMarkers,
    CommittedTransaction,
    Cut,
    LogRecord,
    Marker,
    OpenTransaction,
    PassDecision,
    PublishedCut,
    SkipDecision,
    TimelineDecision,
)

__all__ = [
    "END_OF_TIME_MS",
    "NO_SERVERS",
    "PROTOCOL_VERSION",
    "SNAPSHOT_XID",
    "AheadMarkers",
    "BatchHeader",
    "Clock",
    "CommitPosition",
    "CommitRecord",
    "CommittedTransaction",
    "Cut",
    "Evidence",
    "KafkaSettings",
    "LogRecord",
    "MalformedRecordError",
    "Marker",
    "OffsetRange",
    "OpenTransaction",
    "PassDecision",
    "ProgressRecord",
    "ProtocolError",
    "PublishedCut",
    "RedisSettings",
    "RegistrySettings",
    "Servers",
    "ServersConfigError",
    "SkipDecision",
    "SlackwaterError",
    "SourceTopics",
    "SystemClock",
    "TimelineDecision",
    "TopicState",
    "UnsupportedVersionError",
    "decode_batch_header",
    "decode_commit_record",
    "decode_cut",
    "decode_log_record",
    "decode_marker",
    "decode_open_transaction",
    "decode_progress_record",
    "encode_batch_header",
    "encode_commit_record",
    "encode_cut",
    "encode_log_record",
    "encode_marker",
    "encode_open_transaction",
    "encode_progress_record",
    "format_position",
    "parse_position",
    "user_cache",
]
