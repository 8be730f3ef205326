"""Reads schemas from a registry over HTTP, and Avro with them; the errors of all clients of a registry.

The errors differ in what can be done about them::

    ConfigError                    it refuses the credentials, or is not at this path
    InputError                     it does not have the schema of a record, or the schema is unusable
    └── RegistryRefusedError       it does not accept a schema that should be registered
    UnavailableError
    └── RegistryUnavailableError   it does not answer; try again later
"""

import base64
import http.client
import ssl
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import orjson

from slackwater.cdc.avro import AvroToJson, ToJson
from slackwater.protocol import ConfigError, InputError, RegistrySettings, UnavailableError

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_REFUSALS = (401, 403)
_CHUNK_BYTES = 1 << 16
MAX_ANSWER_BYTES: Final = 8 << 20
"""Schemas are much shorter than this; a server that answers with more is not a schema registry."""

Get = Callable[[RegistrySettings, str, str], tuple[int, bytes]]
"""Requests a path of an address; returns HTTP status and body. Raises like :func:`over_http`."""


class RegistryRefusedError(InputError):
    """The registry does not accept a schema.

    Args:
        address: The registry.
        reason: Its own message.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"schema registry {address}: {reason}",
            "write to another topic with a new subject, or change the subject's compatibility if its readers "
            "can read both",
        )
        self.args = address, reason
        self.reason = reason


class RegistryUnavailableError(UnavailableError):
    """The registry does not answer. Nothing that was already read is lost: try again."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(
            f"schema registry {address}: {problem}",
            "check that the registry is running and that the address is correct",
        )
        self.args = address, problem


def registry_misconfigured(address: str, problem: str) -> ConfigError:
    """Returns the error for a registry that requires other credentials, or is not at this path."""
    return ConfigError(
        f"schema registry {address}: {problem}",
        "check the address with its path, user and password, and that the user may read schemas and register "
        "those of outputs",
    )


def _unusable_schema(address: str, problem: str) -> InputError:
    """Returns the error for a schema that the registry does not have, or that is not self-contained Avro."""
    return InputError(
        f"schema registry {address}: {problem}",
        "check whether this is the registry of the connector's converter, whether the schema was "
        "deleted, and whether it is "
        "Avro without references, as Connect's AvroConverter registers it",
    )


def over_http(settings: RegistrySettings, address: str, path: str) -> tuple[int, bytes]:
    """Requests a path of an address; returns HTTP status and body, and raises like :func:`send_over_http`."""
    return send_over_http(settings, "GET", address, path, None)


def send_over_http(
    settings: RegistrySettings, method: str, address: str, path: str, body: bytes | None
) -> tuple[int, bytes]:
    """Sends a request to an address and a path; returns HTTP status and body.

    Raises:
        OSError: There is no answer, or none within the time-out, or one that is too long.
        http.client.HTTPException: The server uses another protocol.
    """
    parts = urlsplit(address)
    seconds = settings.timeout.total_seconds()
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        trust = ssl.create_default_context(cafile=settings.ca)
        connection = http.client.HTTPSConnection(parts.netloc, timeout=seconds, context=trust)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=seconds)
    headers = _headers(settings)
    if body is not None:
        headers["Content-Type"] = "application/vnd.schemaregistry.v1+json"
    try:
        connection.request(method, parts.path + path, body, headers)
        response = connection.getresponse()
        return response.status, _body_of(response, time.monotonic() + seconds)
    finally:
        connection.close()


def _headers(settings: RegistrySettings) -> dict[str, str]:
    headers = {"Accept": _ACCEPT}
    if settings.user is not None:
        credentials = f"{settings.user}:{settings.password or ''}"
        headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    return headers


class SchemaRegistry:
    """Schemas by id. The schema of an id never changes, so each is requested once. For one thread.

    Args:
        settings: Its address and credentials.
        get: Sends the requests.
    """

    def __init__(self, settings: RegistrySettings, get: Get = over_http) -> None:
        self._settings = settings
        self._get = get
        self._schemas: dict[int, str] = {}

    def schema(self, schema_id: int) -> str:
        """Returns the Avro schema with this id, as JSON text. Blocks for at most the time-out per address.

        Raises:
            RegistryUnavailableError: No address answers. ConfigError: It refuses the credentials.
                InputError: There is no such schema, or it is not self-contained Avro.
        """
        known = self._schemas.get(schema_id)
        if known is not None:
            return known
        schema = self._schemas[schema_id] = self._ask(schema_id)
        return schema

    def _ask(self, schema_id: int) -> str:
        *others, last = self._settings.addresses
        for address in others:
            try:
                return self._ask_at(address, schema_id)
            except RegistryUnavailableError:
                continue
        return self._ask_at(last, schema_id)

    def _ask_at(self, address: str, schema_id: int) -> str:
        try:
            status, body = self._get(self._settings, address, f"/schemas/ids/{schema_id}")
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(address, schema_id, f"{type(error).__name__}: {error}") from error
        if status == http.HTTPStatus.NOT_FOUND:
            raise _unusable_schema(address, f"there is no schema {schema_id}")
        if status in _REFUSALS:
            problem = f"reading schema {schema_id} was refused (HTTP {status})"
            raise registry_misconfigured(address, problem)
        if status != http.HTTPStatus.OK:
            raise _no_answer(address, schema_id, f"HTTP {status}")
        return _schema_in(body, address, schema_id)


def _body_of(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Reads an answer unless it is too long or takes too long: a registry cannot fill our memory."""
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise OSError(f"its answer is longer than {MAX_ANSWER_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("its answer does not end")
    return bytes(body)


def _schema_in(body: bytes, address: str, schema_id: int) -> str:
    try:
        answer = orjson.loads(body)
        schema, kind, references = answer["schema"], answer.get("schemaType"), answer.get("references")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_answer(address, schema_id, f"its answer has no schema: {body[:100]!r}") from error
    if kind not in (None, "AVRO"):
        raise _unusable_schema(address, f"schema {schema_id} is {kind}")
    if references:
        raise _unusable_schema(address, f"schema {schema_id} refers to other schemas")
    return str(schema)


def _no_answer(address: str, schema_id: int, reason: str) -> RegistryUnavailableError:
    problem = f"schema {schema_id} cannot be requested: {reason}"
    return RegistryUnavailableError(address, problem)


def avro_to_json(settings: RegistrySettings, get: Get = over_http) -> ToJson:
    """Returns a function that converts a source's keys and values, in Avro or JSON, to JSON. For one thread.

    Requests each schema once. Calls raise:

    - ``WireFormatError``: the record cannot be read, or the registry does not have its schema.
    - ``RegistryUnavailableError``, ``ConfigError``: another attempt may help.

    Args:
        settings: Its address and credentials.
        get: Sends the requests.
    """
    registry = SchemaRegistry(settings, get)

    def schema(schema_id: int) -> str:
        try:
            return registry.schema(schema_id)
        except InputError as error:
            raise ValueError(str(error)) from error

    return AvroToJson(schema)
