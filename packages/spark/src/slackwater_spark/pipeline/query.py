"""The Spark query of a pipeline, from the source to the last stage."""

import json

from pyspark.sql import DataFrame, SparkSession

from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.settings import StageSettings
from slackwater_spark.operator.processor import stages
from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.sink import Emit
from slackwater_spark.source.options import server_options


def packed_documents(
    session: SparkSession, definition: PipelineDefinition, settings: RunSettings
) -> DataFrame:
    """Builds the stream that a sink writes: packed rows of batch headers and documents.

    Raises:
        PipelineConfigError: the session lacks a setting that stages need, or has one that leaks data.
    """
    rows = packed_rows(session, definition, settings)
    return stages(rows, definition.plan, stage_settings(definition, settings), definition.evaluators)


def packed_rows(session: SparkSession, definition: PipelineDefinition, settings: RunSettings) -> DataFrame:
    """Reads the source's changes, packed for the stages."""
    options = source_options(definition, settings, session.sparkContext.defaultParallelism)
    return session.readStream.format("slackwater").options(**options).load()


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


def stage_settings(definition: PipelineDefinition, settings: RunSettings) -> StageSettings:
    """Returns the settings of all stages."""
    root = settings.index_root
    return StageSettings(
        buckets=definition.buckets,
        every_commit=definition.emit is Emit.TRANSACTIONS,
        scope=definition.scope,
        limits=settings.limits,
        index_root=None if root is None else str(root),
    )
