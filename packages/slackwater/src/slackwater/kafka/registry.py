"""Schemas of records: read from a Confluent-compatible registry over HTTP, and registered there.

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
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import orjson

from slackwater.cdc.avro import HEADER_BYTES, MAGIC, AvroToJson, ToJson
from slackwater.protocol import ConfigError, InputError, RegistrySettings, UnavailableError

_JSON = "application/vnd.schemaregistry.v1+json"
_REFUSALS: Final = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)
_UNUSABLE: Final = (
    http.HTTPStatus.BAD_REQUEST,
    http.HTTPStatus.CONFLICT,
    http.HTTPStatus.UNPROCESSABLE_ENTITY,
)
_SHOWN: Final = 2000
_CHUNK_BYTES = 1 << 16
MAX_ANSWER_BYTES: Final = 8 << 20
"""Schemas are much shorter than this; a server that answers with more is not a schema registry."""

Send = Callable[[RegistrySettings, str, str, str, bytes | None], tuple[int, bytes]]
"""Sends a request of a method to an address and a path; returns HTTP status and body.

Raises like :func:`over_http`."""

T = TypeVar("T")


class RegistryRefusedError(InputError):
    """The registry does not accept a schema."""

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


def _misconfigured(address: str, problem: str) -> ConfigError:
    """Returns the error for a registry that requires other credentials, or is not at this path."""
    return ConfigError(
        f"schema registry {address}: {problem}",
        "check the address with its path, user and password, and that the user may read schemas and register "
        "those of outputs",
    )


def _no_subjects(address: str, answer: Any) -> ConfigError:
    return _misconfigured(address, f"it has no subjects (HTTP 404): {_message(answer)}")


def _unusable_schema(address: str, problem: str) -> InputError:
    """Returns the error for a schema that the registry does not have, or that is not self-contained Avro."""
    return InputError(
        f"schema registry {address}: {problem}",
        "check whether this is the registry of the connector's converter, whether the schema was "
        "deleted, and whether it is "
        "Avro without references, as Connect's AvroConverter registers it",
    )


def over_http(
    settings: RegistrySettings, method: str, address: str, path: str, body: bytes | None, kind: str = _JSON
) -> tuple[int, bytes]:
    """Sends a request to an address and a path, with a body of a content type; returns HTTP status and body.

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
    headers = {"Accept": f"{kind}, application/json"}
    if settings.user is not None:
        credentials = f"{settings.user}:{settings.password or ''}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
    if body is not None:
        headers["Content-Type"] = kind
    try:
        connection.request(method, parts.path + path, body, headers)
        response = connection.getresponse()
        return response.status, _body_of(response, time.monotonic() + seconds)
    finally:
        connection.close()


class SchemaKind(StrEnum):
    """The language of a schema, as registries name it."""

    AVRO = "AVRO"
    JSON = "JSON"


class SubjectStrategy(StrEnum):
    """How the subject of a schema is named."""

    TOPIC = "topic"
    """After the topic, ``<topic>-value`` (TopicNameStrategy)."""
    RECORD = "record"
    """After the schema, whatever the topic (RecordNameStrategy)."""
    TOPIC_RECORD = "topic-record"
    """After both, ``<topic>-<schema>`` (TopicRecordNameStrategy)."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of values or keys."""

    kind: SchemaKind
    text: str
    """JSON text."""
    name: str = ""
    """The full name of an Avro record, or the title of a JSON Schema."""


def subject(
    topic: str, record: str = "", strategy: SubjectStrategy = SubjectStrategy.TOPIC, *, of_keys: bool
) -> str:
    """Returns the name of a schema's subject, as Confluent's strategies have it."""
    if strategy is SubjectStrategy.TOPIC:
        return f"{topic}-{'key' if of_keys else 'value'}"
    return record if strategy is SubjectStrategy.RECORD else f"{topic}-{record}"


def wire_header(schema_id: int) -> bytes:
    """Returns what precedes a value in Confluent's wire format: a zero byte and the schema's id."""
    return bytes([MAGIC]) + schema_id.to_bytes(HEADER_BYTES - 1, "big")


class SchemaRegistry:
    """Reads and registers schemas. For one thread.

    The schema of an id never changes, so each is requested once. Who registers schemas keeps the ids that it
    needs again.
    """

    def __init__(self, settings: RegistrySettings, send: Send = over_http) -> None:
        self._settings = settings
        self._send = send
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
        schema = self._schemas[schema_id] = _first_answer(
            self._settings, lambda address: self._ask_at(address, schema_id)
        )
        return schema

    def register(self, subject: str, schema: Schema, *, only_checks: bool = False) -> int:
        """Returns the id of a schema under a subject; a new schema becomes the subject's newest version.

        It first looks for the schema, so the right to read is enough if others register the schemas. If it
        only checks, a new schema is not registered but compared with earlier versions, and the id is 0.
        Idempotent; blocks for at most the time-out per request and address.

        Raises:
            RegistryUnavailableError: No address answers. ConfigError: It refuses the credentials, or
                there is no registry at the address.
            RegistryRefusedError: The schema is not compatible with earlier versions, or not accepted at all.
        """
        return _first_answer(
            self._settings,
            lambda address: self._register_at(address, subject, schema, only_checks=only_checks),
        )

    def _register_at(self, address: str, subject: str, schema: Schema, *, only_checks: bool) -> int:
        fields = {"schema": schema.text}
        if schema.kind is not SchemaKind.AVRO:  # old registries know only Avro, and no name for it
            fields["schemaType"] = str(schema.kind)
        body = orjson.dumps(fields)
        path = f"/subjects/{quote(subject, safe='')}"
        status, answer = self._ask(address, subject, path, body)
        if status == http.HTTPStatus.NOT_FOUND and only_checks:
            if (differences := self._differences(address, subject, body)) is None:
                return 0
            status, answer = http.HTTPStatus.CONFLICT, differences or "no reason is given"
        elif status == http.HTTPStatus.NOT_FOUND:
            status, answer = self._ask(address, subject, f"{path}/versions", body)
        if status == http.HTTPStatus.NOT_FOUND:
            raise _no_subjects(address, answer)
        if status in _UNUSABLE:
            differences = _message(answer)
            if status == http.HTTPStatus.CONFLICT:
                with suppress(RegistryUnavailableError, ConfigError):
                    differences = self._differences(address, subject, body) or differences
            what = "rejected" if status != http.HTTPStatus.CONFLICT else "not compatible with earlier ones"
            problem = f"subject {subject!r}: the schema is {what} (HTTP {status}): {differences}"
            raise RegistryRefusedError(address, problem)
        found = answer.get("id") if isinstance(answer, dict) else None
        if status != http.HTTPStatus.OK or not isinstance(found, int):
            raise _no_answer(address, subject, f"HTTP {status}: {_message(answer)}")
        return found

    def _ask(self, address: str, subject: str, path: str, body: bytes) -> tuple[int, Any]:
        status, data = self._request(subject, "POST", address, path, body)
        try:
            return status, orjson.loads(data)
        except (ValueError, RecursionError):
            return status, data[:_SHOWN].decode(errors="replace")

    def _differences(self, address: str, subject: str, body: bytes) -> str | None:
        """Returns what the registry finds different; empty if it does not say what, None if nothing."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions/latest?verbose=true"
        status, answer = self._ask(address, subject, path, body)
        if not isinstance(answer, dict) or answer.get("error_code") == status == http.HTTPStatus.NOT_FOUND:
            raise _no_subjects(address, answer)
        if answer.get("is_compatible") is not False:
            return None
        told = answer.get("messages") or answer.get("reason") or ""  # Apicurio's name for it
        return ("; ".join(map(str, told)) if isinstance(told, list) else str(told))[:_SHOWN]

    def _ask_at(self, address: str, schema_id: int) -> str:
        status, body = self._request(schema_id, "GET", address, f"/schemas/ids/{schema_id}", None)
        if status == http.HTTPStatus.NOT_FOUND:
            raise _unusable_schema(address, f"there is no schema {schema_id}")
        if status != http.HTTPStatus.OK:
            raise _no_answer(address, schema_id, f"HTTP {status}")
        return _schema_in(body, address, schema_id)

    def _request(
        self, asked: int | str, method: str, address: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        """Sends a request about a schema, by its id, or about a subject."""
        try:
            status, answer = self._send(self._settings, method, address, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(address, asked, f"{type(error).__name__}: {error}") from error
        if status in _REFUSALS:
            is_id = isinstance(asked, int)
            what = f"reading schema {asked}" if is_id else f"subject {asked!r}: registering its schema"
            raise _misconfigured(address, f"{what} was refused (HTTP {status})")
        return status, answer


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
        raise RegistryUnavailableError(
            address, f"schema {schema_id} cannot be requested: its answer has no schema: {body[:100]!r}"
        ) from error
    if kind not in (None, "AVRO"):
        raise _unusable_schema(address, f"schema {schema_id} is {kind}")
    if references:
        raise _unusable_schema(address, f"schema {schema_id} refers to other schemas")
    return str(schema)


def _no_answer(address: str, asked: int | str, reason: str) -> RegistryUnavailableError:
    """Returns the error for a schema that was asked for by its id, or for a subject."""
    if isinstance(asked, int):
        return RegistryUnavailableError(address, f"schema {asked} cannot be requested: {reason}")
    problem = f"subject {asked!r}: its schema cannot be registered: {reason}"
    return RegistryUnavailableError(address, problem)


def _first_answer(settings: RegistrySettings, ask: Callable[[str], T]) -> T:
    """Asks one address after the other until one answers."""
    *others, last = settings.addresses
    for address in others:
        try:
            return ask(address)
        except RegistryUnavailableError:
            continue
    return ask(last)


def avro_to_json(settings: RegistrySettings, send: Send = over_http) -> ToJson:
    """Returns a function that converts a source's keys and values, in Avro or JSON, to JSON. For one thread.

    Requests each schema once. Calls raise:

    - ``UndecodableRecordError``: the record cannot be read, or the registry does not have its schema.
    - ``RegistryUnavailableError``, ``ConfigError``: another attempt may help.
    """
    registry = SchemaRegistry(settings, send)

    def schema(schema_id: int) -> str:
        try:
            return registry.schema(schema_id)
        except InputError as error:
            raise ValueError(str(error)) from error

    return AvroToJson(schema)


def _message(answer: Any) -> str:
    text = answer.get("message") if isinstance(answer, dict) else answer
    return str(text)[:_SHOWN]
