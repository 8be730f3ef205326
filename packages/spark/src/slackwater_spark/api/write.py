"""Documents into Kafka, exactly once."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slackwater_spark.api.documents import Documents
from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.pipeline import BatchProgress, RunSettings, ViewOutput, run_pipeline
from slackwater_spark.source.options import SourceOptions

_TUNING = ("min_task_events", "target_task_events", "read_timeout_ms")


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
    settings = run_settings(documents.options, folder, available_now=available_now, partitions=partitions)
    run_pipeline(definition, settings, on_progress, stop=stop, session=documents.session)


def run_settings(
    options: SourceOptions, checkpoint: Path, *, available_now: bool, partitions: int | None
) -> RunSettings:
    """Makes the settings of a run that reads as these options say.

    Raises:
        PipelineConfigError: a run has no such setting.
    """
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
