"""Kafka Connect's REST interface, as far as the configuration and the state of a connector need it."""

from collections.abc import Mapping
from datetime import timedelta
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import msgspec

from slackwater.protocol import InputError
from slackwater.settings.errors import CommandConfigError, unreachable

_TIMEOUT = timedelta(seconds=30)
_NOT_FOUND = 404


class ConnectRest:
    """One Kafka Connect cluster. Every method raises an UnavailableError if it does not answer.

    The timeout is for one question.

    Raises:
        CommandConfigError: the address is not an HTTP address.
    """

    def __init__(self, url: str, timeout: timedelta = _TIMEOUT) -> None:
        if not url.startswith(("http://", "https://")):
            raise CommandConfigError("setting connect.url: expected http://host:port or https://host:port")
        self._url = url.rstrip("/")
        self._timeout = timeout.total_seconds()

    def properties(self, name: str) -> dict[str, str] | None:
        """Returns a connector's configuration; None: there is no connector of this name."""
        found = self._ask("GET", f"/connectors/{quote(name)}/config", may_be_absent=True)
        return None if found is None else {str(key): str(value) for key, value in found.items()}

    def properties_of(self, source: str) -> dict[str, str] | None:
        """Returns the configuration of the connector with a ``topic.prefix``; None: there is none."""
        name = self.name_of(source)
        return None if name is None else self.properties(name)

    def name_of(self, source: str) -> str | None:
        """Returns the name of the connector with a ``topic.prefix``; None: there is none."""
        found = self._ask("GET", "/connectors?expand=info") or {}
        names = (name for name, each in found.items() if each["info"]["config"].get("topic.prefix") == source)
        return next(names, None)

    def status(self, name: str) -> dict[str, Any] | None:
        """Returns the state of a connector and of its tasks, as Kafka Connect has it; None: there is none."""
        return self._ask("GET", f"/connectors/{quote(name)}/status", may_be_absent=True)

    def errors(self, properties: Mapping[str, str]) -> list[tuple[str, str]]:
        """Returns the errors that the connector finds in its configuration, by property.

        Raises:
            InputError: it has no such connector.
        """
        plugin = properties["connector.class"].rpartition(".")[2]
        path = f"/connector-plugins/{quote(plugin)}/config/validate"
        answer = self._ask("PUT", path, {"name": "validation", **properties}) or {}
        values = [each["value"] for each in answer.get("configs", ())]
        return [(value["name"], error) for value in values for error in value["errors"]]

    def configure(self, name: str, properties: Mapping[str, str]) -> None:
        """Creates a connector, or replaces its configuration.

        Raises:
            InputError: it refuses the configuration.
        """
        self._ask("PUT", f"/connectors/{quote(name)}/config", properties)

    def _ask(
        self, method: str, path: str, body: Mapping[str, str] | None = None, *, may_be_absent: bool = False
    ) -> dict[str, Any] | None:
        data = None if body is None else msgspec.json.encode(body)
        request = Request(  # noqa: S310 - the scheme was checked
            self._url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urlopen(request, timeout=self._timeout) as answer:  # noqa: S310 - an address of the settings
                found: dict[str, Any] = msgspec.json.decode(answer.read())
                return found
        except HTTPError as error:
            if error.code == _NOT_FOUND and may_be_absent:
                return None
            said = error.read().decode(errors="replace")
            raise InputError(f"Kafka Connect rejects {method} {path}: {said}") from error
        except (URLError, HTTPException, OSError, ValueError) as error:
            raise unreachable("Kafka Connect", f"{method} {path}", str(error)) from error
