"""What the offset log in a query's checkpoint says of a batch: written before it runs, never changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater_engine.scope import Scope
from slackwater_spark.api.errors import OffsetLogError, QueryShapeError
from slackwater_spark.source.position import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ReadFile = Callable[[str], str | None]
"""The text of a file below the checkpoint; None if there is none."""

_VERSION = "v1"
_LOCAL = "file:"
_SOURCE_LINES = 2
"""Lines before those of the sources: version and metadata."""


class OffsetLog:
    """The offset log of one query, which reads one source.

    Args:
        checkpoint: The query's checkpoint location.
        source: The connector's ``topic.prefix``.
        timeline: Of its LSNs.
        read: How files are read.
    """

    def __init__(self, checkpoint: str, source: str, timeline: int, read: ReadFile) -> None:
        self._checkpoint = checkpoint
        self._source = source
        self._timeline = timeline
        self._read = read

    def end(self, batch_id: int) -> Position:
        """Where a batch ends.

        Raises:
            OffsetLogError: the log does not say.
            QueryShapeError: the query reads the source more than once.
        """
        text = self._read(f"offsets/{batch_id}")
        if text is None:
            raise OffsetLogError(self._checkpoint, batch_id, "there is no such file")
        lines = text.splitlines()
        if not lines or lines[0] != _VERSION:
            found = lines[0][:20] if lines else ""
            raise OffsetLogError(self._checkpoint, batch_id, f"version {found!r}, expected {_VERSION!r}")
        ours = [offset for line in lines[_SOURCE_LINES:] if (offset := _offset(line)) is not None]
        if len(ours) > 1:
            raise QueryShapeError(
                f"the query reads changes {len(ours)} times, each up to a commit of its own",
                "make one frame with changes(...).rows(), and its tables inside the function with "
                "changes.typed(rows, table)",
            )
        if not ours:
            raise OffsetLogError(self._checkpoint, batch_id, "the query reads no changes")
        return Position.from_json(ours[0], source=self._source, timeline=self._timeline, scope=Scope.STRICT)


def file_reader(session: "SparkSession", checkpoint: str) -> ReadFile:
    """Reads files below a checkpoint: on this machine directly, elsewhere as Spark does."""
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


def _hadoop_text(session: "SparkSession", path: str) -> str | None:
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


def _offset(line: str) -> dict[str, Any] | None:
    """A source's offset, if it is one of ours; ``-`` stands for none."""
    try:
        data = json.loads(line)
    except ValueError:
        return None
    is_ours = isinstance(data, dict) and {"version", "source", "timeline", "log"} <= data.keys()
    return data if is_ours else None
