"""Pipelines of views that are defined in Python."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Unpack

from pyspark.sql import SparkSession

from slackwater.api.change_frame import ChangesOptions, Schema, changes, declared_tables
from slackwater.api.documents import Documents
from slackwater.api.session import check_session
from slackwater.outputs.contract import Emit
from slackwater.pipeline import (
    BatchProgress,
    PipelineDefinition,
    RunSettings,
    ViewOutput,
    load_pipeline,
    pipeline_definition,
    run_pipeline,
)
from slackwater.pipeline.explain import explain, explanation_lines


class Pipeline:
    """Views over the tables of a source that are correct at every commit.

    Args:
        name: The name of the pipeline and of its progress in Kafka.
        source: The connector's ``topic.prefix``.
        schema: The declared tables: CREATE TABLE text, a path, or a catalog.
        views: The name and ``SELECT TRANSACTIONALLY …`` of each view. Views may read each other by name.
        emit: ``latest``: a document per key and batch; ``transactions``: per key and commit that changed it.
        buckets: The number of buckets of each stage, fixed for the life of a checkpoint; None to let the
            first run choose.
        outputs: Where views are published, and in which form; None to publish each as JSON in the topic of
            its name.

    Raises:
        ConfigError: An output cannot have its form.
        SqlTextError: The schema cannot be read, or a view is not supported; the error contains the position.
    """

    def __init__(
        self,
        *,
        name: str,
        source: str,
        schema: Schema,
        views: Mapping[str, str],
        emit: Literal["latest", "transactions"] = "latest",
        buckets: int | None = None,
        outputs: Sequence[ViewOutput] | None = None,
    ) -> None:
        self.definition: PipelineDefinition = pipeline_definition(
            name=name,
            source=source,
            catalog=declared_tables(schema),
            views=views,
            emit=Emit(emit),
            buckets=buckets,
            outputs=outputs,
        )

    @classmethod
    def from_folder(cls, folder: str | Path) -> "Pipeline":
        """Reads the pipeline in a folder with ``pipeline.toml``, ``schema.sql`` and ``views/*.sql``.

        Raises:
            ConfigError: Something cannot be used; the error names the file and the key.
            SqlError: A schema or view file is not supported; the error contains the position.
        """
        pipeline = cls.__new__(cls)
        pipeline.definition = load_pipeline(Path(folder))
        return pipeline

    def __repr__(self) -> str:
        views = ", ".join(view.name for view in self.definition.plan.views)
        return f"Pipeline({self.definition.name!r}, source={self.definition.source!r}, views: {views})"

    def explain(self, *, with_sql: bool = False) -> str:
        """Describes the stages of the pipeline: their keys, what they keep, and why."""
        return "\n".join(explanation_lines(explain(self.definition, with_sql=with_sql)))

    def run(
        self,
        settings: RunSettings,
        on_progress: Callable[[BatchProgress], None] | None = None,
        *,
        stop: threading.Event | None = None,
        session: "SparkSession | None" = None,
    ) -> None:
        """Keeps the views' topics up to date, exactly once, as ``slackwater run`` does. Blocks.

        Args:
            settings: Servers, checkpoint and size of the run.
            on_progress: Called for each batch that became visible.
            stop: Ends the run in an orderly way when it is set.
            session: The session to run in, which is not changed; None to create one for the run.

        Raises:
            SlackwaterError: The run cannot begin, the output cannot be written, or a batch failed,
                or the state in the checkpoint cannot be read or written.
            TopicUnavailableError: Kafka does not answer. StateError: The cut log has changed.
        """
        context = None if session is None else lambda: session.sparkContext
        run_pipeline(self.definition, settings, on_progress, stop=stop, context=context)

    def documents(
        self,
        session: "SparkSession",
        *,
        bootstrap: str,
        redis_url: str | None = None,
        **options: Unpack[ChangesOptions],
    ) -> Documents:
        """Describes the views' documents, for :func:`for_each_document_batch` or :func:`write_view`.

        Args:
            session: The session that computes them, with the settings that :func:`check_session` requires.
            bootstrap: Kafka's ``bootstrap.servers``.
            redis_url: As for :func:`changes`.
            options: As for :func:`changes`.

        Raises:
            ConfigError: The session lacks settings, or an option cannot be used.
        """
        check_session(session)
        definition = self.definition
        if definition.topics:
            options.setdefault("topics", definition.topics)
        source = changes(
            session,
            source=definition.source,
            bootstrap=bootstrap,
            tables=definition.tables,
            redis_url=redis_url,
            **options,
        )
        return Documents(source, definition)
