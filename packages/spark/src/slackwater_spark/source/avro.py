"""Topics in Avro: what makes JSON of keys and values in a task."""

from functools import lru_cache
from typing import TYPE_CHECKING

from slackwater_protocol import RegistrySettings
from slackwater_spark.source.errors import SchemaRegistryError
from slackwater_spark.source.options import SourceOptions

if TYPE_CHECKING:
    from slackwater_cdc.wire import ToJson


def kept_decoder(options: SourceOptions) -> "ToJson | None":
    """As the options say, kept by the Python worker with the schemas it knows; None when topics are JSON.

    Its calls raise ``CdcError`` for a record that cannot be read, ``SchemaRegistryError`` for a registry that
    does not help.
    """
    registry = options.servers.registry
    return None if registry is None else _decoder(registry)


@lru_cache(maxsize=4)
def _decoder(settings: RegistrySettings) -> "ToJson":
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
