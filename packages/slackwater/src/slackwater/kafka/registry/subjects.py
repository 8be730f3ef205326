"""Registers the schemas of written records, under the names of their topics."""

import http.client
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import quote

import orjson

from slackwater.cdc.avro import HEADER_BYTES, MAGIC
from slackwater.kafka.registry.client import (
    RegistryRefusedError,
    RegistryUnavailableError,
    registry_misconfigured,
    send_over_http,
)
from slackwater.protocol import ConfigError, RegistrySettings

Send = Callable[[RegistrySettings, str, str, str, bytes | None], tuple[int, bytes]]
"""Sends a request of a method to an address and a path; returns HTTP status and body."""

_REFUSALS: Final = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)
_UNUSABLE: Final = (
    http.HTTPStatus.BAD_REQUEST,
    http.HTTPStatus.CONFLICT,
    http.HTTPStatus.UNPROCESSABLE_ENTITY,
)
_SHOWN: Final = 2000


class SchemaKind(StrEnum):
    """The language of a schema, as registries name it."""

    AVRO = "AVRO"
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of values or keys."""

    kind: SchemaKind
    text: str
    """JSON text."""


def subject(topic: str, *, of_keys: bool) -> str:
    """Returns the name of a topic's schemas, as Confluent's TopicNameStrategy has it."""
    return f"{topic}-{'key' if of_keys else 'value'}"


def wire_header(schema_id: int) -> bytes:
    """Returns what precedes a value in Confluent's wire format: a zero byte and the schema's id."""
    return bytes([MAGIC]) + schema_id.to_bytes(HEADER_BYTES - 1, "big")


class SubjectRegistry:
    """Registers schemas. For one thread. It caches nothing: callers keep the ids that they need again.

    Args:
        settings: Its address and credentials.
        send: Sends the requests.
    """

    def __init__(self, settings: RegistrySettings, send: Send = send_over_http) -> None:
        self._settings = settings
        self._send = send

    def register(self, subject: str, schema: Schema) -> int:
        """Returns the id of a schema under a subject; a new schema becomes the subject's newest version.

        It first looks for the schema, so the right to read is enough if others register the schemas.
        Idempotent; blocks for at most the time-out per request and address.

        Raises:
            RegistryUnavailableError: No address answers. ConfigError: It refuses the credentials, or
                there is no registry at the address.
            RegistryRefusedError: The schema is not compatible with earlier versions, or not accepted at all.
        """
        *others, last = self._settings.addresses
        for address in others:
            try:
                return self._register_at(address, subject, schema)
            except RegistryUnavailableError:
                continue
        return self._register_at(last, subject, schema)

    def _register_at(self, address: str, subject: str, schema: Schema) -> int:
        fields = {"schema": schema.text}
        if schema.kind is not SchemaKind.AVRO:  # old registries know only Avro, and no name for it
            fields["schemaType"] = str(schema.kind)
        body = orjson.dumps(fields)
        path = f"/subjects/{quote(subject, safe='')}"
        status, answer = self._ask(address, subject, path, body)
        if status == http.HTTPStatus.NOT_FOUND:
            status, answer = self._ask(address, subject, f"{path}/versions", body)
        if status == http.HTTPStatus.NOT_FOUND:
            problem = f"it has no subjects (HTTP {status}): {_message(answer)}"
            raise registry_misconfigured(address, problem)
        if status in _UNUSABLE:
            differences = _message(answer)
            if status == http.HTTPStatus.CONFLICT:
                differences = self._differences(address, subject, body) or differences
            what = "rejected" if status != http.HTTPStatus.CONFLICT else "not compatible with earlier ones"
            problem = f"subject {subject!r}: the schema is {what} (HTTP {status}): {differences}"
            raise RegistryRefusedError(address, problem)
        found = answer.get("id") if isinstance(answer, dict) else None
        if status != http.HTTPStatus.OK or not isinstance(found, int):
            raise _no_answer(address, subject, f"HTTP {status}: {_message(answer)}")
        return found

    def _ask(self, address: str, subject: str, path: str, body: bytes) -> tuple[int, Any]:
        try:
            status, data = self._send(self._settings, "POST", address, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(address, subject, f"{type(error).__name__}: {error}") from error
        if status in _REFUSALS:
            problem = f"subject {subject!r}: registering its schema was refused (HTTP {status})"
            raise registry_misconfigured(address, problem)
        try:
            return status, orjson.loads(data)
        except (ValueError, RecursionError):
            return status, data[:_SHOWN].decode(errors="replace")

    def _differences(self, address: str, subject: str, body: bytes) -> str:
        """Returns what the registry finds different; empty if it does not say."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions/latest?verbose=true"
        try:
            _, answer = self._ask(address, subject, path, body)
        except (RegistryUnavailableError, ConfigError):
            return ""
        messages = answer.get("messages") if isinstance(answer, dict) else None
        return "; ".join(map(str, messages))[:_SHOWN] if isinstance(messages, list) else ""


def _message(answer: Any) -> str:
    text = answer.get("message") if isinstance(answer, dict) else answer
    return str(text)[:_SHOWN]


def _no_answer(address: str, subject: str, reason: str) -> RegistryUnavailableError:
    problem = f"subject {subject!r}: its schema cannot be registered: {reason}"
    return RegistryUnavailableError(address, problem)
