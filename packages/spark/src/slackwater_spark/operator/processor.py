"""Stages as operators of a Spark query.

Spark groups packed rows by stage and bucket and calls the processor once per touched bucket and batch.
Nothing heavy is imported until then: Spark also loads the processor into a worker of the driver, only to
learn its state.
"""

import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from slackwater_engine.evaluate.evaluators import Evaluators, SqlEvaluators
from slackwater_engine.payloads import PACKED_SCHEMA
from slackwater_engine.settings import Scope, StageSettings
from slackwater_engine.state.log import LOG_KEY_SCHEMA, LOG_SCHEMA, META_SCHEMA, StateLog
from slackwater_spark.collector import collector_paused
from slackwater_spark.operator.conf import check_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater_engine.bucket import BucketProcessor
    from slackwater_engine.index.lmdb_index import OpenIndexes
    from slackwater_sql.plan import EnginePlan

_QUERY_ID = "sql.streaming.queryId"


def stages(
    df: "DataFrame", plan: "EnginePlan", settings: StageSettings, evaluators: Evaluators | None = None
) -> "DataFrame":
    """Turns a stream of packed rows into documents of a pipeline's views.

    Input and output have the columns ``stage, bucket, sequence, payload``; rows of stage 0 pass unchanged.
    The session's `spark.sql.shuffle.partitions` is the number of tasks of each stage, fixed by the query's
    checkpoint.

    Args:
        df: Packed as :func:`packing_spec` says.
        plan: The pipeline.
        settings: Of all stages.
        evaluators: Of rows parts; None: DuckDB.

    Raises:
        PipelineConfigError: the session lacks a setting of `required_conf`, or has one that leaks data.
        EngineConfigError: the scope is `aggregate`, and the pipeline is more than one stage of rows.
    """
    check_conf({key: str(value) for key, value in df.sparkSession.conf.getAll.items()})
    if settings.scope is Scope.AGGREGATE:
        from slackwater_engine.owners import check_aggregate

        check_aggregate(plan)
    for stage_plan in plan.stages:
        processor = EngineProcessor(plan, stage_plan.number, settings, evaluators or SqlEvaluators())
        df = df.groupBy("stage", "bucket").transformWithState(
            processor, PACKED_SCHEMA, outputMode="Append", timeMode="None"
        )
    return df


class EngineProcessor(StatefulProcessor):
    """Runs the buckets of one stage; rows of others pass. One object per task."""

    def __init__(
        self, plan: "EnginePlan", number: int, settings: StageSettings, evaluators: Evaluators
    ) -> None:
        self._plan = plan
        self._number = number
        self._settings = settings
        self._evaluators = evaluators
        self._buckets: BucketProcessor | None = None

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
        """Processes one bucket of a batch."""
        number, bucket = key
        if number != self._number:
            yield from rows
            return
        payloads = [(row.sequence, bytes(row.payload)) for row in rows]
        with collector_paused():
            if self._buckets is None:
                self._buckets = _engine_stage(self._plan, number, self._settings, self._evaluators)
            folder = _index_folder(self._settings.index_root, f"stage-{number}", bucket)
            outcome = self._buckets.process(bucket, payloads, self._log, _open_indexes().get(folder))
            packed = list(outcome.payloads(number, bucket))
        for stage_number, of_bucket, sequence, payload in packed:
            yield Row(stage=stage_number, bucket=of_bucket, sequence=sequence, payload=payload)

    def close(self) -> None:
        """Frees nothing: indexes and evaluators stay open for the next task of this worker."""


@lru_cache(maxsize=64)
def _engine_stage(
    plan: "EnginePlan", number: int, settings: StageSettings, evaluators: Evaluators
) -> "BucketProcessor":
    """Keeps one per Python worker: DuckDB's connection and its prepared objects outlive tasks."""
    from slackwater_engine.bucket import BucketProcessor

    return BucketProcessor(plan, plan.stage(number), settings, evaluators)


@lru_cache(maxsize=1)
def _open_indexes() -> "OpenIndexes":
    """Keeps one per Python worker: LMDB allows one handle of a folder per process."""
    from slackwater_engine.index.lmdb_index import OpenIndexes

    return OpenIndexes()


@lru_cache(maxsize=4)
def _clean_root(root: str) -> Path:
    """Removes the indexes of queries that are no more, below a root that outlives them."""
    from slackwater_engine.index.folders import remove_unused_indexes
    from slackwater_protocol import SystemClock

    remove_unused_indexes(Path(root), SystemClock().now())
    return Path(root)


def _index_folder(root: str | None, name: str, bucket: int) -> Path:
    """Places a bucket's index; without a root in a local folder of Spark, which removes it at the end."""
    from pyspark import TaskContext

    from slackwater_engine.index.folders import index_folder

    context = TaskContext.get()
    query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
    if root is not None:
        return index_folder(_clean_root(root), query_id or "no-query", name, bucket)
    folders = (os.environ.get("SPARK_LOCAL_DIRS") or _temporary_root()).split(",")
    return index_folder(Path(folders[bucket % len(folders)]), query_id or "no-query", name, bucket)


@lru_cache(maxsize=1)
def _temporary_root() -> str:
    """Makes a root among temporary files, where any account could have made one of this name before."""
    from slackwater_engine.index.folders import make_private_folder, unusable_folder

    root = Path(tempfile.gettempdir()) / f"slackwater-{os.getuid()}"
    try:
        make_private_folder(root)
    except OSError as error:
        raise unusable_folder(root, str(error)) from error
    return str(root)
