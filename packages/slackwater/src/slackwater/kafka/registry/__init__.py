"""Schemas of records, from a Confluent-compatible schema registry and for it."""

from slackwater_protocol import RegistrySettings
from slackwater_registry.client import (
    RegistryConfigError,
    RegistryError,
    RegistryInputError,
    RegistryRefusedError,
    RegistryUnavailableError,
    SchemaRegistry,
    avro_to_json,
)
from slackwater_registry.subjects import Schema, SchemaKind, SubjectRegistry, subject, wire_header

__version__ = "0.1.0"

__all__ = [
    "RegistryConfigError",
    "RegistryError",
    "RegistryInputError",
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
