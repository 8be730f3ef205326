"""A schema registry in this process, as far as Connect's AvroConverter and our clients need one."""

import base64
import json
import re
import threading
from email.message import Message
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from slackwater_lab.fakes.http import HttpFake

_BY_ID = re.compile(r"/schemas/ids/(\d+)")
_SUBJECT = re.compile(r"/subjects/([^/]+)")
_VERSIONS = re.compile(r"/subjects/([^/]+)/versions")
_COMPATIBILITY = re.compile(r"/compatibility/subjects/([^/]+)/versions/latest")
_UNKNOWN_SUBJECT = 40401
_UNKNOWN_SCHEMA = 40403


class RegistryServer(HttpFake):
    """A registry, whose content is gone when it ends.

    Attributes:
        requests: Paths asked for, in order.
        failure: An HTTP status that every request gets; None: work.
        incompatible: Subjects that take no further version, and what they say is different.
        has_reasons: Whether it says so as Apicurio does.
    """

    def __init__(self, *, user: str | None = None, password: str = "") -> None:
        super().__init__()
        self.requests: list[str] = []
        self.failure: int | None = None
        self.incompatible: dict[str, str] = {}
        self.has_reasons = False
        self._subjects: dict[str, list[int]] = {}
        self._authorization = None if user is None else _basic(user, password)
        self._entries: dict[int, dict[str, Any]] = {}
        self._adding = threading.Lock()

    @property
    def schemas(self) -> dict[int, str]:
        return {number: entry["schema"] for number, entry in sorted(self._entries.items())}

    @property
    def subjects(self) -> dict[str, list[int]]:
        return {name: list(ids) for name, ids in self._subjects.items()}

    def register(self, schema: str, *, schema_id: int | None = None, **fields: Any) -> int:
        """Adds a schema and returns its id: the same for the same schema."""
        entry = {"schema": schema, **fields}
        with self._adding:
            known = next((number for number, other in self._entries.items() if other == entry), None)
            if known is not None and schema_id in (None, known):
                return known
            number = schema_id or max(self._entries, default=0) + 1
            self._entries[number] = entry
            return number

    def answer(self, method: str, path: str, headers: Message, body: bytes) -> tuple[int, object]:
        self.requests.append(path)
        if self.failure is not None:
            return self.failure, {"error_code": self.failure, "message": "told to fail"}
        if self._authorization is not None and headers.get("Authorization") != self._authorization:
            return HTTPStatus.UNAUTHORIZED, {"error_code": 401, "message": "Unauthorized"}
        bare, _, _ = path.partition("?")
        if method == "POST":
            return self._answer_post(bare, json.loads(body))
        found = _BY_ID.fullmatch(bare)
        entry = self._entries.get(int(found[1])) if found and method == "GET" else None
        if entry is None:
            return HTTPStatus.NOT_FOUND, {"error_code": _UNKNOWN_SCHEMA, "message": "Schema not found"}
        return HTTPStatus.OK, entry

    def _answer_post(self, path: str, fields: dict[str, Any]) -> tuple[int, object]:
        kind = fields.get("schemaType")
        entry = {"schema": fields["schema"], **({} if kind in (None, "AVRO") else {"schemaType": kind})}
        if found := _COMPATIBILITY.fullmatch(path):
            difference = self.incompatible.get(unquote(found[1]))
            told = {"reason": difference} if self.has_reasons else {"messages": [difference]}
            return HTTPStatus.OK, {"is_compatible": difference is None, **told}
        if found := _VERSIONS.fullmatch(path):
            return self._add_version(unquote(found[1]), entry)
        if found := _SUBJECT.fullmatch(path):
            for number in self._subjects.get(unquote(found[1]), ()):
                if self._entries[number] == entry:
                    return HTTPStatus.OK, {"id": number, "subject": unquote(found[1]), **entry}
        return HTTPStatus.NOT_FOUND, {"error_code": _UNKNOWN_SUBJECT, "message": "Subject not found."}

    def _add_version(self, subject: str, entry: dict[str, Any]) -> tuple[int, object]:
        if subject in self.incompatible:
            return HTTPStatus.CONFLICT, {
                "error_code": 409,
                "message": "Schema being registered is incompatible",
            }
        number = self.register(**entry)
        ids = self._subjects.setdefault(subject, [])
        if number not in ids:
            ids.append(number)
        return HTTPStatus.OK, {"id": number}


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
