"""The Spark query of a pipeline, from the source through its stages into the sink."""

import json
import threading
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from slackwater_engine.documents import document_batch
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.settings import StageSettings
from slackwater_protocol import Clock
from slackwater_spark.operator.processor import stages
from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.sink import Emit, Sink, WriteReport
from slackwater_spark.source.options import server_options


def packed_documents(
    session: SparkSession, definition: PipelineDefinition, settings: RunSettings
) -> DataFrame:
    """Builds the stream that a sink writes: packed rows of batch headers and documents.

    Raises:
        PipelineConfigError: the session lacks a setting that stages need, or has one that leaks data.
    """
    options = source_options(definition, settings, session.sparkContext.defaultParallelism)
    rows = session.readStream.format("slackwater").options(**options).load()
    return stages(rows, definition.plan, _stage_settings(definition, settings), definition.evaluators)


def source_options(definition: PipelineDefinition, settings: RunSettings, cores: int) -> dict[str, str]:
    """Returns the options of ``format("slackwater")``; they hold secrets under names that Spark redacts."""
    required = {
        "source": definition.source,
        "tables": ",".join(definition.tables),
        "timeline": str(settings.timeline),
        "scope": str(definition.scope),
        "parallelism": str(settings.parallelism or cores),
        "packing": packing_spec(definition.plan, definition.buckets).to_json(),
        **server_options(settings.servers),
    }
    optional = {
        "max_events_per_batch": settings.max_events_per_batch,
        "topics": json.dumps(dict(definition.topics)) if definition.topics else None,
    }
    return required | {name: str(value) for name, value in optional.items() if value is not None}


class RunStoppedError(Exception):
    """Ends a batch that must not begin any more, since the run is being stopped."""


class BatchWriter:
    """Hands each batch that Spark has made to the sink; the function of Spark's ``foreachBatch``.

    Spark calls from a thread of its own, one batch at a time; :meth:`stop` may come from any thread.

    Args:
        sink: Where batches become visible.
        query_id: Returns Spark's query id; called when a batch is written.
        clock: Measures how long batches take.
        on_written: Takes what the sink says of a batch, and how many seconds it took to get there.
    """

    def __init__(
        self,
        sink: Sink,
        query_id: Callable[[], str],
        clock: Clock,
        on_written: Callable[[WriteReport, float], None],
    ) -> None:
        self._sink = sink
        self._query_id = query_id
        self._clock = clock
        self._on_written = on_written
        self._writing = threading.Lock()
        self._is_stopped = False
        self.failure: Exception | None = None
        """The error of the last batch, as it was raised: Spark hands on only its text."""

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Collects and writes one batch."""
        started = self._clock.monotonic()
        batch = document_batch(batch_id, rows.toArrow())
        if batch is None:
            return
        collected = self._clock.monotonic()
        with self._writing:
            if self._is_stopped:
                raise RunStoppedError
            try:
                report = self._sink.write(self._query_id(), batch)
            except Exception as error:
                self.failure = error
                raise
        self._on_written(report, collected - started)

    def stop(self) -> None:
        """Returns when no batch is being written; from then on none is."""
        with self._writing:
            self._is_stopped = True


def _stage_settings(definition: PipelineDefinition, settings: RunSettings) -> StageSettings:
    """Returns the settings of all stages."""
    root = settings.index_root
    return StageSettings(
        buckets=definition.buckets,
        every_commit=definition.emit is Emit.TRANSACTIONS,
        scope=definition.scope,
        limits=settings.limits,
        index_root=None if root is None else str(root),
    )
