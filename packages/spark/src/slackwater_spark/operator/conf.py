"""The Spark settings that a stage needs."""

import sys
from collections.abc import Mapping
from typing import Final

from slackwater_spark.errors import PipelineConfigError

_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE: Final = "spark.sql.streaming.stateStore"

_TRACEBACK_WITH_LOCALS: Final = "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled"


def required_conf() -> dict[str, str]:
    """Returns settings of a session that runs stages; give them to the builder before it exists."""
    return {
        # transformWithState runs on no other store.
        f"{_STATE}.providerClass": _ROCKSDB,
        # A commit then writes the batch's changes; without it, it uploads a snapshot of the store.
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
        # Values are a few opaque blobs: the compact encoding; Avro's schema evolution has nothing to work on.
        f"{_STATE}.encodingFormat": "unsaferow",
        # State calls over unix sockets: no TCP stack, and no port that other users of the machine can reach.
        "spark.python.unix.domain.socket.enabled": "true",
        # One task's input to Python: few large payloads, so bound bytes rather than rows.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "256",
        # Blobs of a log that travel at once when an index is rebuilt: some megabytes, not hundreds of them.
        "spark.sql.execution.arrow.transformWithStateInPySpark.maxStateRecordsPerBatch": "16",
        # Stages keep no time, so an empty batch has nothing to do.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # State's partitioning by bucket is fixed by the checkpoint; adaptive execution must not merge tasks.
        "spark.sql.adaptive.enabled": "false",
    }


def local_checkpoint_conf() -> dict[str, str]:
    """Returns settings that shorten micro-batches if the checkpoint is on a ``file:`` path; only then."""
    return {
        # Hadoop's default manager starts some 35 processes (`readlink`) per micro-batch of a stage with two
        # tasks, because it looks for symbolic links without a native library; this one starts none of them.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }


def worker_conf() -> dict[str, str]:
    """Returns settings that halve the CPU time in which a Python worker starts."""
    return {"spark.python.daemon.module": "slackwater_spark.worker_daemon"}


def required_environment() -> dict[str, str]:
    """Returns variables for the driver's process, to be set before the session exists."""
    return {
        # Workers must be the interpreter that has this package, not the first python3 on PATH. PySpark reads
        # the variable; `spark.pyspark.python` is read by spark-submit only.
        "PYSPARK_PYTHON": sys.executable,
    }


def check_conf(conf: Mapping[str, str]) -> None:
    """Refuses a session in which a stage would be wrong or leak data.

    Raises:
        PipelineConfigError: names the first such setting.
    """
    provider = conf.get(f"{_STATE}.providerClass", "")
    if provider != _ROCKSDB:
        raise _refused_setting(
            f"{_STATE}.providerClass", provider, _ROCKSDB, "transformWithState runs on no other store"
        )
    with_locals = conf.get(_TRACEBACK_WITH_LOCALS, "false")
    if with_locals.strip().lower() == "true":
        raise _refused_setting(
            _TRACEBACK_WITH_LOCALS, with_locals, "false", "rows and secrets would be written into tracebacks"
        )


def _refused_setting(setting: str, value: str, expected: str, why: str) -> PipelineConfigError:
    return PipelineConfigError(f"Spark setting {setting} is {value!r}, expected {expected}: {why}")
