"""The bucketed stage: packed change events in, documents of a view out.

Known limits: a touched key is evaluated with all of its rows, so its cost follows the size of its document.
The log of a bucket is one value of Spark's state store, so choose `buckets` such that a bucket stays below
64 MB. Each touched bucket costs four state calls and one evaluation per batch, however few its events.
"""

from slackwater_spark.stage.conf import (
    check_conf,
    local_checkpoint_conf,
    required_conf,
    required_environment,
)
from slackwater_spark.stage.errors import (
    IndexFolderError,
    MissingOldRowError,
    MissingRowImageError,
    PackingError,
    RefusedSettingError,
    SplitKeyError,
    StageError,
    StateMismatchError,
    TruncateInGroupsError,
    UnknownRowError,
    UnknownTableError,
    UnreadablePayloadError,
    UnreadableStateError,
    UnsupportedChangeError,
)
from slackwater_spark.stage.event_packer import EventPacker
from slackwater_spark.stage.packing import PackingInput, PackingSpec, packing_spec
from slackwater_spark.stage.processor import stage
from slackwater_spark.stage.settings import StageSettings
from slackwater_spark.stage.wire import HEADER_BUCKET, ROW_SCHEMA

__all__ = [
    "HEADER_BUCKET",
    "ROW_SCHEMA",
    "EventPacker",
    "IndexFolderError",
    "MissingOldRowError",
    "MissingRowImageError",
    "PackingError",
    "PackingInput",
    "PackingSpec",
    "RefusedSettingError",
    "SplitKeyError",
    "StageError",
    "StageSettings",
    "StateMismatchError",
    "TruncateInGroupsError",
    "UnknownRowError",
    "UnknownTableError",
    "UnreadablePayloadError",
    "UnreadableStateError",
    "UnsupportedChangeError",
    "check_conf",
    "local_checkpoint_conf",
    "packing_spec",
    "required_conf",
    "required_environment",
    "stage",
]
