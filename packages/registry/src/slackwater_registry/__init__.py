"""Schemas of Avro records from a Confluent-compatible schema registry."""

from slackwater_protocol import RegistrySettings
from slackwater_registry.client import (
    RegistryConfigError,
    RegistryError,
    RegistryInputError,
    RegistryUnavailableError,
    SchemaRegistry,
    avro_to_json,
)

__all__ = [
    "RegistryConfigError",
    "RegistryError",
    "RegistryInputError",
    "RegistrySettings",
    "RegistryUnavailableError",
    "SchemaRegistry",
    "avro_to_json",
]
