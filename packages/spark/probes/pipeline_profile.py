"""Takes published cuts through a pipeline's parts in this process, timing each; prints one JSON line.

Arguments: bootstrap, folder of the pipeline. The parts are those of a run (source, stages, sink), called one
after the other for each batch, without Spark. The batch with the first rows is not counted.
"""

import gc
import json
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from time import process_time, thread_time
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from slackwater_engine.documents import document_batch
from slackwater_engine.index.lmdb_index import LmdbIndex
from slackwater_engine.local import LocalEngine
from slackwater_engine.payloads import HEADER_STAGE
from slackwater_engine.records.batch import BatchTask
from slackwater_engine.records.changes import BatchChanges
from slackwater_protocol import KafkaSettings, Servers
from slackwater_spark.pipeline import RunSettings, load_pipeline
from slackwater_spark.pipeline.query import source_options
from slackwater_spark.pipeline.sinks import make_sink
from slackwater_spark.sink import Emit
from slackwater_spark.source.kafka_reader import SpanReader, kept_consumer
from slackwater_spark.source.options import SourceOptions
from slackwater_spark.source.packed import PackedWriter
from slackwater_spark.source.planner import Planner
from slackwater_spark.source.position import size_between

MAX_EVENTS = 200_000
PackedRow = tuple[int, int, int, bytes]
"""Stage, bucket, sequence, payload."""
SCHEMA = StructType().add("stage", "integer").add("bucket", "integer")
SCHEMA = SCHEMA.add("sequence", "long").add("payload", "binary")


class Profile:
    """A pipeline, part by part."""

    def __init__(self, bootstrap: str, folder: Path, scratch: Path) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._definition = load_pipeline(folder)
        settings = RunSettings(servers=Servers(KafkaSettings(bootstrap)), checkpoint=scratch / "checkpoint")
        options = source_options(self._definition, settings, 1) | {"target_task_events": "1000000000"}
        self._options = SourceOptions.parse(options)
        self.planner = Planner(self._options)
        numbers = count()
        self._engine = LocalEngine(
            self._definition.plan,
            lambda: LmdbIndex(scratch / str(next(numbers))),
            buckets=self._definition.buckets,
            every_commit=self._definition.emit is Emit.TRANSACTIONS,
        )
        self._sink = make_sink(self._definition, settings)
        self._sink.open()
        self._at = thread_time()

    def lap(self, part: str) -> None:
        """Books this thread's time since the last lap."""
        now = thread_time()
        self.seconds[part] += now - self._at
        self._at = now

    def run(self, number: int, tasks: Iterable[BatchTask]) -> int:
        """A batch; returns its documents."""
        self.lap("planning")
        rows = [row for task in tasks for row in self._source(task)]
        done = [row for row in rows if row[0] == HEADER_STAGE]
        waiting: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for stage, bucket, sequence, payload in rows:
            if stage != HEADER_STAGE:
                waiting.setdefault((stage, bucket), []).append((sequence, payload))
        self.lap("hand over")
        for plan in self._definition.plan.stages:
            done += self._stage(plan.number, waiting)
            self.lap(f"stage {plan.number}")
        columns: list[Any] = [list(column) for column in zip(*done, strict=True)]
        batch = document_batch(number, pa.table(dict(zip(SCHEMA.names, columns, strict=True))))
        report = self._sink.write("profile", batch) if batch is not None else None
        self.lap("sink")
        return 0 if report is None else report.documents

    def _source(self, task: BatchTask) -> Iterator[PackedRow]:
        options = self._options
        changes = BatchChanges(task, options.source, options.tables, topics=options.source_topics)
        writer = PackedWriter(options.packing or "", SCHEMA, changes)
        with kept_consumer(options.servers.kafka.client_config) as consumer:
            reader = SpanReader(consumer, timeout_seconds=60)
            for batch in writer.write(task.header, self._consumed(reader, task)):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
        self.lap("decode and pack")

    def _consumed(self, reader: SpanReader, task: BatchTask) -> Iterator[Any]:
        self.lap("decode and pack")
        for portion in reader.read(task.spans):
            self.lap("consume")
            yield portion
            del portion
            self.lap("decode and pack")
        self.lap("consume")

    def _stage(
        self, number: int, waiting: dict[tuple[int, int], list[tuple[int, bytes]]]
    ) -> Iterator[PackedRow]:
        for name in sorted(name for name in waiting if name[0] == number):
            outbox = self._engine.process_bucket(*name, waiting.pop(name))
            for stage, bucket, sequence, payload in outbox.payloads(*name):
                if stage > 0:
                    waiting.setdefault((stage, bucket), []).append((sequence, payload))
                else:
                    yield stage, bucket, sequence, payload


def profile(bootstrap: str, folder: Path, scratch: Path) -> Mapping[str, object]:
    """Everything that is published, batch by batch."""
    pipeline = Profile(bootstrap, folder, scratch)
    planner, position = pipeline.planner, pipeline.planner.start()
    events = documents = batches = 0
    spent = process_time()
    while (end := planner.next(position, MAX_EVENTS, None)) != position:
        if batches == 1:
            pipeline.seconds.clear()
            spent, events, documents = process_time(), 0, 0
        documents += pipeline.run(batches, planner.tasks(position, end))
        events += size_between(position, end)
        position, batches = end, batches + 1
    whole = process_time() - spent
    pipeline.seconds["other threads"] = whole - sum(pipeline.seconds.values())
    return {
        "events": events,
        "documents": documents,
        "us_per_event": {name: round(1e6 * s / events, 2) for name, s in pipeline.seconds.items()},
    }


def main() -> None:
    """Profiles once."""
    gc.disable()
    scratch = Path(tempfile.mkdtemp(prefix="slackwater-engine-profile-"))
    try:
        found = profile(sys.argv[1], Path(sys.argv[2]), scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
