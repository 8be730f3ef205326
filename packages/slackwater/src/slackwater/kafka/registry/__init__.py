"""Schemas of records, from a Confluent-compatible schema registry and for it."""

from slackwater.kafka.registry.client import (
    RegistryRefusedError,
    RegistryUnavailableError,
    SchemaRegistry,
    avro_to_json,
)
from slackwater.kafka.registry.subjects import Schema, SchemaKind, SubjectRegistry, subject, wire_header
from slackwater.protocol import RegistrySettings

__all__ = [
    "RegistryRefusedError",
    "RegistrySettings",
    "RegistryUnavailableError",
    "Schema",
    "SchemaKind",
    "SchemaRegistry",
    "SubjectRegistry",
    "avro_to_json",
    "subject",
    "wire_header",
]
