from dataclasses import replace
from typing import cast

import pytest

from slackwater_protocol import KafkaSettings, Servers
from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.pipeline import PipelineDefinition, RunSettings, ViewOutput, pipeline_definition
from slackwater_spark.pipeline.sinks import make_sink, sink_kind
from slackwater_spark.sink import SinkKind
from slackwater_spark.sink.kafka import KafkaSink
from slackwater_sql.postgres import parse_catalog

SETTINGS = RunSettings(servers=Servers(KafkaSettings("b:1")), checkpoint="c")


def definition() -> PipelineDefinition:
    catalog = parse_catalog({"s.sql": "CREATE TABLE s.t (id bigint PRIMARY KEY, n int);"})
    view = "SELECT TRANSACTIONALLY t.id, t.n FROM s.t t"
    return pipeline_definition(name="p", source="inv", catalog=catalog, views={"a": view, "b": view})


def test_a_pipeline_gets_the_sink_that_its_outputs_name() -> None:
    sink = make_sink(definition(), SETTINGS)
    assert isinstance(sink, KafkaSink)
    assert sink.place == "Kafka at b:1"


def test_outputs_of_several_kinds_are_refused() -> None:
    """They could not become visible at once."""
    other = ViewOutput("b", "b", kind=cast(SinkKind, "other"))
    mixed = replace(definition(), outputs=(ViewOutput("a", "a"), other))
    with pytest.raises(PipelineConfigError, match="'p' has outputs of the kinds kafka and other; a batch"):
        sink_kind(mixed)
