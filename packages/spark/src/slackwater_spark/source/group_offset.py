"""A query's position in scope ``aggregate``, as Spark keeps it in its checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater_protocol import PublishedCut
from slackwater_spark.source.errors import OffsetFormatError

GROUP_OFFSET_VERSION = 2
"""Offsets of scope ``strict`` have version 1."""


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Where a query stands in one partition."""

    start: int
    """Where the next batch reads on."""
    lsn: int
    """First occurrences of commits above this LSN stand at or above ``start``."""
    read_to: int
    """Up to where the batch that ended here has read, exclusive: beyond ``start`` when no marker told exactly
    where the group's LSN ends in the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """What each group has reached, with all that is needed to read on from it, or up to it, from Kafka.

    Group number n is partition number n of every topic that is read.
    """

    source: str
    timeline: int
    lsns: tuple[int, ...] = ()
    """Of each group; empty while the number of partitions is not known."""
    commit_ts_ms: int = 0
    """Commit time at about the smallest of them."""
    log: int = 0
    """Where the cut log goes on: above every record used before."""
    log_id: str = ""
    """Of the cut log that it follows from; empty: there was none, or an earlier version did not note it."""
    floor: int = 0
    """Where in the cut log the records begin that the slowest group may still need."""
    cut: int | None = None
    """LSN of the newest cut that was read; None: there was none, or an earlier version did not note it."""
    positions: Mapping[str, tuple[PartitionPosition, ...]] = field(default_factory=dict)
    """By topic and partition number."""

    @property
    def lsn(self) -> int:
        """Up to here everything has been read, and is whole or was skipped: all groups and a cut are there.

        Where rows were lost, groups go on by their markers; the frontier waits, and so does this.
        """
        lowest = min(self.lsns, default=0)
        return lowest if self.cut is None else min(lowest, self.cut)

    @property
    def event_count(self) -> int:
        """Offsets passed in all partitions: a running number, for the size of batches."""
        return sum(position.start for of_topic in self.positions.values() for position in of_topic)

    @classmethod
    def at_cut(
        cls, cut: PublishedCut, positions: Mapping[str, tuple[PartitionPosition, ...]]
    ) -> "GroupOffset":
        """All groups at a cut."""
        groups = max((len(of_topic) for of_topic in positions.values()), default=0)
        return cls(
            source=cut.cut.source,
            timeline=cut.cut.timeline,
            lsns=(cut.cut.lsn,) * groups,
            commit_ts_ms=cut.cut.commit_ts_ms,
            log=cut.log_offset + 1,
            floor=max(0, cut.log_offset - OTHER_SIDECARS),
            cut=cut.cut.lsn,
            positions=positions,
        )

    def to_json(self) -> dict[str, Any]:
        """Only what JSON knows, as Spark wants it."""
        return {
            "version": GROUP_OFFSET_VERSION,
            "scope": "aggregate",
            "source": self.source,
            "timeline": self.timeline,
            "lsns": list(self.lsns),
            "commit_ts_ms": self.commit_ts_ms,
            "log": self.log,
            **({"log_id": self.log_id} if self.log_id else {}),
            "floor": self.floor,
            **({} if self.cut is None else {"cut": self.cut}),
            "positions": {t: [[p.start, p.lsn, p.read_to] for p in ps] for t, ps in self.positions.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, source: str, timeline: int) -> "GroupOffset":
        """Reads what :meth:`to_json` wrote, maybe long ago.

        Raises:
            OffsetFormatError: another version, scope, source or timeline, or no offset at all.
        """
        text = json.dumps(data)
        if not isinstance(data, Mapping) or data.get("version") != GROUP_OFFSET_VERSION:
            problem = f"expected version {GROUP_OFFSET_VERSION}, the one of scope 'aggregate'"
            raise OffsetFormatError(problem, text)
        try:
            offset = cls(
                source=data["source"],
                timeline=data["timeline"],
                lsns=tuple(data["lsns"]),
                commit_ts_ms=data["commit_ts_ms"],
                log=data["log"],
                log_id=data.get("log_id", ""),
                floor=data["floor"],
                cut=data.get("cut"),
                positions={
                    t: tuple(PartitionPosition(*p) for p in ps) for t, ps in data["positions"].items()
                },
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise OffsetFormatError(f"{type(error).__name__}: {error}", text) from error
        if (offset.source, offset.timeline) != (source, timeline):
            raise OffsetFormatError(f"the query reads source {source!r}, timeline {timeline}", text)
        return offset


OTHER_SIDECARS = 64
"""How far below a cut in the log another sidecar may have written what comes after it."""
