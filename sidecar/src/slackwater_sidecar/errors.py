"""Errors of the sidecar that a caller reacts to in particular; all others are of the general kinds.

::

    UnavailableError
    └── SidecarUnavailableError      Kafka does not answer; the sidecar waits and says so
        └── SchemasUnavailableError  the schema registry does not answer: try again

All can be pickled: workers send theirs to the process they read for.
"""

from slackwater.protocol import UnavailableError


class SidecarUnavailableError(UnavailableError):
    """Kafka did not do what it was asked. Nothing is lost: asking again may succeed.

    Args:
        operation: What it was asked.
        bootstrap: Where it was expected.
        reason: What it said.
    """

    def __init__(self, operation: str, bootstrap: str, reason: str) -> None:
        super().__init__(
            f"Kafka at {bootstrap}: {operation} failed: {reason}",
            "check that the broker is running and reachable, and that these topics may be accessed",
        )
        self.args = (operation, bootstrap, reason)
        self.reason = reason


class SchemasUnavailableError(SidecarUnavailableError):
    """The schema registry does not help; what was read waits for it.

    Args:
        address: Where it was expected.
        reason: What it said.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__("asking for schemas", address, reason)
        self.args = (address, reason)
        self.problem = f"the schema registry at {address} is needed to continue reading: {reason}"
        self.hint = ""
        self.address = address
