"""A pipeline that publishes with schemas, read by Confluent's own deserialisers."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from slackwater_lab.fakes.registry import RegistryServer

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Inventory = Any  # these are of conftest.py
Output = Any
StartPipeline = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


def as_json(value: Any) -> Any:
    """A value that was read from Avro as it is in documents."""
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return list(map(as_json, value))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%dT%H:%M:%S.%f")
        return text if value.tzinfo is None else f"{text}Z"
    return value


@pytest.mark.parametrize(
    ("form", "keys"),
    [
        pytest.param("avro", "avro", marks=pytest.mark.slow),
        pytest.param("json-schema", "json-schema", marks=pytest.mark.slow),
    ],
)
def test_readers_with_a_registry_see_the_documents_that_others_see(
    inventory: Inventory,
    output: Output,
    start_pipeline: StartPipeline,
    server: RegistryServer,
    tmp_path: Path,
    form: str,
    keys: str,
) -> None:
    inventory.run(40)
    plain = start_pipeline(emit="transactions")
    assert plain.await_end() == 0, plain.last
    topic = f"{form}-{inventory.source}"
    settings = {"registry": server.url, "checkpoint": str(tmp_path / form), "max_events_per_batch": 200}
    with_schema = {"format": form, "keys": keys, "topic": topic, "name": f"{form}-{inventory.source}"}
    run = start_pipeline(emit="transactions", settings=settings, **with_schema)
    assert run.await_end() == 0, run.last

    with SchemaRegistryClient({"url": server.url}) as client:
        deserialise: Any = (
            AvroDeserializer(client)
            if form == "avro"
            else JSONDeserializer(None, schema_registry_client=client)
        )

        def read(data: bytes | None, field: Any) -> Any:
            return None if data is None else as_json(deserialise(data, SerializationContext(topic, field)))

        found = [
            (lsn, read(key, MessageField.KEY), read(value, MessageField.VALUE))
            for lsn, _, key, value in output.records(topic)
        ]
    expected = [
        (lsn, json.loads(key), None if value is None else json.loads(value))
        for lsn, _, key, value in output.records(f"out-{inventory.source}")
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert any(document is None for _, _, document in found)
    assert len(run.batches) > 1
    assert sorted(server.subjects) == [f"{topic}-key", f"{topic}-value"]
