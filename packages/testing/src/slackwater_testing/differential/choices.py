"""Seeded choices."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from slackwater_testing.differential.case import NOT_QUERIES, Feature

T = TypeVar("T")

_WANTED = 0.5
"""How likely an opportunity for a wanted feature is taken, at least."""


class Choices:
    """Chance, and which features it may bring about and has brought about.

    Attributes:
        used: The features of the case so far.
    """

    def __init__(self, seed: int, only: Sequence[str] = ()) -> None:
        """Choices of a seed.

        Args:
            seed: Equal seeds choose alike.
            only: Of the features these, more often than else; empty: all.
        """
        self._random = Random(f"slackwater {seed}")
        self._only = frozenset(Feature(name) for name in only)
        self.used: set[Feature] = set()

    def is_allowed(self, feature: Feature) -> bool:
        """Says whether a case may have it."""
        return not self._only or feature in self._only

    def may(self, feature: Feature, probability: float) -> bool:
        """Decides for or against a feature; what is decided for counts as used."""
        chance = self._random.random()
        if not self.is_allowed(feature):
            return False
        if self._only and feature not in NOT_QUERIES:
            probability = max(probability, _WANTED)
        if chance < probability:
            self.used.add(feature)
            return True
        return False

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def number(self, least: int, most: int) -> int:
        """A number, both ends included."""
        return self._random.randint(least, most)

    def one(self, choices: Sequence[T]) -> T:
        """One of several."""
        return self._random.choice(choices)

    def some(self, choices: Sequence[T], least: int, most: int) -> list[T]:
        """Several different ones, in random order."""
        count = min(len(choices), self.number(least, most))
        return self._random.sample(list(choices), count)

    def weighted(self, choices: Sequence[tuple[T, float]]) -> T:
        """One of several, by weight."""
        weights = [weight for _, weight in choices]
        return self._random.choices(choices, weights)[0][0]
