"""The documents of views, and writing them to Kafka exactly once."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import SparkSession

from slackwater.api.change_frame import Changes
from slackwater.engine.settings import Scope
from slackwater.pipeline import BatchProgress, PipelineDefinition, RunSettings, run_pipeline
from slackwater.pipeline.source.options import SourceOptions
from slackwater.protocol import ConfigError

_TUNING = ("min_task_events", "target_task_events", "read_timeout_ms")
"""Options of the source that a run of a pipeline does not have."""


@dataclass(frozen=True)
class Documents:
    """The documents of views; created by :func:`stateful` and :meth:`Pipeline.documents`.

    :func:`write_view` writes them to Kafka, and :func:`for_each_document_batch` passes them to a function.

    Raises:
        ConfigError: The changes do not start at the beginning, are not whole transactions, or have
            options with which documents cannot be computed.
    """

    changes: Changes
    """The changes from which they are computed."""
    definition: PipelineDefinition = field(repr=False)
    """The pipeline that computes them."""

    def __post_init__(self) -> None:
        options = self.changes.options
        if not self.changes.streaming or options.starting != "earliest" or options.allow_truncated_start:
            raise ConfigError(
                "documents are computed from all rows of the source",
                "do not set streaming=False, starting='latest' or allow_truncated_start",
            )
        if self.definition.scope is not Scope.STRICT:
            problem = "in scope 'aggregate' batches are not whole transactions"
            raise ConfigError(problem, "use scope 'strict', or `slackwater run`")
        fields = SourceOptions.__dataclass_fields__
        tuned = [name for name in _TUNING if getattr(options, name) != fields[name].default]
        if tuned:
            problem = f"documents cannot be computed with {', '.join(tuned)}"
            raise ConfigError(problem, "remove it from changes(...)")

    @property
    def session(self) -> "SparkSession":
        """The session in which they are computed."""
        return self.changes.session

    @property
    def options(self) -> SourceOptions:
        """The options of the source; they are printed without secrets."""
        return self.changes.options

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(view.name for view in self.definition.plan.views)


def write_view(  # noqa: PLR0913 - as many as a run of one view has
    documents: Documents,
    *,
    checkpoint: str | Path,
    topic: str | None = None,
    partitions: int | None = None,
    available_now: bool = False,
    allow_missing_tables: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Keeps the topics of views up to date. Each batch becomes visible at once, exactly once. Blocks.

    It uses the same sink as ``slackwater run``: one Kafka transaction per batch, with documents, commit
    records and progress. After any end, including a crash, the next start continues where the output ends. It
    runs in the session of the documents, and does not change the session.

    Args:
        documents: Created by :func:`stateful`, or by a :class:`Pipeline`.
        checkpoint: Where the state is kept: a path, or an address that ``pyarrow.fs`` supports.
        topic: The output topic, for documents of one view; None for the topic that the pipeline specifies, or
            else the name of the view.
        partitions: The number of partitions of a topic that has to be created.
        available_now: Whether to end after the changes that exist at the start.
        allow_missing_tables: Whether tables without a topic count as empty. Otherwise the run is refused.
        on_progress: Called in this thread for each batch that became visible.
        stop: Ends the run in an orderly way when it is set.

    Raises:
        ConfigError: A topic is given for several views.
        SlackwaterError: The run cannot begin, the output cannot be written, or a batch failed,
            or the state in the checkpoint cannot be read or written.
        TopicUnavailableError: Kafka does not answer. StateError: The cut log has changed.
    """
    definition = documents.definition
    if topic is not None:
        if len(definition.outputs) > 1:
            problem = f"one topic is given for {len(definition.outputs)} views"
            raise ConfigError(problem, "omit topic=")
        (output,) = definition.outputs
        definition = replace(definition, outputs=(replace(output, name=topic),))
    settings = replace(
        run_settings(documents, checkpoint),
        available_now=available_now,
        allow_missing_tables=allow_missing_tables,
        output_partitions=partitions,
    )
    session = documents.session
    run_pipeline(definition, settings, on_progress, stop=stop, context=lambda: session.sparkContext)


def run_settings(documents: Documents, checkpoint: str | Path) -> RunSettings:
    """Returns the settings of a run that reads with the options of the documents."""
    options = documents.options
    return RunSettings(
        servers=options.servers,
        checkpoint=str(checkpoint),
        timeline=options.timeline,
        parallelism=options.parallelism,
        max_events_per_batch=options.max_events_per_batch,
        connector_properties=options.connect_properties,
    )
