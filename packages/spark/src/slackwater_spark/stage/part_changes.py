"""What a batch does to the contents of a bucket."""

from dataclasses import dataclass, field

from slackwater_spark.stage.entry import Change


@dataclass(slots=True)
class PartChanges:
    """Changes of entries."""

    changes: list[Change] = field(default_factory=list)
    """Each name at most once."""
    live_bytes: int = 0
    """By how much names and values of the live entries grow."""

    def set(self, name: bytes, old: bytes | None, new: bytes | None) -> None:
        """Changes an entry, unless it stays as it is."""
        if old != new:
            self.changes.append((name, new))
            before = 0 if old is None else len(name) + len(old)
            self.live_bytes += (0 if new is None else len(name) + len(new)) - before
