"""What a checker found wrong: counted by kind, with a few examples of each."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

MAX_EXAMPLES = 3


class Kind(StrEnum):
    """Ways in which an output can be wrong."""

    TORN = "torn document"
    LOST = "lost document"
    REPEATED = "repeated document"
    WRONG_STATE = "document differs from its LSN's state"
    WRONG_FINAL = "final document differs from PostgreSQL"
    LSN_ORDER = "commit LSN does not rise"
    HOLE = "commit records do not connect"
    UNCOVERED = "record outside its commit record"


@dataclass(slots=True)
class Findings:
    """Empty means: nothing wrong was found."""

    counts: Counter[Kind] = field(default_factory=Counter)
    examples: dict[Kind, list[str]] = field(default_factory=dict)

    def add(self, kind: Kind, text: str) -> None:
        """Counts one finding; keeps the text of the first few of a kind."""
        self.counts[kind] += 1
        texts = self.examples.setdefault(kind, [])
        if len(texts) < MAX_EXAMPLES:
            texts.append(text)

    def count(self, *kinds: Kind) -> int:
        """How many findings of these kinds there are."""
        return sum(self.counts[kind] for kind in kinds)

    def __bool__(self) -> bool:
        return bool(self.counts)
