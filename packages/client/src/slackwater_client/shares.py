"""How the members of a consumer group share the work. Pure.

A *lane* is what one member owns at a time: everything, a number of units, or a partition. Each lane has a
position of its own in the group's committed offsets.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slackwater_cdc.records.record import Record
from slackwater_client.transaction import Place

KeyOf = Callable[[Record], bytes | str | None]
"""Returns the key of the unit that a record belongs to; None: nobody gets the record."""
Ranges = Mapping[Place, tuple[int, int]]
"""By partition the first offset, and the one behind the last."""


class Share(Protocol):
    """Divides a source's transactions into lanes. Called by a consumer; stateless, never blocks."""

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """Returns the topic whose partitions stand for the lanes, and their number if it has to be made.

        Args:
            group: The consumer group.
            log: The topic with the commits: one partition.
        """
        ...

    @property
    def is_by_partition(self) -> bool:
        """True if a lane is the partitions of one number; then positions are kept by partition."""
        ...

    def lane_of(self, record: Record) -> int | None:
        """Returns the lane of a record; None: nobody's. Not asked where lanes are partitions."""
        ...


@dataclass(frozen=True, slots=True)
class Everything:
    """One member gets every transaction whole, in commit order; the others stand by.

    It keeps all there is: transactions, their order, the order of records. It does not scale.
    """

    is_by_partition = False

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """See the protocol: the log of commits itself, so that Kafka's tools show the lag in commits."""
        return log, None

    def lane_of(self, record: Record) -> int | None:
        """See the protocol."""
        return 0


@dataclass(frozen=True, slots=True)
class ByUnit:
    """Each member gets of every transaction what concerns its units, in commit order.

    A unit is what one key names, as an order with its lines, or a customer. Kept: all that a transaction did
    to a unit comes at once, and transactions of a unit in commit order. Not kept: a transaction that spans
    units comes to each of their owners, who get their parts at different times; each part says so.
    """

    key_of: KeyOf
    """Names a record's unit. It has to say the same in all members."""
    lanes: int = 64
    """Units are put into so many lanes, which members share; the same number for the life of a group."""
    is_by_partition = False

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """See the protocol: an empty topic ``<group>.units``."""
        return f"{group}.units", self.lanes

    def lane_of(self, record: Record) -> int | None:
        """See the protocol."""
        key = self.key_of(record)
        if key is None:
            return None
        return zlib.crc32(key.encode() if isinstance(key, str) else key) % self.lanes


@dataclass(frozen=True, slots=True, init=False)
class ByPartition:
    """Each partition of the topics is a lane of its own; of several topics, those of one number together.

    Kept: what a transaction did in the lane comes at once, a lane's transactions in commit order. With one
    topic for several tables (or documents) that all have one business key, or several topics partitioned
    alike by it, that is everything a transaction did to the key. Not kept: what a transaction did in other
    lanes comes at other times, nothing says that there is more of it, and lanes have no common order.
    """

    topics: tuple[str, ...]
    is_by_partition = True

    def __init__(self, *topics: str) -> None:
        object.__setattr__(self, "topics", topics)

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """See the protocol: the first topic."""
        return self.topics[0], None

    def lane_of(self, record: Record) -> int | None:
        """See the protocol."""
        return record.partition()


def divide(share: Share, ranges: Ranges, lanes: Sequence[int]) -> list[tuple[tuple[int, ...], Ranges]]:
    """Divides a commit into what is delivered at once: for which lanes, and from where.

    Args:
        share: How.
        ranges: Where all of it is.
        lanes: Those that have not had it.
    """
    if not share.is_by_partition:
        return [(tuple(lanes), ranges)] if lanes else []
    by_lane = {lane: {place: held for place, held in ranges.items() if place[1] == lane} for lane in lanes}
    return [((lane,), found) for lane, found in by_lane.items() if found]


def select(share: Share, lanes: Sequence[int], records: list[Record]) -> tuple[list[Record], int]:
    """Returns the records of lanes, and how many belong to other ones."""
    if share.is_by_partition or isinstance(share, Everything):
        return records, 0
    mine: list[Record] = []
    elsewhere = 0
    for record in records:
        lane = share.lane_of(record)
        if lane in lanes:
            mine.append(record)
        elif lane is not None:
            elsewhere += 1
    return mine, elsewhere
