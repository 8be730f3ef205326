"""Pipelines of views from Python."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Unpack

from pyspark.sql import SparkSession

from slackwater_spark.api.changes import ChangesOptions, changes
from slackwater_spark.api.documents import Documents
from slackwater_spark.api.schema import Schema, declared_tables
from slackwater_spark.api.session import check_session
from slackwater_spark.explain import explain_pipeline
from slackwater_spark.pipeline import (
    BatchProgress,
    PipelineDefinition,
    RunSettings,
    ViewOutput,
    load_pipeline,
    pipeline_definition,
    run_pipeline,
)
from slackwater_spark.sink import Emit


class Pipeline:
    """Views over the tables of a source, right at every commit.

    Args:
        name: Names the pipeline's progress in Kafka.
        source: The connector's ``topic.prefix``.
        schema: Declared tables: CREATE TABLE text, a path, or a catalog.
        views: Name and ``SELECT TRANSACTIONALLY …`` of each view; views may read each other by name.
        emit: ``latest``: a document per key and batch; ``transactions``: per key and commit that changed it.
        buckets: Slices of each stage's keys, fixed for the life of a checkpoint; None: the first run chooses.
        outputs: Where views are published, and in which form; None: each as JSON in the topic of its name.

    Raises:
        PipelineConfigError: an output cannot have its form.
        SqlTextError: the schema cannot be read; with its place.
        SqlTextError: a view is not supported; with its place.
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
            PipelineConfigError: file and key of what cannot be used.
            SqlError: a schema or view file is not supported; with its place.
        """
        pipeline = cls.__new__(cls)
        pipeline.definition = load_pipeline(Path(folder))
        return pipeline

    def __repr__(self) -> str:
        views = ", ".join(view.name for view in self.definition.plan.views)
        return f"Pipeline({self.definition.name!r}, source={self.definition.source!r}, views: {views})"

    def explain(self, *, with_sql: bool = False) -> str:
        """Says by which stages the pipeline is computed, their keys, what they keep and why."""
        return explain_pipeline(self.definition, with_sql=with_sql)

    def run(
        self,
        settings: RunSettings,
        on_progress: Callable[[BatchProgress], None] | None = None,
        *,
        stop: threading.Event | None = None,
        session: "SparkSession | None" = None,
    ) -> None:
        """Keeps the views' topics up to date, exactly once, as ``slackwater run`` does; blocks.

        Args:
            settings: Servers, checkpoint and size of the run.
            on_progress: Called for each batch that became visible.
            stop: Ends the run in order when it is set.
            session: Runs in this one, which is left as it is, instead of one that is made for the run.

        Raises:
            PipelineError: the run cannot begin, the output cannot be written, or a batch failed.
            EngineError: the state in the checkpoint cannot be read or written.
            CutLogError: Kafka does not answer, or the cut log is not as it was.
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
            session: What they are made in; with what :func:`check_session` asks for.
            bootstrap: Kafka's ``bootstrap.servers``.
            redis_url: As for :func:`changes`.
            options: As for :func:`changes`.

        Raises:
            PipelineConfigError: the session lacks settings, or an option cannot be used.
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
