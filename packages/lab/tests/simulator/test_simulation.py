import pytest

from slackwater_lab.seeds import CRASHED, Plan, first_failure, run, smallest
from slackwater_lab.simulator.faults import FAULTS
from slackwater_lab.simulator.oracle import ViolationError
from slackwater_lab.simulator.scenario import Feature, Reduction, generate
from slackwater_lab.simulator.simulation import Simulator, simulate

SEEDS = 500
SOON = 300
"""Within this many seeds a planted fault must be found."""


@pytest.mark.full
def test_what_is_promised_holds_in_every_simulated_history() -> None:
    tally = run(Plan(Simulator(), 0, SEEDS))

    assert [f"{r.case.command()}: {r.verdict}: {r.problem}" for r in tally.failed] == []
    assert tally.counts["cuts"] > SEEDS


def test_the_seeds_of_the_default_lane_contain_every_feature() -> None:
    scenarios = [generate(seed) for seed in range(SEEDS)]

    for feature in Feature:
        assert sum(scenario.has(feature) for scenario in scenarios) > 40, feature


@pytest.mark.full
@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_that_is_taken_out_is_noticed(name: str) -> None:
    plan = Plan(Simulator(), FAULTS[name].first_seed, SOON, FAULTS[name].only, fault=name)

    failed = first_failure(plan)

    assert failed is not None, FAULTS[name].rule
    assert failed.verdict != CRASHED, failed.problem
    assert not simulate(failed.case).is_failure, "it fails without the fault, too"


def test_a_seed_always_gives_the_same_history() -> None:
    for seed in range(20):
        first, second = (simulate(generate(seed), is_traced=True) for _ in range(2))
        assert first == second
        assert first.trace


def test_a_failure_is_made_small_and_says_how_to_repeat_it() -> None:
    plan = Plan(Simulator(), 0, SOON, FAULTS["doubles-kept"].only, fault="doubles-kept")
    failed = first_failure(plan)
    assert failed is not None

    small = smallest(failed, plan)

    assert small.verdict == failed.verdict
    assert len(small.case.transactions) < len(failed.case.transactions)
    words = small.case.command().split()
    assert words[words.index("--from") + 1] == str(failed.case.seed)
    without = words[words.index("--without") + 1]
    assert Reduction.parse(without, small.case.reduction.schedule) == small.case.reduction


def test_errors_say_which_promise_was_broken() -> None:
    assert str(ViolationError("G1", "too early")) == "G1: too early"
