"""Reads records in Confluent's wire format: a zero byte, a schema's id, then Avro, or JSON."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from http import HTTPStatus
from io import BytesIO
from typing import Any, Final

import fastavro
import msgspec

from slackwater_certify.errors import CertifyConfigError, unreadable

_MAGIC: Final = 0
_HEADER_BYTES: Final = 5
_SECONDS: Final = 10
_ORIGINAL_NAME: Final = "slackwater.name"
"""A property with the name of a column that Avro has another name for."""
_JSON = msgspec.json.Decoder(float_hook=str)


@dataclass(slots=True)
class RecordDecoder:
    """Makes plain values of keys and values, in whatever form they are. Asks the registry once per schema.

    Attributes:
        registry: The registry's address; None: none was given.
        user: Of basic authentication.
        password: Of basic authentication.
    """

    registry: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    _schemas: dict[int, Any] = field(default_factory=dict, repr=False)

    def __call__(self, data: bytes) -> Any:
        """Returns the value: of Avro's logical types what Python has for them.

        Raises:
            ValueError: The data do not fit their schema, or are no JSON.
            CertifyConfigError: There is no registry, or it refuses us.
            CertifyError: It does not answer, or does not have the schema.
        """
        if data[:1] != b"\0":
            return _JSON.decode(data)
        if len(data) < _HEADER_BYTES:
            raise ValueError(f"it has {len(data)} bytes, expected at least {_HEADER_BYTES}")
        schema = self._schema(int.from_bytes(data[1:_HEADER_BYTES], "big"))
        if schema is None:
            return _JSON.decode(data[_HEADER_BYTES:])
        stream = BytesIO(data)
        stream.seek(_HEADER_BYTES)
        try:
            value = fastavro.schemaless_reader(stream, schema, None)
        except (EOFError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes follow its end")
        return _plain(schema, value)

    def _schema(self, schema_id: int) -> Any:
        """Returns a schema for fastavro; None for a JSON Schema."""
        if schema_id not in self._schemas:
            answer = self._ask(schema_id)
            is_avro = answer.get("schemaType", "AVRO") == "AVRO"
            self._schemas[schema_id] = json.loads(answer["schema"]) if is_avro else None
        return self._schemas[schema_id]

    def _ask(self, schema_id: int) -> Mapping[str, Any]:
        if self.registry is None:
            raise CertifyConfigError(
                "the output's records refer to schemas in a registry, but no registry is configured",
                "set registry.url (SLACKWATER_REGISTRY_URL)",
            )
        address = self.registry.split(",")[0].strip().rstrip("/")
        request = urllib.request.Request(f"{address}/schemas/ids/{schema_id}")  # noqa: S310 - of the settings
        if self.user is not None:
            credentials = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            request.add_header("Authorization", f"Basic {credentials}")
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310 - see above
                found: Mapping[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                    problem = f"schema registry {address} refuses schema {schema_id} (HTTP {error.code})"
                    raise CertifyConfigError(problem, "check user and password") from error
                raise unreadable(f"schema {schema_id} of {address}", f"HTTP {error.code}") from error
        except (OSError, ValueError) as error:
            raise unreadable(f"schema {schema_id} of {address}", str(error)) from error
        return found


def _plain(schema: Any, value: Any) -> Any:
    """Returns a value with the columns' own names, and in forms that documents in JSON may have, too."""
    if value is None:
        return None
    if isinstance(schema, list):
        (branch,) = (each for each in schema if each != "null")
        return _plain(branch, value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {
            each.get(_ORIGINAL_NAME, each["name"]): _plain(each["type"], value[each["name"]])
            for each in schema["fields"]
        }
    if kind == "array":
        return [_plain(schema["items"], item) for item in value]
    if kind == "map":
        return {name: _plain(schema["values"], item) for name, item in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else value
