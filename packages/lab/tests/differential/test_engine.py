"""The engine against DuckDB: a part of the seeds in CI, all of them in `make soak`."""

import pytest

from slackwater_lab.differential.case import NOT_QUERIES, Feature
from slackwater_lab.differential.check import Verdict
from slackwater_lab.differential.engines import FAULTS
from slackwater_lab.differential.subject import Differential
from slackwater_lab.seeds import Plan, first_failure, run

SEEDS = 300
DEFAULT_SEEDS = 60
PORTION = 10
"""Seeds of one test: small, so that all cores have work, and a slow machine ends each in time."""
PORTIONS = [
    pytest.param(first, marks=() if first < DEFAULT_SEEDS else pytest.mark.slow)
    for first in range(0, SEEDS, PORTION)
]


@pytest.mark.full
@pytest.mark.parametrize("first", PORTIONS)
def test_every_state_of_every_view_is_what_the_database_would_answer(first: int) -> None:
    tally = run(Plan(Differential(), first, PORTION))

    impossible = [result for result in tally.set_aside if result.verdict is Verdict.IMPOSSIBLE]
    assert [Differential().report(result) for result in tally.failed] == []
    assert [(result.case.seed, result.problem) for result in impossible] == []
    assert tally.checked > 0.8 * PORTION
    assert tally.counts["rows"] > 10 * PORTION
    assert tally.counts["repeated documents"] < 0.05 * tally.counts["rows"]


@pytest.mark.full
def test_every_feature_occurs_in_a_view_that_is_not_refused() -> None:
    unseen = set(Feature)
    for seed in range(SEEDS):
        if unseen & set(Differential().generate(seed).features):
            unseen -= set(run(Plan(Differential(), seed, 1)).features)

    assert unseen == set()


SOON = 60
"""Within this many seeds a planted fault must be found."""


@pytest.mark.full
@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_that_is_taken_out_is_noticed(name: str) -> None:
    assert first_failure(Plan(Differential(), FAULTS[name].first_seed, SOON, fault=name)) is not None


def test_the_features_that_are_no_queries_are_features() -> None:
    assert set(Feature) > NOT_QUERIES
