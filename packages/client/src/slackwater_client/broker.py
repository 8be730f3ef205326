"""What a consumer needs of Kafka; :mod:`slackwater_client.kafka` does it, and ``memory`` stands in for it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from slackwater_cdc.records.record import Record
from slackwater_client.transaction import Place


class Portion(NamedTuple):
    """What was read of a partition."""

    place: Place
    records: list[Record]
    position: int
    """The offset that was reached: below it nothing more comes."""


class Stored(NamedTuple):
    """A committed offset of a consumer group."""

    offset: int
    metadata: str = ""


class Reader(Protocol):
    """Reads partitions from given offsets, committed Kafka transactions only. Not thread-safe.

    Methods raise :class:`slackwater_client.errors.ClientError` and nothing else: what passes by itself is
    waited for, by later calls, too.
    """

    def begin(self, starts: Mapping[Place, int]) -> None:
        """Reads these partitions, too. Does not block."""
        ...

    def reset(self) -> None:
        """Reads nothing any more. Does not block."""
        ...

    def pause(self, places: frozenset[Place]) -> None:
        """Pauses these partitions and no others; what was read of them ahead may be read again."""
        ...

    def read(self, seconds: float) -> list[Portion]:
        """Returns what there is, as soon as there is something; nothing after so many seconds.

        Raises:
            RecordsMissingError: Records at the position of a partition are no longer in Kafka.
            ClientStateError: A topic or partition does not exist.
            ClientUnavailableError: Kafka refuses.
        """
        ...

    def bounds(self, place: Place) -> tuple[int, int]:
        """Returns a partition's first offset and the one behind the last. Blocks for some seconds at most.

        Raises:
            ClientUnavailableError: Kafka does not answer, or does not have the partition.
        """
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class Member(Protocol):
    """One member of a consumer group that shares the partitions of a topic. Reads nothing of it.

    Calls of :meth:`poll` have to come more often than the group's ``max.poll.interval.ms`` says, or the
    member loses what it has. Not thread-safe.
    """

    @property
    def lanes(self) -> frozenset[int]:
        """The partitions that it owns, as of the newest :meth:`poll`."""
        ...

    def take_gone(self) -> frozenset[int]:
        """Returns the partitions that were given away or lost since it was asked last.

        One that has come back meanwhile is among them: somebody else may have had it.
        """
        ...

    def poll(self, seconds: float) -> None:
        """Takes part in the group: gives partitions away, after ``on_revoke``, and takes others.

        Blocks for so long at most, unless partitions change hands.

        Raises:
            ClientUnavailableError: Kafka refuses.
        """
        ...

    def stored(self, places: Iterable[Place]) -> dict[Place, Stored]:
        """Returns the group's committed offsets, of partitions that have any.

        Raises:
            ClientUnavailableError: Kafka does not answer.
        """
        ...

    def store(self, offsets: Mapping[Place, Stored]) -> None:
        """Commits offsets for the group; returns when they are acknowledged.

        If the member is no longer in the group, nothing is stored, and the next :meth:`poll` says so.

        Raises:
            ClientUnavailableError: Kafka does not answer.
        """
        ...

    def group_metadata(self) -> Any:
        """Returns what a transactional producer needs to commit offsets in this member's name."""
        ...

    def close(self) -> None:
        """Leaves the group, after ``on_revoke``."""
        ...


class Broker(Protocol):
    """Makes readers and members."""

    def reader(self) -> Reader:
        """Returns a reader that reads nothing yet."""
        ...

    def member(
        self, group: str, topic: str, partitions: int | None, on_revoke: Callable[[frozenset[int]], None]
    ) -> Member:
        """Joins a group.

        Args:
            group: Its name.
            topic: Whose partitions are shared.
            partitions: Makes the topic with so many if it does not exist; None: it has to.
            on_revoke: Called within :meth:`Member.poll` with partitions that are given away in order; what it
                stores still counts. Not called for what was lost.

        Raises:
            ClientConfigError: The topic has another number of partitions.
            ClientUnavailableError: Kafka does not answer.
        """
        ...
