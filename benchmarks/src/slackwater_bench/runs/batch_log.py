"""What ``slackwater run`` prints of its batches, as numbers."""

import re
from statistics import mean

_PARTS = re.compile(r"after its newest commit \((?P<parts>[^)]*)\)")
_SIZE = re.compile(r": (?P<events>[\d,]+) events, [\d,]+ documents, visible")
_PART = re.compile(r"(?P<name>\w+) (?P<seconds>[\d.]+) s")


def batch_parts(log: str) -> dict[str, float]:
    """Mean seconds of each part over all batches in the log, largest first; empty where none is told.

    The command shows the largest parts of each batch only; a part that is not shown counts as nothing there.
    """
    batches = [
        {part["name"]: float(part["seconds"]) for part in _PART.finditer(batch["parts"])}
        for batch in _PARTS.finditer(log)
    ]
    names = {name for batch in batches for name in batch}
    means = {name: round(mean(batch.get(name, 0.0) for batch in batches), 3) for name in names}
    return dict(sorted(means.items(), key=lambda part: -part[1]))


def batch_sizes(log: str) -> list[int]:
    """Change events of each batch in the log."""
    return [int(size["events"].replace(",", "")) for size in _SIZE.finditer(log)]
