"""Where the servers are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater_certify.errors import MissingConnectionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Addresses; only those that a specification needs have to be given."""

    bootstrap: str | None = None
    """Brokers with the source's topics and with output topics."""
    dsn: str | None = None
    """The source database, for the final state; also where an output of kind ``postgres`` is."""
    output_dsn: str | None = None
    """Where an output of kind ``postgres`` is, if not in the source database."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Other librdkafka settings."""

    def brokers(self, purpose: str) -> str:
        """The brokers.

        Raises:
            MissingConnectionError: nobody gave them.
        """
        if self.bootstrap is None:
            raise MissingConnectionError("bootstrap", purpose)
        return self.bootstrap

    def output_database(self) -> str:
        """Where an output table is.

        Raises:
            MissingConnectionError: nobody gave it.
        """
        found = self.output_dsn or self.dsn
        if found is None:
            raise MissingConnectionError("dsn", "to read the output table")
        return found
