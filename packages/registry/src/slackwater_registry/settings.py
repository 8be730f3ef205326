"""Where the registry is."""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from slackwater_registry.errors import RegistrySettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """How to reach a schema registry."""

    url: str
    """``http(s)://host:port[/path]`` without credentials; several, separated by commas, are tried in turn.

    Apicurio: with the path of its Confluent interface, ``/apis/ccompat/v7``.
    """
    user: str | None = None
    """For basic authentication."""
    password: str | None = field(default=None, repr=False)
    """For basic authentication."""
    ca_file: Path | None = None
    """Certificates to trust; None: the system's."""
    timeout: timedelta = timedelta(seconds=5)
    """For each request and address."""

    def __post_init__(self) -> None:
        """Refuse what can be no address."""
        for address in self.addresses:
            parts = urlsplit(address)
            if parts.username or parts.password:
                raise RegistrySettingsError("holds credentials, which would be logged; give them apart")
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise RegistrySettingsError(f"is {address!r}")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Each by itself, without a slash at its end."""
        return tuple(part.strip().rstrip("/") for part in self.url.split(","))
