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
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import process_time, thread_time
from typing import Any

from slackwater.cdc.batch import BatchTask, PlannedBatch
from slackwater.cdc.changes import BatchChanges
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.packer import packing_spec
from slackwater.engine.payloads import DocumentBatch, PackedPayload, documents_by_view
from slackwater.engine.settings import StageSettings, default_buckets
from slackwater.engine.state.log import LogWrite
from slackwater.engine.state.manifest import SegmentReader, StateKeeper
from slackwater.engine.state.store import ArrowStore
from slackwater.engine.task import PipelineTask
from slackwater.outputs.contract import Emit
from slackwater.pipeline import RunSettings, load_pipeline
from slackwater.pipeline.runner import source_options
from slackwater.pipeline.sinks import make_sink
from slackwater.pipeline.source.kafka_reader import SpanReader, kept_consumer
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position, size_between
from slackwater.pipeline.source.task import IdlePackers, pack_changes
from slackwater.protocol import KafkaSettings, Servers

MAX_EVENTS = 200_000
ONE_TASK_EVENTS = 1_000_000_000


class Profile:
    """A pipeline, part by part."""

    def __init__(self, bootstrap: str, folder: Path, scratch: Path) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        definition = load_pipeline(folder)
        checkpoint = str(scratch / "checkpoint")
        settings = RunSettings(servers=Servers(KafkaSettings(bootstrap)), checkpoint=checkpoint)
        options = source_options(definition, settings, 1)
        self._options = replace(options, target_task_events=ONE_TASK_EVENTS)
        self.planner = Planner(self._options)
        stages = StageSettings(
            buckets=definition.buckets or default_buckets(1),
            every_commit=definition.emit is Emit.TRANSACTIONS,
            scope=definition.scope,
            limits=settings.limits,
        )
        self._packers = IdlePackers(packing_spec(definition.plan, stages.buckets))
        self._stages = [stage.number for stage in definition.plan.stages]
        self._task = PipelineTask(definition.plan, stages, definition.evaluators)
        store = ArrowStore(checkpoint)
        self._blobs = SegmentReader(store)
        self._keeper = StateKeeper(store, state_fingerprint(definition.plan, stages))
        self._indexes: dict[tuple[int, int], LmdbIndex] = {}
        self._folders = (scratch / str(number) for number in count())
        self._sink = make_sink(definition, settings)
        self._sink.open()
        self._at = thread_time()

    def lap(self, part: str) -> None:
        """Books this thread's time since the last lap."""
        now = thread_time()
        self.seconds[part] += now - self._at
        self._at = now

    def run(self, planned: PlannedBatch, end: Position) -> int:
        """A batch; returns its documents."""
        self.lap("planning")
        [task] = planned.tasks
        rows = self._source(task)
        writes: list[LogWrite] = []
        for number in self._stages:
            result = self._task.process(rows, self._keeper.state, self._blobs, self._index, (number,))
            rows = result.rows
            writes += result.writes
            self.lap(f"stage {number}")
        state = self._keeper.prepare(end.to_json(), writes)
        self.lap("state")
        batch_id = self._keeper.state.batch_id + 1
        batch = DocumentBatch(batch_id, planned.header, documents_by_view(batch_id, rows), state)
        report = self._sink.write("profile", batch)
        self.lap("sink")
        self._keeper.adopt(state)
        self.lap("state")
        return report.documents

    def _source(self, task: BatchTask) -> list[PackedPayload]:
        options = self._options
        changes = BatchChanges(task, options.source, options.tables, topics=options.source_topics)
        with kept_consumer(options.servers.kafka.client_config) as consumer:
            reader = SpanReader(consumer, timeout_seconds=60)
            packed = pack_changes(self._packers, changes, task.touch_lsn, self._consumed(reader, task))
        self.lap("decode and pack")
        return packed

    def _consumed(self, reader: SpanReader, task: BatchTask) -> Iterator[Any]:
        self.lap("decode and pack")
        for portion in reader.read(task.spans):
            self.lap("consume")
            yield portion
            del portion
            self.lap("decode and pack")
        self.lap("consume")

    def _index(self, stage: int, bucket: int) -> LmdbIndex:
        found = self._indexes.get((stage, bucket))
        if found is None:
            found = self._indexes[stage, bucket] = LmdbIndex(next(self._folders))
        return found


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
        planned = planner.plan(position, end)
        if planned is not None:
            documents += pipeline.run(planned, end)
            batches += 1
        events += size_between(position, end)
        position = end
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
