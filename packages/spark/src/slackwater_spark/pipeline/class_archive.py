"""Makes an archive of Spark's classes, with which its JVM starts in half the CPU time.

The archive holds the classes that a small query took: one with the parts that those of pipelines have, whose
source, stages and writer are Python's.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from slackwater_engine.index.folders import make_private_folder
from slackwater_engine.pack.packer import EventPacker
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import PACKED_SCHEMA
from slackwater_engine.settings import StageSettings
from slackwater_protocol import NO_SERVERS
from slackwater_spark.errors import PipelineUnavailableError
from slackwater_spark.operator.processor import stages
from slackwater_spark.pipeline.jvm import end_jvm, explain_exit
from slackwater_spark.pipeline.session import spark_session
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.pipeline.spark_home import (
    ARCHIVE_PATTERN,
    ArchivePlace,
    SparkHome,
    archive_name,
    archive_place,
    link_spark_home,
)
from slackwater_sql.compiler import compile_pipeline
from slackwater_sql.plan import EnginePlan
from slackwater_sql.postgres import parse_catalog

_BUCKETS = 4
_TABLES = """
CREATE TABLE s.a (id bigint PRIMARY KEY, kind text NOT NULL);
ALTER TABLE s.a REPLICA IDENTITY FULL;
"""
_VIEW = "SELECT TRANSACTIONALLY a.kind, count(*) AS number FROM s.a AS a GROUP BY a.kind"


def make_class_archive(archives: Path) -> Path:
    """Starts Spark, runs a small query as pipelines have them, and keeps the classes that it took.

    Takes 40 seconds of CPU and 180 MB, and nothing if there is an archive for the installed Spark and Java.
    Several processes may do this at once. Spark must not have been started in this process.

    Raises:
        PipelineUnavailableError: Java or Spark does not start, or no archive could be made.
    """
    try:
        make_private_folder(archives)
        place = archive_place(archives)
        if place is None:
            raise _no_archive("there is no Java on PATH or in JAVA_HOME")
        if (found := place.archive()) is not None:
            return found
        place.folder.mkdir(exist_ok=True)
        with TemporaryDirectory(prefix="making-", dir=place.folder) as scratch:
            _make_home(place.home, Path(scratch))
            archive = _publish(_record(place.home, Path(scratch)), place.folder)
        _remove_replaced(archives, place)
    except OSError as error:
        raise _no_archive(str(error)) from error
    return archive


def _make_home(home: Path, scratch: Path) -> None:
    """Makes the home under the name that the archive will remember; another process may be doing the same."""
    if not home.is_dir():
        made = link_spark_home(scratch / "home")
        with suppress(OSError):
            made.rename(home)


def _record(home: Path, scratch: Path) -> Path:
    """Runs Spark in a JVM that writes an archive when it ends."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark's name for the JVM of this process
        raise _no_archive("this process has started Spark already")
    archive = scratch / "classes.jsa"
    # Java warns of each of hundreds of classes that no archive can have.
    own = SparkHome(home, ("-Xlog:cds=error,cds+dynamic=error", f"-XX:ArchiveClassesAtExit={archive}"))
    settings = RunSettings(servers=NO_SERVERS, checkpoint=scratch / "checkpoint", master="local[2]")
    with spark_session("archive of classes", settings, scratch / "spark.log", own) as session:
        run_small_query(session, scratch)
    code = end_jvm()
    if code != 0 or not archive.is_file():
        raise _no_archive(f"Java wrote none ({explain_exit(code)})")
    return archive


def _publish(recorded: Path, folder: Path) -> Path:
    """Gives the file its final name, under which it is whole even after a power failure."""
    with recorded.open("rb") as file:
        os.fsync(file.fileno())
    return recorded.rename(folder / archive_name(recorded))


def _remove_replaced(archives: Path, place: ArchivePlace) -> None:
    """Removes archives of the same PySpark before it or Java was replaced, and of a PySpark that is gone.

    The links stay: a run that was started with them may look for them at any time. The archive itself it
    has open.
    """
    jars = (place.home / "jars").resolve()
    for other in archives.iterdir():
        linked = (other / "home" / "jars").resolve()
        if other != place.folder and (linked == jars or not linked.exists()):
            for archive in other.glob(ARCHIVE_PATTERN):
                archive.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _plan() -> EnginePlan:
    return compile_pipeline([("v.sql", _VIEW)], parse_catalog({"schema.sql": _TABLES}))


def run_small_query(session: SparkSession, folder: Path) -> int:
    """Runs two batches through a stage with state, as pipelines do; returns how many rows came out."""
    session.dataSource.register(_Source)
    documents = stages(
        session.readStream.format(_Source.name()).load(),
        _plan(),
        StageSettings(buckets=_BUCKETS, index_root=str(folder / "index")),
    )
    rows: list[int] = []
    query = (
        documents.writeStream.foreachBatch(lambda batch, _: rows.append(batch.toArrow().num_rows))
        .option("checkpointLocation", str(folder / "query"))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return sum(rows)


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "slackwater-warm-up"

    def schema(self) -> str:
        return PACKED_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader()


class _Reader(DataSourceStreamReader):
    BATCHES = 2

    def __init__(self) -> None:
        self._newest = 0

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        self._newest = min(self._newest + 1, self.BATCHES)
        return {"batch": self._newest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["batch"], end["batch"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa  # the driver does not need it

        packer = EventPacker(packing_spec(_plan(), _BUCKETS))
        packer.add("s.a", "c", 100, None, b'{"id": %d, "kind": "k"}' % partition.value)
        rows = [(stage, bucket, 0, data) for stage, bucket, data in packer.payloads()]
        names = ["stage", "bucket", "sequence", "payload"]
        types = [pa.int32(), pa.int32(), pa.int64(), pa.binary()]
        columns = [
            pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)
        ]
        yield pa.record_batch(columns, names=names)


def _no_archive(reason: str) -> PipelineUnavailableError:
    return PipelineUnavailableError(f"no archive of Spark's classes could be made: {reason}")
