"""Documents of views, as rows for any sink of Spark's, or written to Kafka exactly once."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.settings import Scope, StageSettings
from slackwater_spark.api.changes import Changes
from slackwater_spark.api.document_rows import DOCUMENT_ROWS, document_unpacker
from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.operator.processor import stages
from slackwater_spark.pipeline import (
    BatchProgress,
    PipelineDefinition,
    RunSettings,
    ViewOutput,
    run_pipeline,
)
from slackwater_spark.pipeline.definition import keys_move
from slackwater_spark.sink import Emit
from slackwater_spark.source.data_source import FORMAT
from slackwater_spark.source.options import SourceOptions

_TUNING = ("min_task_events", "target_task_events", "read_timeout_ms")
"""Options of the source that a run of a pipeline does not have."""


@dataclass(frozen=True)
class Documents:
    """The documents of views, as a stream; made by :func:`stateful` and :meth:`Pipeline.documents`.

    Raises:
        PipelineConfigError: the changes are not all there are, or no whole transactions.
    """

    changes: Changes
    """The changes that they are made of."""
    definition: PipelineDefinition = field(repr=False)
    """The pipeline that computes them."""

    def __post_init__(self) -> None:
        options = self.changes.options
        if not self.changes.streaming or options.starting != "earliest" or options.allow_truncated_start:
            raise PipelineConfigError(
                "documents are made of all rows there are",
                "leave out streaming=False, starting='latest' and allow_truncated_start",
            )
        if self.definition.scope is not Scope.STRICT:
            problem = "in scope 'aggregate' batches are not whole transactions"
            raise PipelineConfigError(problem, "use scope 'strict', or `slackwater run`")

    @property
    def session(self) -> "SparkSession":
        """The session that queries run in."""
        return self.changes.session

    @property
    def options(self) -> SourceOptions:
        """The options of the source; without secrets when printed."""
        return self.changes.options

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(view.name for view in self.definition.plan.views)

    def rows(self) -> "DataFrame":
        """Reads a stream of changed documents: the columns of ``DOCUMENT_ROWS``.

        All that a batch changes comes in one batch: the documents of several views always agree with each
        other. Within a view a key occurs once per batch (``latest``) or per commit (``transactions``).
        """
        documents = self._packed().where("stage < 0").select("stage", "payload")
        plan = self.definition.plan
        has_moves = any(keys_move(plan, number) for number in range(len(plan.views)))
        if has_moves:
            # A key may move between buckets; what both say is put together per view.
            documents = documents.repartition("stage")
        return documents.mapInArrow(
            document_unpacker(self.views, settle=has_moves, every_commit=self._every_commit), DOCUMENT_ROWS
        )

    def _packed(self) -> "DataFrame":
        """Reads batch headers and packed documents, as sinks take them."""
        definition, changes = self.definition, self.changes
        options = {**changes.spark_options, "tables": ",".join(definition.tables)}
        options["packing"] = packing_spec(definition.plan, definition.buckets).to_json()
        packed = changes.session.readStream.format(FORMAT).options(**options).load()
        settings = StageSettings(buckets=definition.buckets, every_commit=self._every_commit)
        return stages(packed, definition.plan, settings, definition.evaluators)

    @property
    def _every_commit(self) -> bool:
        return self.definition.emit is Emit.TRANSACTIONS


def write_view(
    documents: Documents,
    *,
    checkpoint: str | Path,
    topic: str | None = None,
    partitions: int | None = None,
    available_now: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Keeps a view's topic up to date, each batch visible at once and exactly once; blocks.

    The same sink as ``slackwater run``: one Kafka transaction per batch with documents, commit records and
    progress; a start after any end, a crash included, goes on where the output ends. Runs in the session of
    the documents, which is left as it is.

    Args:
        documents: Made by :func:`stateful`, or of a :class:`Pipeline`.
        checkpoint: Folder where Spark keeps offsets and state.
        topic: Output topic, for documents of one view; None: as the pipeline says, else the view's name.
        partitions: The number of partitions of a topic that has to be created.
        available_now: Ends after what is there at the start.
        on_progress: Called in this thread for each batch that became visible.
        stop: Ends the run in order when it is set.

    Raises:
        PipelineConfigError: a topic is given for several views, options that this sink does not take, or a
            checkpoint that is not on a file system of this machine.
        PipelineError: the run cannot begin, the output cannot be written, or the query failed.
    """
    definition = documents.definition
    if topic is not None:
        if len(definition.outputs) > 1:
            problem = f"one topic is given for {len(definition.outputs)} views"
            raise PipelineConfigError(problem, "leave out topic=")
        (output,) = definition.outputs
        definition = replace(definition, outputs=(ViewOutput(output.view, topic, output.partitions),))
    folder = RunSettings.local_folder(str(checkpoint))
    settings = _run_settings(documents.options, folder, available_now=available_now, partitions=partitions)
    run_pipeline(definition, settings, on_progress, stop=stop, session=documents.session)


def _run_settings(
    options: SourceOptions, checkpoint: Path, *, available_now: bool, partitions: int | None
) -> RunSettings:
    """Makes the settings of a run that reads as these options say; refuses what a run has no setting for."""
    fields = SourceOptions.__dataclass_fields__
    tuned = [name for name in _TUNING if getattr(options, name) != fields[name].default]
    if tuned:
        raise PipelineConfigError(f"write_view knows no {', '.join(tuned)}", "leave it out of changes(...)")
    return RunSettings(
        servers=options.servers,
        checkpoint=checkpoint,
        timeline=options.timeline,
        available_now=available_now,
        parallelism=options.parallelism,
        max_events_per_batch=options.max_events_per_batch,
        output_partitions=partitions,
    )
