"""The engine against DuckDB, on the seeds of the default lane."""

from functools import lru_cache

import pytest

from slackwater_differential import FAULTS, Feature, Plan, Tally, first_failure, report, run
from slackwater_differential.case import NOT_QUERIES

SEEDS = 300
PORTION = 50
PORTIONS = range(0, SEEDS, PORTION)


@lru_cache
def tally_of(first: int) -> Tally:
    return run(Plan(first, PORTION))


@pytest.mark.parametrize("first", PORTIONS)
def test_every_state_of_every_view_is_what_the_database_would_answer(first: int) -> None:
    tally = tally_of(first)

    assert [report(outcome) for outcome in tally.failed] == []
    assert [(outcome.case.seed, outcome.problem) for outcome in tally.impossible] == []
    assert tally.rows > 10 * PORTION


def test_the_seeds_show_something() -> None:
    """That views are refused, or features do not occur, must not pass for being right."""
    tally = sum((tally_of(first) for first in PORTIONS), Tally())

    assert tally.checked > 0.93 * SEEDS
    assert [feature for feature in Feature if not tally.features[feature]] == []
    assert tally.repeats < 0.05 * tally.rows


SOON = 60
"""Within so many seeds a planted fault must be found."""
FIRST = {"witness-not-read": 25, "too-few-reads": 10, "digest-not-updated": 15, "null-keys-dropped": 10}
"""Where to begin, for faults that show seldom: not to spend the time of every run on the seeds before."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_that_is_taken_out_is_noticed(name: str) -> None:
    assert first_failure(Plan(FIRST.get(name, 0), SOON, fault=name)) is not None


def test_the_features_that_are_no_queries_are_features() -> None:
    assert set(Feature) > NOT_QUERIES
