"""Registry and wire format together."""

from slackwater_cdc.wire import AvroToJson, ToJson
from slackwater_registry.client import Get, SchemaRegistry, over_http
from slackwater_registry.errors import UnknownSchemaError, UnsupportedSchemaError
from slackwater_registry.settings import RegistrySettings


def avro_to_json(settings: RegistrySettings, get: Get = over_http) -> ToJson:
    """Keys and values of a source as JSON, whether they are Avro or JSON already; for one thread.

    Asks the registry once per schema. Calls raise:

    - ``WireFormatError``: the record cannot be read, or the registry does not have its schema.
    - ``RegistryUnavailableError``, ``RegistryRefusedError``: asking again may help.

    Args:
        settings: Where the registry is.
        get: How it is asked.
    """
    registry = SchemaRegistry(settings, get)

    def schema(schema_id: int) -> str:
        try:
            return registry.schema(schema_id)
        except (UnknownSchemaError, UnsupportedSchemaError) as error:
            raise ValueError(str(error)) from error

    return AvroToJson(schema)
