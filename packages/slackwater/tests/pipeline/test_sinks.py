from dataclasses import replace
from typing import cast

import pytest

from slackwater.outputs.contract import SinkKind
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.lake.sink import LakeSink
from slackwater.outputs.postgres.sink import PostgresSink
from slackwater.pipeline import PipelineDefinition, RunSettings, ViewOutput, pipeline_definition
from slackwater.pipeline.sinks import make_sink, sink_kind
from slackwater.protocol import ConfigError, KafkaSettings, LakeSettings, PostgresSettings, Servers
from slackwater.sql.postgres import parse_catalog

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
    with pytest.raises(ConfigError, match="'p' has outputs of different kinds: kafka and other; a batch"):
        sink_kind(mixed)


def in_postgres(*, history: bool = False) -> PipelineDefinition:
    outputs = [ViewOutput(v, f"s.{v}", kind=SinkKind.POSTGRES, history=history) for v in ("a", "b")]
    return replace(definition(), outputs=tuple(outputs))


def test_a_pipeline_into_postgresql_needs_its_address() -> None:
    with pytest.raises(ConfigError, match=r"no database is configured; set postgres\.output_url"):
        make_sink(in_postgres(), SETTINGS)


def test_the_sink_of_postgresql_names_the_server_without_user_and_password() -> None:
    servers = replace(
        SETTINGS.servers, postgres=PostgresSettings("postgresql://u@h:1/d?sslmode=require", "x")
    )
    sink = make_sink(in_postgres(), replace(SETTINGS, servers=servers))
    assert isinstance(sink, PostgresSink)
    assert sink.place == "PostgreSQL at h:1/d"


def in_lake(kind: SinkKind) -> PipelineDefinition:
    outputs = [ViewOutput(v, f"s.{v}", kind=kind) for v in ("a", "b")]
    return replace(definition(), outputs=tuple(outputs))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (SinkKind.DELTA, r"no location is configured for them; set delta\.location"),
        (SinkKind.ICEBERG, r"no catalogue is configured for them; set iceberg\.catalog"),
    ],
)
def test_a_pipeline_into_a_lake_needs_its_place(kind: SinkKind, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_sink(in_lake(kind), SETTINGS)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (SinkKind.DELTA, "the Delta tables in s3://lake"),
        (SinkKind.ICEBERG, "the Iceberg tables of catalogue 's3://lake'"),
    ],
)
def test_the_sink_of_a_lake_names_its_place(kind: SinkKind, place: str) -> None:
    lake = LakeSettings(place="s3://lake", options={"aws_secret_access_key": "x"})
    servers = replace(SETTINGS.servers, delta=lake, iceberg=lake)
    sink = make_sink(in_lake(kind), replace(SETTINGS, servers=servers))
    assert isinstance(sink, LakeSink)
    assert sink.place == place
    assert "aws" not in repr(lake)
