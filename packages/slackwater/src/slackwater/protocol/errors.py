"""The root of all errors, and those of the protocol package.

::

    SlackwaterError
    ├── ExplainedError                 a problem and a hint: the base of most packages' roots
    └── ProtocolError
        ├── MalformedRecordError       bytes that are not a record of this protocol
        ├── ServersConfigError         an address of a server that cannot be used
        ├── TableNameError             a text that names no table, or a name that cannot be used
        └── UnsupportedVersionError    written by a newer Slackwater than this one
"""


class SlackwaterError(Exception):
    """Root of the errors that Slackwater's packages raise."""


class ExplainedError(SlackwaterError):
    """An error with a problem and a hint that says what to do about it."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        """What was expected, what was found, and where."""
        self.hint = hint
        """What to do; empty if the problem already says it."""

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


class ProtocolError(SlackwaterError):
    """Root of everything this package raises."""


class MalformedRecordError(ProtocolError):
    """Bytes that cannot be read as the expected record."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        """The kind that was expected: ``cut``, ``commit record``, ..."""
        self.reason = reason
        """The fault in the bytes."""

    def __str__(self) -> str:
        return f"not a readable {self.kind}: {self.reason}; check what else writes to this topic or key"


class UnsupportedVersionError(ProtocolError):
    """A record of a newer protocol version, which must not be interpreted."""

    def __init__(self, kind: str, found: int, supported: int) -> None:
        super().__init__(kind, found, supported)
        self.kind = kind
        self.found = found
        self.supported = supported

    def __str__(self) -> str:
        return (
            f"{self.kind} has protocol version {self.found}, but this version reads up to {self.supported}; "
            "upgrade the readers before the sidecar"
        )


class ServersConfigError(ProtocolError):
    """The address of a server cannot be used as it is written."""

    def __init__(self, what: str, problem: str, hint: str) -> None:
        super().__init__(what, problem, hint)
        self.what = what
        """The setting, and the server that it belongs to."""
        self.problem = problem
        """The fault in the address; never contains a password."""
        self.hint = hint
        """What to write instead."""

    def __str__(self) -> str:
        return f"{self.what} {self.problem}; {self.hint}"


class TableNameError(ProtocolError, ExplainedError):
    """A text does not name a table, or the name cannot be used."""
