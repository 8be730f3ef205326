"""Positions of a query, as Spark keeps them in its checkpoint, and the spans between two of them. Pure.

A *group* is a set of partitions that advance together. In scope ``strict``, there is one group with all
partitions of all topics. In scope ``aggregate``, group number n is partition number n of every topic.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.engine.settings import Scope
from slackwater.protocol import PublishedCut, StateError

_POSITION_VERSION = 3
"""Version 1 was written in scope ``strict``, and version 2 in scope ``aggregate``; both can still be read."""

OTHER_SIDECARS = 64
"""How far below a cut in the log another sidecar may have written what follows the cut."""

_PLAIN = ("source", "timeline", "commit_ts_ms", "log", "floor")
"""The fields that are kept as they are."""

Offsets = tuple[int, ...]
"""The offsets of a group in one topic, by partition. Missing ones at the end are 0."""


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """A group's position in its partitions of one topic."""

    start: Offsets
    """The offsets at which the next batch continues."""
    lsn: int
    """The first occurrences of commits above this LSN are at or above ``start``."""
    read_to: Offsets
    """The exclusive offsets up to which the batch that ended here has read.

    They are above ``start`` if no marker specified exactly where the group's LSN ends in a partition.
    """


_NOTHING_READ = TopicPosition((), 0, ())
"""The position in a topic that the query's position does not contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The LSN that each group has reached, and everything that is needed to read from there, or up to it."""

    source: str
    timeline: int
    scope: Scope
    lsns: tuple[int, ...] = ()
    """The LSN of each group; empty while nothing was read."""
    commit_ts_ms: int = 0
    """The commit time at about the smallest of them; 0 if an earlier version did not record it."""
    event_count: int | None = 0
    """The number of change events up to the newest cut at or below ``lsn``; None if version 2 did not record
    it."""
    log: int = 0
    """The offset at which the cut log continues, above every record used before."""
    log_id: str = ""
    """The id of the cut log that it is derived from; empty if there is none, or an earlier version did not
    record it."""
    floor: int = 0
    """The offset of the cut log's first record that the slowest group may still need."""
    cut: int | None = None
    """The LSN of the newest cut that was read; None if there was none, or an earlier version did not record
    it."""
    topics: Mapping[str, tuple[TopicPosition, ...]] = field(default_factory=dict)
    """The positions of each group, by topic; topics that did not exist yet may be missing."""

    @property
    def lsn(self) -> int:
        """The LSN up to which everything was read or skipped: all groups and a cut have reached it.

        If rows were lost, groups advance by their markers, but the frontier waits, and so does this.
        """
        lowest = min(self.lsns, default=0)
        return lowest if self.cut is None else min(lowest, self.cut)

    @property
    def known_from_lsn(self) -> int:
        """The LSN above which all commits have to be known to continue."""
        found = (position.lsn for positions in self.topics.values() for position in positions)
        return min((*self.lsns, *found), default=0)

    def start_in(self, topic: str, partition: int) -> int:
        """Returns the offset at which the next batch continues in a partition."""
        number, place = (0, partition) if self.scope is Scope.STRICT else (partition, 0)
        positions = self.topics.get(topic, ())
        start = positions[number].start if number < len(positions) else ()
        return start[place] if place < len(start) else 0

    def read_to(self, topic: str, partition: int) -> int:
        """Returns the offset below which a partition was read, in scope ``strict``."""
        ends = (self.topics.get(topic) or (_NOTHING_READ,))[0].read_to
        return ends[partition] if partition < len(ends) else 0

    @classmethod
    def at_cut(
        cls, published: PublishedCut, topics: Iterable[str], scope: Scope, log_id: str = ""
    ) -> "Position":
        """Returns the position of all groups at a cut; nothing was read in topics that it lacks."""
        cut = published.cut
        found = {topic: cut.end_offsets[topic] for topic in sorted(topics) if topic in cut.end_offsets}
        groups = 1 if scope is Scope.STRICT else max(map(len, found.values()), default=0)
        ends = {
            topic: [group_offsets(scope, offsets, n) for n in range(groups)]
            for topic, offsets in found.items()
        }
        return cls(
            source=cut.source,
            timeline=cut.timeline,
            scope=scope,
            lsns=(cut.lsn,) * groups,
            commit_ts_ms=cut.commit_ts_ms,
            event_count=cut.event_count,
            log=published.log_offset + 1,
            log_id=log_id,
            floor=max(0, published.log_offset - OTHER_SIDECARS),
            cut=cut.lsn,
            topics={t: tuple(TopicPosition(end, cut.lsn, end) for end in each) for t, each in ends.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the offset in the form that Spark needs, with JSON types only."""
        return {
            "version": _POSITION_VERSION,
            "scope": self.scope.value,
            **{name: getattr(self, name) for name in _PLAIN},
            "lsns": list(self.lsns),
            **({} if self.event_count is None else {"event_count": self.event_count}),
            **({"log_id": self.log_id} if self.log_id else {}),
            **({} if self.cut is None else {"cut": self.cut}),
            "topics": {
                topic: [_topic_to_json(*pair) for pair in zip(positions, self.lsns, strict=True)]
                for topic, positions in self.topics.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, source: str, timeline: int, scope: Scope) -> "Position":
        """Decodes what :meth:`to_json` returned, possibly in an earlier version.

        Raises:
            StateError: It has another version, scope, source or timeline, or is not an offset.
        """
        version: Any = data.get("version") if isinstance(data, Mapping) else None
        if version not in (1, 2, _POSITION_VERSION):
            problem = f"expected version {_POSITION_VERSION}, or 1 or 2 of earlier releases"
            raise _unusable_offset(problem, data)
        try:
            position = cls(**_FIELDS[version](data))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _unusable_offset(f"{type(error).__name__}: {error}", data) from error
        if position.scope is not scope:
            problem = f"it belongs to scope {position.scope.value!r}, but the query has scope {scope.value!r}"
            raise _unusable_offset(problem, data)
        if (position.source, position.timeline) != (source, timeline):
            problem = f"the query reads source {source!r}, timeline {timeline}"
            raise _unusable_offset(problem, data)
        return position


def _unusable_offset(problem: str, offset: object) -> StateError:
    """Returns the error for an offset, probably of a checkpoint, that does not fit this query or version."""
    return StateError(
        f"the offset {json.dumps(offset)} cannot be used: {problem}",
        "check that the checkpoint belongs to this query, and was not written by a newer version",
    )


@dataclass(frozen=True, slots=True)
class GroupWindow:
    """The commits of one group in a batch: those in ``(after_lsn, up_to_lsn]``."""

    number: int
    after_lsn: int
    up_to_lsn: int
    known_from_lsn: int
    """The LSN from which on commits of the records that are read must be known; at most ``after_lsn``."""


def group_offsets(scope: Scope, offsets: Offsets, number: int) -> Offsets:
    """Returns the offsets of a group's partitions; none if the topic does not have them."""
    return offsets if scope is Scope.STRICT else offsets[number : number + 1]


def windows_between(start: Position, end: Position) -> list[GroupWindow]:
    """Returns the commits of each group that advances in a batch, by group."""
    reached = start.lsns or (0,) * len(end.lsns)
    return [
        GroupWindow(number, after_lsn, up_to_lsn, min((after_lsn, *_lsns_of_read(start, end, number))))
        for number, (after_lsn, up_to_lsn) in enumerate(zip(reached, end.lsns, strict=True))
        if up_to_lsn > after_lsn
    ]


def spans_between(start: Position, end: Position) -> list[tuple[str, int, int, int]]:
    """Returns ``(topic, partition, from, to)`` of everything that a batch reads, sorted, without empty spans.

    A topic or partition that the start does not contain began at 0.
    """
    spans = []
    is_strict = end.scope is Scope.STRICT
    for topic in sorted(end.topics):
        for number, after in enumerate(end.topics[topic]):
            before = _position(start, topic, number).start
            if after.read_to == before:
                continue
            for place, to_offset in enumerate(after.read_to):
                from_offset = before[place] if place < len(before) else 0
                if to_offset > from_offset:
                    spans.append((topic, place if is_strict else number, from_offset, to_offset))
    return spans


def size_between(start: Position, end: Position) -> int:
    """Returns the number of offsets that a batch reads."""
    return sum(
        sum(after.read_to) - sum(_position(start, topic, number).start)
        for topic, positions in end.topics.items()
        for number, after in enumerate(positions)
    )


def _lsns_of_read(start: Position, end: Position, number: int) -> tuple[int, ...]:
    """Returns the LSNs of a group's positions in the topics that a batch reads."""
    pairs = ((_position(start, t, number), positions[number]) for t, positions in end.topics.items())
    return tuple(before.lsn for before, after in pairs if after.read_to != before.start)


def _position(position: Position, topic: str, number: int) -> TopicPosition:
    positions = position.topics.get(topic)
    return positions[number] if positions else _NOTHING_READ


def _topic_to_json(position: TopicPosition, lsn: int) -> list[int] | dict[str, Any]:
    """Omits all but the offsets to continue at, if the rest follows from them and the group's LSN."""
    if position.lsn == lsn and position.read_to == position.start:
        return list(position.start)
    return {"start": list(position.start), "lsn": position.lsn, "read_to": list(position.read_to)}


def _topic_from_json(data: Any, lsn: int) -> TopicPosition:
    if isinstance(data, Mapping):
        return TopicPosition(tuple(data["start"]), data["lsn"], tuple(data["read_to"]))
    start = tuple(data)
    return TopicPosition(start, lsn, start)


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    lsns = tuple(data["lsns"])
    return {
        **{name: data[name] for name in _PLAIN},
        **{name: data.get(name) for name in ("event_count", "cut")},
        "scope": Scope(data["scope"]),
        "lsns": lsns,
        "log_id": data.get("log_id", ""),
        "topics": {
            topic: tuple(_topic_from_json(*pair) for pair in zip(positions, lsns, strict=True))
            for topic, positions in data["topics"].items()
        },
    }


def _fields_of_version_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """Decodes version 1, of scope ``strict``: an LSN, and the ends of partitions by topic."""
    lsn, log = data["lsn"], data["log"]
    ends = {topic: tuple(offsets) for topic, offsets in data["end"].items()}
    return {
        "source": data["source"],
        "timeline": data["timeline"],
        "scope": Scope.STRICT,
        "lsns": (lsn,) if lsn else (),
        "event_count": data["event_count"],
        "log": log,
        "log_id": data.get("log_id", ""),
        "floor": max(0, log - OTHER_SIDECARS),
        "cut": lsn or None,
        "topics": {topic: (TopicPosition(end, lsn, end),) for topic, end in ends.items()} if lsn else {},
    }


def _fields_of_version_2(data: Mapping[str, Any]) -> dict[str, Any]:
    """Decodes version 2, of scope ``aggregate``: three numbers for each partition."""
    topics = {
        topic: tuple(TopicPosition((start,), lsn, (read_to,)) for start, lsn, read_to in positions)
        for topic, positions in data["positions"].items()
    }
    return {**_fields({**data, "scope": Scope.AGGREGATE, "topics": {}}), "topics": topics}


_FIELDS = {1: _fields_of_version_1, 2: _fields_of_version_2, _POSITION_VERSION: _fields}
