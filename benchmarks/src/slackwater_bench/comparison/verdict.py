"""From the values of two commits to a verdict. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from slackwater_bench.percentiles import relative_spread
from slackwater_bench.scenario import Direction


class Verdict(StrEnum):
    """What a ratio means."""

    SAME = "same"
    BETTER = "better"
    WORSE = "REGRESSION"


@dataclass(frozen=True, slots=True)
class Compared:
    """Base and head at one point."""

    base: tuple[float, ...]
    head: tuple[float, ...]
    direction: Direction
    threshold: float
    """The least relative change that counts."""

    @classmethod
    def of(
        cls, base: Sequence[float], head: Sequence[float], direction: Direction, threshold: float
    ) -> "Compared":
        """Compares the values of repeated runs.

        Raises:
            ValueError: one of them has no values.
        """
        if not base or not head:
            raise ValueError("a comparison needs values of both commits")
        return cls(tuple(base), tuple(head), direction, threshold)

    @property
    def ratio(self) -> float:
        """Median of head over median of base; infinite if base's is 0 and head's is not."""
        base, head = median(self.base), median(self.head)
        if base == 0:
            return 1.0 if head == 0 else float("inf")
        return head / base

    @property
    def spread(self) -> float:
        """The larger relative spread of the two: what repeating a run changes by itself."""
        return max(relative_spread(self.base), relative_spread(self.head))

    @property
    def verdict(self) -> Verdict:
        """A change counts when it exceeds the threshold *and* the spread, whichever is larger.

        The change is counted from the better of the two medians, so that twice and half are equally far.
        """
        ratio = self.ratio
        gain = ratio if self.direction is Direction.HIGHER else (1 / ratio if ratio else float("inf"))
        allowed = 1 + max(self.threshold, self.spread)
        if gain > allowed:
            return Verdict.BETTER
        if gain * allowed < 1:
            return Verdict.WORSE
        return Verdict.SAME

    def __str__(self) -> str:
        values = f"{median(self.base):,.4g} -> {median(self.head):,.4g}"
        return f"{values}, ratio {self.ratio:.3f}, spread {100 * self.spread:.0f} %: {self.verdict}"
