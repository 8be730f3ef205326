"""The HTTP interface of OpenSearch and Elasticsearch, as far as an output needs it."""

import http.client
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import orjson

from slackwater.kafka.registry import over_http
from slackwater.protocol import ConfigError, SearchSettings

_NOT_FOUND: Final = 404
_PASSING: Final = (_NOT_FOUND, 409, 429)
_SHOWN: Final = 1000
_NEEDED: Final = {"opensearch": (2, 0), "elasticsearch": (7, 12)}
"""The first versions in which a request that moves aliases fails if one of them is missing."""

SendRequest = Callable[[SearchSettings, str, str, str, bytes | None], tuple[int, bytes]]
"""Sends a request as :func:`slackwater.kafka.registry.over_http` does."""


class SearchError(Exception):
    """The cluster refuses, does not answer, or the outcome is unknown; without an answer, the status is 0."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_missing(self) -> bool:
        """Whether there is no such index, alias or document."""
        return self.status == _NOT_FOUND

    @property
    def is_transient(self) -> bool:
        """Whether the same may succeed later without any intervention, as when a disk has space again."""
        return not 400 <= self.status < 500 or self.status in _PASSING or "flood-stage" in str(self)


class SearchServer:
    """Sends requests to the first address that answers. Used by one thread at a time."""

    def __init__(self, settings: SearchSettings, send: SendRequest | None = None) -> None:
        self._settings = settings
        self._send = send or partial(over_http, kind="application/json")
        self.place = f"the search cluster at {', '.join(settings.addresses)}"
        """The name of the cluster, for messages."""

    def check_version(self) -> None:
        """Refuses a cluster that cannot move aliases as a commit needs it.

        Raises:
            ConfigError: It is too old, or something else.
            SearchError: It does not answer, or does not allow the question.
        """
        found = self.ask("GET", "/")
        version = found.get("version", {}) if isinstance(found, dict) else {}
        kind, number = version.get("distribution", "elasticsearch"), str(version.get("number", "none"))
        digits = re.match(r"(\d+)\.(\d+)", number)
        if digits is None or tuple(map(int, digits.groups())) < _NEEDED.get(kind, (sys.maxsize,)):
            raise ConfigError(
                f"{self.place} has version {number} of {kind}: OpenSearch 2.0 or later, or Elasticsearch "
                "7.12 or later is needed",
                "upgrade it; an OpenSearch that reports the version of another product does so because of "
                "compatibility.override_main_response_version",
            )

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the answer to a request with a JSON value, or bytes, as its body.

        Raises:
            SearchError: There is no answer, or it is an error.
        """
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        failure = SearchError("no address is configured")
        for address in self._settings.addresses:
            try:
                status, answer = self._send(self._settings, method, address, path, data)
                found = orjson.loads(answer)
            except (OSError, http.client.HTTPException, ValueError) as error:
                failure = SearchError(f"{address}: {type(error).__name__}: {error}"[:_SHOWN])
                continue
            if status >= http.HTTPStatus.BAD_REQUEST:
                raise error_of(found, status)
            return found
        raise failure


def error_of(answer: Any, status: int) -> SearchError:
    """Returns the error in an answer, or in that of one item of a bulk request, with all its causes."""
    error, reasons = answer.get("error", answer) if isinstance(answer, dict) else answer, []
    while isinstance(error, dict):
        reasons.append(f"{error.get('type')}: {error.get('reason')}")
        error = error.get("caused_by")
    return SearchError(f"{'; '.join(reasons or [str(error)])} (HTTP {status})"[:_SHOWN], status)
