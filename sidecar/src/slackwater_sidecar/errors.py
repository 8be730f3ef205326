"""Errors of the sidecar.

::

    SidecarError
    ├── HttpAddressError         the pages cannot be answered at the address of the settings
    ├── ScatteredTopicError      a topic whose records must be in one order has several partitions
    ├── SourceTruncatedError     records that have to be read are no longer, or not yet, in their topic
    ├── SourcesFailedError       some of several sources cannot be followed any more
    └── SourceUnavailableError   Kafka does not answer; recoverable: the sidecar waits and says so
        └── SchemasUnavailableError   likewise the schema registry
"""

from collections.abc import Mapping


class SidecarError(Exception):
    """Root of everything this package raises."""


class HttpAddressError(SidecarError):
    """Nobody can listen at an address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot answer HTTP at {self.address}: {self.reason}; "
            "set sidecar.http to host:port of this machine, port 0 for any free one"
        )


class SourceTruncatedError(SidecarError):
    """The offset from which reading has to go on does not exist."""

    def __init__(self, topic: str, partition: int, wanted: int, low: int, high: int) -> None:
        super().__init__(topic, partition, wanted, low, high)
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        """Where reading has to go on."""
        self.low = low
        """The first offset the partition has."""
        self.high = high
        """The offset after the last one."""

    def __str__(self) -> str:
        place = f"{self.topic}/{self.partition}"
        if self.wanted < self.low:
            gone = f"offsets {self.wanted} to {self.low - 1} of {place} are gone"
        else:
            gone = f"{place} ends at {self.high}, but was read up to {self.wanted}: it was made anew"
        return (
            f"{gone}. The frontier cannot go on without loss; take a new snapshot and start over: "
            "new checkpoints, a new cut log (delete its topic), longer retention.ms on the data topics"
        )


class SourcesFailedError(SidecarError):
    """Some of several sources could not be followed any more; the others were, until they were stopped."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        super().__init__(dict(failures))
        self.failures = dict(failures)
        """Source to what is wrong and what to do."""

    def __str__(self) -> str:
        return "\n".join(f"source {source}: {reason}" for source, reason in self.failures.items())


class ScatteredTopicError(SidecarError):
    """A topic whose records must be in one order has several partitions."""

    def __init__(self, topic: str, partitions: int) -> None:
        super().__init__(topic, partitions)
        self.topic = topic
        self.partitions = partitions

    def __str__(self) -> str:
        return (
            f"{self.topic} has {self.partitions} partitions, expected 1: BEGIN and END have different keys, "
            "so their order would be lost; delete the topic, have the connector make it with one partition "
            "(topic.creation.<group>.partitions=1 in its configuration), and take a new snapshot"
        )


class SourceUnavailableError(SidecarError):
    """Kafka did not do what it was asked."""

    def __init__(self, operation: str, bootstrap: str, reason: str) -> None:
        super().__init__(operation, bootstrap, reason)
        self.operation = operation
        self.bootstrap = bootstrap
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"Kafka at {self.bootstrap}: {self.operation} failed: {self.reason}; "
            "check that the broker runs, is reachable and permits these topics"
        )


class SchemasUnavailableError(SourceUnavailableError):
    """The schema registry does not help; what was read waits for it."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__("asking for schemas", address, reason)
        self.args = (address, reason)
        self.address = address

    def __str__(self) -> str:
        return f"the schema registry at {self.address} is needed to read on: {self.reason}"
