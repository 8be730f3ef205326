"""Counts of values by size: what a histogram is made of."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Distribution:
    """How often values fell between bounds. Written by one thread, read by any."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """For each upper bound, as text, how many values are not above it; the last bound is ``+Inf``."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))
