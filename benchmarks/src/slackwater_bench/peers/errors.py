"""Errors of this package.

::

    PeerError
    ├── PeerNotInstalledError   its environment cannot be made
    ├── PeerFailedError         it ended by itself, or wrote nothing in time
    └── UnknownPeerError        no peer of that name
"""

from collections.abc import Iterable

from slackwater_bench.errors import BenchError


class PeerError(BenchError):
    """A peer that was not measured."""


class PeerNotInstalledError(PeerError):
    """The environment of a peer cannot be made."""

    def __init__(self, peer: str, reason: str) -> None:
        self.peer = peer
        self.reason = reason
        super().__init__(peer, reason)

    def __str__(self) -> str:
        return f"{self.peer} cannot be installed: {self.reason}"


class PeerFailedError(PeerError):
    """A peer that does not do its work."""

    def __init__(self, peer: str, reason: str) -> None:
        self.peer = peer
        self.reason = reason
        super().__init__(peer, reason)

    def __str__(self) -> str:
        return f"{self.peer} {self.reason}"


class UnknownPeerError(PeerError):
    """A name that stands for no peer."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(name, self.known)

    def __str__(self) -> str:
        return f"no peer {self.name!r}; there are: {', '.join(self.known)}"
