"""Runs the pipeline of a folder. Spark starts while the pipeline is being loaded."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.pipeline.session import starting_spark, with_spark_log
from slackwater.pipeline.settings import RunSettings, revision_name
from slackwater.pipeline.toml_table import PipelineLabels, read_definition

if TYPE_CHECKING:
    from slackwater.pipeline.progress import BatchProgress


def run_folder(
    folder: Path,
    settings: RunSettings,
    on_progress: "Callable[[BatchProgress], None]",
    *,
    stop: threading.Event,
    on_step: Callable[[str], None],
    on_turn: Callable[[bool], None],
) -> None:
    """Keeps the views of a folder up to date; see :func:`run_pipeline` for details.

    Args:
        folder: The folder of the pipeline.
        settings: The settings of the run.
        on_progress: Called in this thread for each visible batch, in order.
        stop: Ends the run in an orderly way.
        on_step: Called in this thread before each step that may take long, with a line that names the
            pipeline.
        on_turn: Called in this thread before each step of the loop, with whether the views show all cuts.

    Raises:
        ConfigError: Something cannot be used; the error names the file and the key.
        SqlError: A schema or view file is not supported; the error contains the position.
        SlackwaterError: As for :func:`run_pipeline`.
    """
    labels = read_definition(folder).read(PipelineLabels, ignores_others=True)
    name = revision_name(labels.name, labels.revision)
    settings = with_spark_log(settings, labels.revision)
    on_step(f"{name}: starting Spark")
    with starting_spark(name, settings, stop=stop) as started:
        # These load the libraries that plan views, which takes as long as half of Spark's start.
        from slackwater.pipeline.folder import load_pipeline
        from slackwater.pipeline.runner import run_pipeline

        run_pipeline(
            load_pipeline(folder),
            settings,
            on_progress,
            stop=stop,
            context=started,
            on_step=lambda step: on_step(f"{name}: {step}"),
            on_turn=on_turn,
        )
