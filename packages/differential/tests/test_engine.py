"""The engine against DuckDB: a part of the seeds in the default lane, all of them in `make full`."""

import pytest

from slackwater_differential import FAULTS, Feature, Plan, first_failure, generate, report, run
from slackwater_differential.case import NOT_QUERIES

SEEDS = 300
DEFAULT_SEEDS = 200
PORTION = 10
"""Seeds of one test: small, so that all cores have work, and a slow machine ends each in time."""
PORTIONS = [
    pytest.param(first, marks=() if first < DEFAULT_SEEDS else pytest.mark.full)
    for first in range(0, SEEDS, PORTION)
]


@pytest.mark.parametrize("first", PORTIONS)
def test_every_state_of_every_view_is_what_the_database_would_answer(first: int) -> None:
    tally = run(Plan(first, PORTION))

    assert [report(outcome) for outcome in tally.failed] == []
    assert [(outcome.case.seed, outcome.problem) for outcome in tally.impossible] == []
    assert tally.checked > 0.8 * PORTION
    assert tally.rows > 10 * PORTION
    assert tally.repeats < 0.05 * tally.rows


def test_every_feature_occurs_in_a_view_that_is_not_refused() -> None:
    unseen = set(Feature)
    for seed in range(SEEDS):
        if unseen & set(generate(seed).features):
            unseen -= set(run(Plan(seed, 1)).features)

    assert unseen == set()


SOON = 60
"""Within so many seeds a planted fault must be found."""
FIRST = {"witness-not-read": 25, "too-few-reads": 10, "digest-not-updated": 15, "null-keys-dropped": 10}
"""Where to begin, for faults that show seldom: not to spend the time of every run on the seeds before."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_that_is_taken_out_is_noticed(name: str) -> None:
    assert first_failure(Plan(FIRST.get(name, 0), SOON, fault=name)) is not None


def test_the_features_that_are_no_queries_are_features() -> None:
    assert set(Feature) > NOT_QUERIES
