"""Registry and wire format together."""

from slackwater_cdc.wire import AvroToJson, ToJson
from slackwater_registry.client import SchemaRegistry
from slackwater_registry.settings import RegistrySettings


def avro_to_json(settings: RegistrySettings) -> ToJson:
    """Keys and values of a source as JSON, whether they are Avro or JSON already; for one thread.

    Calls raise what :class:`slackwater_cdc.wire.AvroToJson` and :meth:`SchemaRegistry.schema` raise. Asks the
    registry once per schema.
    """
    return AvroToJson(SchemaRegistry(settings).schema)
