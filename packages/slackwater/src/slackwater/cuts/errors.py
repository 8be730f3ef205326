"""Errors of the cut log and of Redis that a caller reacts to; all others are of the general kinds.

::

    UnavailableError
    └── MarkerStoreUnavailableError     Redis cannot be reached or does not work: continue with the cut log
    StateError
    ├── CutLogDamagedError              a record of the log cannot be read: an operator decides
    ├── CutLogReplacedError             the log is not the one that was read or written before: start over
    └── RecordsGoneError                records or cuts that are needed were deleted: start over

``MarkerStoreUnavailableError`` is recoverable: everything in Redis can be rebuilt from the cut log. All
errors can be pickled: their data are their positional arguments.
"""

from enum import StrEnum
from typing import Final

from slackwater.protocol import StateError, UnavailableError


class StoreFault(StrEnum):
    """What is wrong with a marker store that answers."""

    REFUSED = "refused"
    """Its user lacks a right: grant it."""
    CONTENT = "content"
    """A key contains another type or a foreign value: a sidecar removes it and refills the store."""


class MarkerStoreUnavailableError(UnavailableError):
    """An operation of the marker store failed; it is unknown whether a part of it was done.

    Args:
        operation: The method that failed: ``put_cut``, ``newest``, ...
        address: The address of Redis, without credentials.
        reason: The message of Redis or its client.
        fault: What is wrong, if more than that Redis does not work.
    """

    def __init__(self, operation: str, address: str, reason: str, fault: StoreFault | None = None) -> None:
        problem, hint = _PROBLEMS[fault]
        super().__init__(f"Redis {address}: {operation} {problem}: {reason}", f"{hint}. {_NOT_LOST}")
        self.args = operation, address, reason, fault
        self.operation = operation
        self.address = address
        self.reason = reason
        self.fault = fault


_NOT_LOST: Final = "Nothing is lost: readers use the cut log in the meantime"
_PROBLEMS: Final[dict[StoreFault | None, tuple[str, str]]] = {
    None: (
        "failed",
        "check that Redis is running and accepts writes, and that address and password are correct; the "
        "sidecar refills Redis when it is back",
    ),
    StoreFault.CONTENT: (
        "found data that Slackwater did not write",
        "make sure that nothing else writes to keys slackwater:*; a running sidecar replaces the data within "
        "seconds",
    ),
    StoreFault.REFUSED: (
        "failed",
        "give the user of Redis the commands and keys that docs/sidecar.md#users lists",
    ),
}


class RecordsGoneError(StateError):
    """Records of a table's topic or of the cut log that are needed are no longer in Kafka."""


class CutLogReplacedError(StateError):
    """The log was deleted and recreated, or has lost its end: what was read from it before is not valid."""

    def __init__(self, topic: str, evidence: str) -> None:
        super().__init__(
            f"cut log: Kafka topic {topic} is not the one that was followed: {evidence}. It was "
            "deleted and recreated, or is in another cluster",
            "a sidecar that starts on an empty one begins with everything in the data topics, and "
            "pipelines start over, with new checkpoints and outputs; if cuts were appended to it already, "
            "delete it first (docs/runbooks.md#cut-log)",
        )
        self.args = topic, evidence
        self.topic = topic
        self.evidence = evidence


class CutLogDamagedError(StateError):
    """A record that looks like one of Slackwater's, but cannot be read: its content is unknown."""

    def __init__(self, topic: str, log_offset: int, reason: str) -> None:
        super().__init__(
            f"cut log: the record at offset {log_offset} of Kafka topic {topic} is damaged: {reason}",
            f"`slackwater source pass-record --offset {log_offset}` skips it for all sidecars "
            "and pipelines; "
            "docs/runbooks.md#cut-log describes what is lost by this",
        )
        self.args = topic, log_offset, reason
        self.topic = topic
        self.log_offset = log_offset
        self.reason = reason


def cuts_gone(topic: str, wanted_offset: int, earliest_offset: int) -> RecordsGoneError:
    """Returns the error for a cut log that no longer contains the requested range."""
    return RecordsGoneError(
        f"cut log: {topic} no longer holds offset {wanted_offset}, it starts at {earliest_offset}",
        "the topic must keep its records at least as long as the data topics (retention.ms=-1, "
        "cleanup.policy=delete). Pipelines that need the missing cuts have to start over",
    )
