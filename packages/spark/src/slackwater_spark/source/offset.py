"""A query's position, as Spark keeps it in its checkpoint."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater_protocol import PublishedCut
from slackwater_spark.source.errors import OffsetFormatError

OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """A cut, with all that is needed to read on from it, or up to it, with Redis gone."""

    source: str
    timeline: int
    lsn: int
    """0: before the first transaction."""
    event_count: int
    log: int
    """Where the cut log goes on: above the record of this cut and of every one used before it."""
    log_id: str = ""
    """Of the cut log that it follows from; empty: there was none, or an earlier version did not note it."""
    end: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """End offset of each partition of the query's topics; topics that did not exist yet are absent."""

    @classmethod
    def before_everything(cls, source: str, timeline: int) -> "SourceOffset":
        """Where a query starts that wants all there is."""
        return cls(source=source, timeline=timeline, lsn=0, event_count=0, log=0)

    def advanced_to(self, cut: PublishedCut, topics: Iterable[str], log_id: str = "") -> "SourceOffset":
        """The position at a later cut of a log."""
        return SourceOffset(
            source=self.source,
            timeline=cut.cut.timeline,
            lsn=cut.cut.lsn,
            event_count=cut.cut.event_count,
            log=max(self.log, cut.log_offset + 1),
            log_id=log_id,
            end={t: tuple(cut.cut.end_offsets[t]) for t in sorted(topics) if t in cut.cut.end_offsets},
        )

    def to_json(self) -> dict[str, Any]:
        """Only what JSON knows, as Spark wants it."""
        return {
            "version": OFFSET_VERSION,
            "source": self.source,
            "timeline": self.timeline,
            "lsn": self.lsn,
            "event_count": self.event_count,
            "log": self.log,
            **({"log_id": self.log_id} if self.log_id else {}),
            "end": {topic: list(offsets) for topic, offsets in self.end.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, source: str, timeline: int) -> "SourceOffset":
        """Reads what :meth:`to_json` wrote, maybe long ago.

        Raises:
            OffsetFormatError: another version, source or timeline, or no offset at all.
        """
        text = json.dumps(data)
        if not isinstance(data, Mapping) or data.get("version") != OFFSET_VERSION:
            raise OffsetFormatError(f"expected version {OFFSET_VERSION}", text)
        try:
            offset = cls(
                source=data["source"],
                timeline=data["timeline"],
                lsn=data["lsn"],
                event_count=data["event_count"],
                log=data["log"],
                log_id=data.get("log_id", ""),
                end={topic: tuple(offsets) for topic, offsets in data["end"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise OffsetFormatError(f"{type(error).__name__}: {error}", text) from error
        if (offset.source, offset.timeline) != (source, timeline):
            raise OffsetFormatError(f"the query reads source {source!r}, timeline {timeline}", text)
        return offset
