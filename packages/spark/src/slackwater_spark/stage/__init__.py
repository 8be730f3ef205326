"""The bucketed stages: packed change events in, documents of views out.

Known limits: where a result depends on all rows of its key, a touched key is evaluated with all of them. Each
touched bucket of a stage costs some state calls and one evaluation per batch, however few its events.
"""

from slackwater_spark.stage.conf import (
    check_conf,
    local_checkpoint_conf,
    required_conf,
    required_environment,
    worker_conf,
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
    UnsupportedScopeError,
)
from slackwater_spark.stage.evaluators import Evaluators, SqlEvaluators
from slackwater_spark.stage.event_packer import EventPacker
from slackwater_spark.stage.packing import PackingInput, PackingSpec, packing_spec
from slackwater_spark.stage.processor import stages
from slackwater_spark.stage.settings import StageSettings
from slackwater_spark.stage.wire import HEADER_BUCKET, ROW_SCHEMA

__all__ = [
    "HEADER_BUCKET",
    "ROW_SCHEMA",
    "Evaluators",
    "EventPacker",
    "IndexFolderError",
    "MissingOldRowError",
    "MissingRowImageError",
    "PackingError",
    "PackingInput",
    "PackingSpec",
    "RefusedSettingError",
    "SplitKeyError",
    "SqlEvaluators",
    "StageError",
    "StageSettings",
    "StateMismatchError",
    "TruncateInGroupsError",
    "UnknownRowError",
    "UnknownTableError",
    "UnreadablePayloadError",
    "UnreadableStateError",
    "UnsupportedChangeError",
    "UnsupportedScopeError",
    "check_conf",
    "local_checkpoint_conf",
    "packing_spec",
    "required_conf",
    "required_environment",
    "stages",
    "worker_conf",
]
