"""Errors of this package.

::

    MarkersError
    ├── MarkerStoreUnavailableError   Redis cannot be reached or refuses to work
    │   └── MarkerStoreContentError   a key holds what no Slackwater wrote
    └── CutLogError
        ├── CutLogUnavailableError    Kafka cannot be reached or does not answer in time
        ├── CutLogTruncatedError      cuts that are needed are no longer in the log
        ├── CutLogDamagedError        a record of the log cannot be read
        └── CutLogReplacedError       the log is not the one that was read or written before

``MarkerStoreUnavailableError`` is recoverable: everything in Redis can be rebuilt from the cut log.
"""


class MarkersError(Exception):
    """Root of everything this package raises."""


class MarkerStoreUnavailableError(MarkersError):
    """The marker store did not do what it was asked; nothing is known about whether it did part of it."""

    def __init__(self, operation: str, address: str, reason: str) -> None:
        super().__init__(operation, address, reason)
        self.operation = operation
        """What was being done: ``publish``, ``newest``, ..."""
        self.address = address
        """Where Redis was expected, without credentials."""
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"marker store: {self.operation} failed at Redis {self.address}: {self.reason}; "
            "check that Redis runs, accepts writes and that address and password are right. Nothing is lost: "
            "readers use the cut log meanwhile, and the sidecar fills Redis again when it is back"
        )


class MarkerStoreContentError(MarkerStoreUnavailableError):
    """A key holds another type, or a value that is none of ours: a sidecar removes it and fills the store."""

    def __str__(self) -> str:
        return (
            f"marker store: {self.operation} at Redis {self.address} found what no Slackwater wrote: "
            f"{self.reason}. Nothing is lost: readers use the cut log meanwhile, and a running sidecar "
            "replaces it within seconds; see to it that nobody else writes to keys slackwater:*"
        )


class CutLogError(MarkersError):
    """Root of the cut log's errors."""


class CutLogUnavailableError(CutLogError):
    """Kafka did not answer, or not in time."""

    def __init__(self, operation: str, topic: str, reason: str) -> None:
        super().__init__(operation, topic, reason)
        self.operation = operation
        self.topic = topic
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cut log: {self.operation} of Kafka topic {self.topic} failed: {self.reason}; "
            "check that the broker runs, is reachable and permits this topic"
        )


class CutLogTruncatedError(CutLogError):
    """A range was asked for that the log no longer holds."""

    def __init__(self, topic: str, wanted_offset: int, earliest_offset: int) -> None:
        super().__init__(topic, wanted_offset, earliest_offset)
        self.topic = topic
        self.wanted_offset = wanted_offset
        self.earliest_offset = earliest_offset

    def __str__(self) -> str:
        return (
            f"cut log: {self.topic} no longer holds offset {self.wanted_offset}, it starts at "
            f"{self.earliest_offset}; the topic must keep its records at least as long as the data topics "
            "(retention.ms=-1, cleanup.policy=delete). Whoever needs the missing cuts has to start again "
            "from the beginning"
        )


class CutLogReplacedError(CutLogError):
    """The log was deleted and made anew, or has lost its end: what was read of it before does not hold."""

    def __init__(self, topic: str, evidence: str) -> None:
        super().__init__(topic, evidence)
        self.topic = topic
        self.evidence = evidence
        """What shows it."""

    def __str__(self) -> str:
        return (
            f"cut log: Kafka topic {self.topic} is not the one that was followed: {self.evidence}. It was "
            "deleted and made anew, or is in another cluster. A sidecar that starts on an empty one begins "
            "with all that the data topics hold, and pipelines start over, with new checkpoints and outputs; "
            "if cuts were appended to it already, delete it first (docs/runbooks/cut-log.md)"
        )


class CutLogDamagedError(CutLogError):
    """A record that looks like one of ours, but cannot be read: nobody can know what it said."""

    def __init__(self, topic: str, log_offset: int, reason: str) -> None:
        super().__init__(topic, log_offset, reason)
        self.topic = topic
        self.log_offset = log_offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cut log: the record at offset {self.log_offset} of Kafka topic {self.topic} is damaged: "
            f"{self.reason}. `slackwater source pass-record --offset {self.log_offset}` lets everybody read "
            "on past it; docs/runbooks/cut-log.md says what is then lost"
        )
