"""Cases as data, and the seeded choices that make them.

A case is a schema, views, a history, and how the engine is made to run it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TypeVar

from slackwater_lab.differential.history import DrawnTable, DrawnTransaction
from slackwater_lab.differential.query import View

T = TypeVar("T")
_WANTED = 0.5
"""How likely an opportunity for a wanted feature is taken, at least."""


class Feature(StrEnum):
    """Everything that a case may contain; ``--only`` names it."""

    INNER_JOIN = "inner-join"
    LEFT_JOIN = "left-join"
    RIGHT_JOIN = "right-join"
    FULL_JOIN = "full-join"
    SEMI_JOIN = "semi-join"
    ANTI_JOIN = "anti-join"
    CROSS_JOIN = "cross-join"
    SELF_JOIN = "self-join"
    SEVERAL_KEYS = "several-keys"
    """Joins on more than one comparison."""
    RESIDUAL = "residual"
    """A join condition that is no comparison of keys."""
    WHERE = "where"
    GROUP = "group"
    DEPENDENT = "dependent"
    """Columns that depend on the primary key in GROUP BY."""
    NESTED_GROUP = "nested-group"
    """GROUP BY over GROUP BY."""
    GLOBAL = "global"
    """An aggregate without GROUP BY."""
    HAVING = "having"
    FILTER = "filter"
    DISTINCT = "distinct"
    COUNT_DISTINCT = "count-distinct"
    LIST = "list"
    STRUCT = "struct"
    STRING_AGG = "string-agg"
    UNION = "union"
    UNION_ALL = "union-all"
    CTE = "cte"
    DERIVED = "derived"
    """A query in FROM."""
    EXISTS = "exists"
    IN = "in"
    NOT_IN = "not-in"
    SCALAR = "scalar"
    """A subquery as a value."""
    QUANTIFIED = "quantified"
    """IN, ANY and ALL of what may be NULL."""
    CORRELATED = "correlated"
    """Subqueries that compare with the query around them by more than equality."""
    NESTED_SUBQUERY = "nested-subquery"
    """Subqueries that use columns of a query further out."""
    CONSTANT_KEY = "constant-key"
    """Scalar subqueries of one row."""
    GROUPING_SETS = "grouping-sets"
    DUPLICATES = "duplicates"
    """EXCEPT ALL and INTERSECT ALL."""
    WHOLE_WINDOW = "whole-window"
    """Windows over all rows."""
    WINDOW = "window"
    TOP = "top"
    """ORDER BY and LIMIT."""
    RANKS = "ranks"
    """Filters on ranks."""
    DISTINCT_ON = "distinct-on"
    VIEW_OVER_VIEW = "view-over-view"
    COMPOSITE_KEY = "composite-key"
    PARTIAL_IDENTITY = "partial-identity"
    """Tables without REPLICA IDENTITY FULL."""
    ODD_NAMES = "odd-names"
    """Names of columns that need quotes."""
    PRIMARY_KEY_CHANGE = "primary-key-change"
    OVERLAP = "overlap"
    """Several rows of a key within a transaction."""
    LEFT_OUT = "left-out"
    """Unchanged values missing in updates, and in changes of the primary key."""
    TRUNCATE = "truncate"
    SNAPSHOT = "snapshot"
    EVERY_COMMIT = "every-commit"
    """`emit=transactions`."""
    LATEST = "latest"
    """`emit=latest`."""
    LOST_INDEX = "lost-index"
    REPEATED_BATCH = "repeated-batch"


NOT_QUERIES = frozenset(
    {
        Feature.COMPOSITE_KEY, Feature.PARTIAL_IDENTITY, Feature.ODD_NAMES, Feature.PRIMARY_KEY_CHANGE,
        Feature.OVERLAP, Feature.LEFT_OUT, Feature.TRUNCATE, Feature.SNAPSHOT, Feature.EVERY_COMMIT,
        Feature.LATEST, Feature.LOST_INDEX, Feature.REPEATED_BATCH,
    }
)  # fmt: skip
"""Features of schemas, histories and runs."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The transactions that the engine is given at once.

    Attributes:
        size: Number of transactions.
        tasks: Number of source tasks.
        loses_index: Some buckets' indexes are lost before it.
        is_repeated: It is run twice, the first time without success.
    """

    size: int
    tasks: int = 1
    loses_index: bool = False
    is_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that decides a check."""

    seed: int
    tables: tuple[DrawnTable, ...]
    views: tuple[View, ...]
    transactions: tuple[DrawnTransaction, ...]
    batches: tuple[Batch, ...]
    buckets: int
    every_commit: bool
    features: frozenset[Feature] = frozenset()
    only: tuple[str, ...] = ()

    def command(self) -> str:
        """Generates it again, and makes it small again."""
        only = f" --only {','.join(self.only)}" if self.only else ""
        return f"python -m slackwater_lab differential --seeds 1 --from {self.seed}{only}"


class Choices:
    """Chance, and which features it may bring about and has brought about.

    Attributes:
        used: The features of the case so far.
    """

    def __init__(self, seed: int | str, only: Sequence[str] = ()) -> None:
        """Choices of a seed.

        Args:
            seed: Equal seeds choose alike.
            only: Of the features these, more often than else; empty: all.
        """
        self._seed = seed
        self._random = Random(f"slackwater {seed}")
        self._only = frozenset(Feature(name) for name in only)
        self.used: set[Feature] = set()

    def beside(self, name: str) -> "Choices":
        """Other choices of the same seed, on which these do not depend; what they use counts here, too."""
        other = Choices(f"{self._seed} {name}", tuple(self._only))
        other.used = self.used
        return other

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
