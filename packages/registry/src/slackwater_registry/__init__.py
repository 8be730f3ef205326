"""Schemas of Avro records from a Confluent-compatible schema registry."""

from slackwater_registry.client import SchemaRegistry
from slackwater_registry.conversion import avro_to_json
from slackwater_registry.errors import (
    RegistryError,
    RegistryRefusedError,
    RegistrySettingsError,
    RegistryUnavailableError,
    UnknownSchemaError,
    UnsupportedSchemaError,
)
from slackwater_registry.settings import RegistrySettings

__all__ = [
    "RegistryError",
    "RegistryRefusedError",
    "RegistrySettings",
    "RegistrySettingsError",
    "RegistryUnavailableError",
    "SchemaRegistry",
    "UnknownSchemaError",
    "UnsupportedSchemaError",
    "avro_to_json",
]
