"""Schemas of Avro records from a Confluent-compatible schema registry."""

from slackwater_protocol import RegistrySettings
from slackwater_registry.client import SchemaRegistry, avro_to_json
from slackwater_registry.errors import (
    RegistryConfigError,
    RegistryError,
    RegistryInputError,
    RegistryUnavailableError,
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
