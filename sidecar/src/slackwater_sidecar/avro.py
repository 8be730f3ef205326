"""Values in Avro become JSON before anything else looks at them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from confluent_kafka import Message

from slackwater.cdc import WireFormatError
from slackwater.cdc.avro import MAGIC, ToJson
from slackwater.kafka.registry import Get, RegistryUnavailableError, avro_to_json, over_http
from slackwater.protocol import Clock, ConfigError
from slackwater_sidecar.errors import SchemasUnavailableError
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

_TIMEOUT = timedelta(seconds=1)
"""How long one question may take: a stop waits for it."""
_PAUSE_SECONDS = 0.5
"""How long a registry that did not answer is left alone."""


class AvroValues:
    """Converts the values of messages where they are; for one thread.

    Args:
        to_json: Converts one value.
        address: Where the registry is, for messages.
        clock: For pauses between questions.
    """

    def __init__(self, to_json: ToJson, address: str, clock: Clock) -> None:
        self._to_json = to_json
        self._address = address
        self._clock = clock
        self._ask_again_at = float("-inf")

    def convert(self, messages: Sequence[Message]) -> None:
        """Replaces every value that is Avro. What cannot be read stays, and the frontier names its place.

        May be called again with the same messages after an error.

        Raises:
            SchemasUnavailableError: the registry does not answer; nothing is lost.
        """
        for message in messages:
            value = message.value()
            if value and value[0] == MAGIC and message.error() is None:
                message.set_value(self._converted(message, value))

    def _converted(self, message: Message, value: bytes) -> bytes | None:
        now = self._clock.monotonic()
        if now < self._ask_again_at:
            raise SchemasUnavailableError(self._address, "it did not answer a moment ago")
        try:
            return self._to_json(value)
        except WireFormatError as error:
            where = message.topic(), message.partition(), message.offset()
            logger.warning("cannot be read: %s/%s, offset %s: %s", *where, error)
            return value
        except (ConfigError, RegistryUnavailableError) as error:
            self._ask_again_at = now + _PAUSE_SECONDS
            raise SchemasUnavailableError(self._address, str(error)) from error


def avro_values(settings: SidecarSettings, clock: Clock, get: Get = over_http) -> AvroValues | None:
    """Returns what converts values as the settings say; None when the topics are JSON.

    Args:
        settings: Where the registry is.
        clock: For pauses between questions.
        get: How the registry is asked.
    """
    registry = settings.servers.registry
    if registry is None or registry.url is None:
        return None
    return AvroValues(avro_to_json(replace(registry, timeout=_TIMEOUT), get), registry.url, clock)
