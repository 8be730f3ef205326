"""Registry and wire format together."""

from slackwater_cdc.wire import AvroToJson, ToJson
from slackwater_registry.client import SchemaRegistry
from slackwater_registry.errors import UnknownSchemaError, UnsupportedSchemaError
from slackwater_registry.settings import RegistrySettings


def avro_to_json(settings: RegistrySettings) -> ToJson:
    """Keys and values of a source as JSON, whether they are Avro or JSON already; for one thread.

    Asks the registry once per schema. Calls raise:

    - ``WireFormatError``: the record cannot be read, or the registry does not have its schema.
    - ``RegistryUnavailableError``, ``RegistryRefusedError``: asking again may help.
    """
    registry = SchemaRegistry(settings)

    def schema(schema_id: int) -> str:
        try:
            return registry.schema(schema_id)
        except (UnknownSchemaError, UnsupportedSchemaError) as error:
            raise ValueError(str(error)) from error

    return AvroToJson(schema)
