"""The stage as an operator of a Spark query.

Spark groups packed rows by bucket and calls the processor once per touched bucket and batch. Nothing heavy is
imported until then: Spark also loads the processor into a worker of the driver, only to learn its state.
"""

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from slackwater_spark.scope import Scope
from slackwater_spark.stage.conf import check_conf
from slackwater_spark.stage.settings import StageSettings
from slackwater_spark.stage.state_log import LOG_KEY_SCHEMA, LOG_SCHEMA, META_SCHEMA, StateLog
from slackwater_spark.stage.wire import HEADER_BUCKET, ROW_SCHEMA, document_payloads, documents_stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater_spark.stage.apply import Outcome
    from slackwater_spark.stage.bucket import BucketStage
    from slackwater_spark.stage.lmdb_index import OpenIndexes
    from slackwater_sql.plan import ViewPlan

_QUERY_ID = "sql.streaming.queryId"


def stage(df: "DataFrame", plan: "ViewPlan", settings: StageSettings) -> "DataFrame":
    """The documents that a stream of packed rows makes of a view.

    Input and output have the columns ``stage, bucket, sequence, payload``; rows of bucket -1 pass unchanged.
    The session's `spark.sql.shuffle.partitions` is the number of tasks, fixed by the query's checkpoint.

    Raises:
        RefusedSettingError: the session lacks a setting of `required_conf`, or has one that leaks data.
    """
    check_conf({key: str(value) for key, value in df.sparkSession.conf.getAll.items()})
    return df.groupBy("bucket").transformWithState(
        StageProcessor(plan, settings), ROW_SCHEMA, outputMode="Append", timeMode="None"
    )


class StageProcessor(StatefulProcessor):
    """Runs a stage's buckets; one object per task."""

    def __init__(self, plan: "ViewPlan", settings: StageSettings) -> None:
        self._plan = plan
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Names the state variables."""
        blobs = handle.getMapState("log", LOG_KEY_SCHEMA, LOG_SCHEMA)
        self._log = StateLog(handle.getValueState("meta", META_SCHEMA), blobs)

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,
    ) -> Iterator[Row]:
        """One bucket of a batch."""
        (bucket,) = key
        if bucket == HEADER_BUCKET:
            yield from rows
            return
        payloads = [(row.sequence, bytes(row.payload)) for row in rows]
        with _no_cyclic_gc():
            index = _open_indexes().get(_index_folder(self._settings.index_root, self._plan.name, bucket))
            bucket_stage = _bucket_stage(self._plan, self._settings)
            documents = bucket_stage.process(bucket, payloads, self._log, index).documents
            packed = list(document_payloads(documents))
        for sequence, payload in enumerate(packed):
            yield Row(stage=documents_stage(0), bucket=bucket, sequence=sequence, payload=payload)

    def close(self) -> None:
        """Nothing to free: indexes and evaluators stay open for the next task of this worker."""


@lru_cache(maxsize=4)
def _bucket_stage(plan: "ViewPlan", settings: StageSettings) -> "BucketStage[Outcome]":
    """One per view and Python worker: DuckDB's connection and its prepared objects live on between tasks."""
    from slackwater_spark.stage.apply import BucketLogic
    from slackwater_spark.stage.bucket import BucketStage
    from slackwater_spark.stage.owner import KeyOwners
    from slackwater_spark.stage.packing import packing_spec
    from slackwater_sql.evaluation import Evaluator

    evaluator = Evaluator(plan, memory_limit=settings.evaluator_memory)
    spec = packing_spec(plan, settings.buckets)
    logic = BucketLogic(spec, evaluator, every_commit=settings.every_commit)
    owners = KeyOwners(spec) if settings.scope is Scope.AGGREGATE else None
    return BucketStage(logic, plan.fingerprint, owners)


@lru_cache(maxsize=1)
def _open_indexes() -> "OpenIndexes":
    """One per Python worker: LMDB allows one handle of a folder per process."""
    from slackwater_spark.stage.lmdb_index import OpenIndexes

    return OpenIndexes()


def _index_folder(root: str | None, name: str, bucket: int) -> Path:
    """Below one of Spark's local folders: Spark removes them when the application ends."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
    if root is None:
        local = os.environ.get("SPARK_LOCAL_DIRS") or str(
            Path(tempfile.gettempdir()) / f"slackwater-{os.getuid()}"
        )
        folders = local.split(",")
        root = folders[bucket % len(folders)]
    return Path(root) / "slackwater" / (query_id or "no-query") / name / str(bucket)


@contextmanager
def _no_cyclic_gc() -> Iterator[None]:
    """Millions of short-lived tuples would make it scan again and again; nothing here makes cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
