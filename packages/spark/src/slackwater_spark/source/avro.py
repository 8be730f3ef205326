"""Topics in Avro: what makes JSON of keys and values in a task."""

from functools import lru_cache
from typing import TYPE_CHECKING

from slackwater_spark.source.errors import SchemaRegistryError
from slackwater_spark.source.options import SourceOptions

if TYPE_CHECKING:
    from slackwater_cdc.wire import ToJson
    from slackwater_registry import RegistrySettings


def kept_decoder(options: SourceOptions) -> "ToJson | None":
    """As the options say, kept by the Python worker with the schemas it knows; None when topics are JSON.

    Its calls raise ``CdcError`` for a record that cannot be read, ``SchemaRegistryError`` for a registry that
    does not help.
    """
    return None if options.schema_registry is None else _decoder(options.schema_registry)


@lru_cache(maxsize=4)
def _decoder(settings: "RegistrySettings") -> "ToJson":
    from slackwater_registry import avro_to_json

    return refusing(avro_to_json(settings))


def refusing(to_json: "ToJson") -> "ToJson":
    """The same, but for the error when the registry does not help, which is the source's."""
    from slackwater_registry import RegistryError

    def checked(data: bytes | None) -> bytes | None:
        try:
            return to_json(data)
        except RegistryError as error:
            raise SchemaRegistryError(str(error)) from error

    return checked
