"""Reads files of a query's checkpoint, wherever it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

ReadFile = Callable[[str], str | None]
"""Reads the text of a file below the checkpoint; None if there is none."""

_LOCAL = "file:"


def file_reader(session: SparkSession, checkpoint: str) -> ReadFile:
    """Makes the function that reads files below a checkpoint: here directly, elsewhere as Spark does."""
    local = Path(
        "/" + checkpoint.removeprefix(_LOCAL).lstrip("/") if checkpoint.startswith(_LOCAL) else checkpoint
    )

    def read(name: str) -> str | None:
        is_local = checkpoint.startswith(_LOCAL) or ("://" not in checkpoint and local.is_dir())
        return _local_text(local / name) if is_local else _hadoop_text(session, f"{checkpoint}/{name}")

    return read


def _local_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _hadoop_text(session: SparkSession, path: str) -> str | None:
    jvm: Any = session._jvm  # noqa: SLF001 - the only way to Spark's own file systems
    hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
    conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - as above
    files = hadoop_path.getFileSystem(conf)
    if not files.exists(hadoop_path):
        return None
    stream = files.open(hadoop_path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()
