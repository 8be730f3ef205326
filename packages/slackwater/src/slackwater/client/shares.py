"""How the members of a consumer group share the work. Pure.

A *lane* is what one member owns at a time: everything, a number of units, or a partition. Each lane has a
position of its own in the group's committed offsets.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slackwater.cdc.batch import Record
from slackwater.client.transaction import Place
from slackwater.protocol.keys import units_topic

KeyOf = Callable[[Record], bytes | str | None]
"""Returns the key of the unit that a record belongs to; None: no member receives the record."""
Ranges = Mapping[Place, tuple[int, int]]
"""For each partition, the first offset and the offset after the last."""


class Share(Protocol):
    """Divides a source's transactions into lanes. Called by a consumer; stateless, never blocks."""

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """Returns the topic whose partitions represent the lanes, and their number if it must be created.

        Args:
            group: The consumer group.
            log: The topic with the commits: one partition.
        """
        ...

    @property
    def is_by_partition(self) -> bool:
        """True if a lane is the set of partitions with one number, and positions are kept per partition."""
        ...

    def lane_of(self, record: Record) -> int | None:
        """Returns the lane of a record; None: no lane. Not called if lanes are partitions."""
        ...


@dataclass(frozen=True, slots=True)
class Everything:
    """One member receives every transaction whole, in commit order; the others stand by.

    It preserves everything: transactions, their order, and the order of records. It does not scale.
    """

    is_by_partition = False

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """See the protocol. It is the log of commits, so that Kafka's tools show the lag in commits."""
        return log, None

    def lane_of(self, record: Record) -> int | None:
        """See the protocol."""
        return 0


@dataclass(frozen=True, slots=True)
class ByUnit:
    """Each member receives the part of every transaction that concerns its units, in commit order.

    A unit is what one key identifies, for example an order with its lines, or a customer. All changes that a
    transaction made to a unit arrive at once, and the transactions of a unit arrive in commit order. A
    transaction that spans several units is split: each owner receives its part at a different time, and each
    part says so.
    """

    key_of: KeyOf
    """Returns a record's unit. It must return the same in all members."""
    lanes: int = 64
    """The number of lanes into which units are divided; it cannot change while the group exists."""
    is_by_partition = False

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """See the protocol. It is an empty topic, ``<group>.units``."""
        return units_topic(group), self.lanes

    def lane_of(self, record: Record) -> int | None:
        """See the protocol."""
        key = self.key_of(record)
        if key is None:
            return None
        return zlib.crc32(key.encode() if isinstance(key, str) else key) % self.lanes


@dataclass(frozen=True, slots=True, init=False)
class ByPartition:
    """Each partition is a lane; with several topics, the partitions with the same number form a lane.

    All changes that a transaction made in a lane arrive at once, and the transactions of a lane arrive in
    commit order. If one topic contains several tables or documents with the same business key, or several
    topics are partitioned alike by that key, these are all changes that a transaction made to the key. The
    changes of a transaction in other lanes arrive at other times, nothing indicates that they exist, and
    lanes have no common order.
    """

    topics: tuple[str, ...]
    is_by_partition = True

    def __init__(self, *topics: str) -> None:
        object.__setattr__(self, "topics", topics)

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """See the protocol. It is the first topic."""
        return self.topics[0], None

    def lane_of(self, record: Record) -> int | None:
        """See the protocol."""
        return record.partition()


def divide(share: Share, ranges: Ranges, lanes: Sequence[int]) -> list[tuple[tuple[int, ...], Ranges]]:
    """Divides a commit into parts that are delivered at once, each with its lanes and its offsets.

    Args:
        share: How the work is shared.
        ranges: The offsets of the whole commit.
        lanes: The lanes that have not received it yet.
    """
    if not share.is_by_partition:
        return [(tuple(lanes), ranges)] if lanes else []
    by_lane = {lane: {place: held for place, held in ranges.items() if place[1] == lane} for lane in lanes}
    return [((lane,), found) for lane, found in by_lane.items() if found]


def select(share: Share, lanes: Sequence[int], records: list[Record]) -> tuple[list[Record], int]:
    """Returns the records of some lanes, and the number of records that belong to other lanes."""
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
