"""Some strange cases, and whether the judge notices what a blind pipeline does not."""

from pathlib import Path

import pytest

from slackwater_testing.strange import StrangeRun, Verdict
from slackwater_testing.strange.schema import make_case

EQUAL, REFUSED = 2, 92
"""A seed whose views equal PostgreSQL, and one with a partition that is truncated by itself."""


@pytest.mark.system
@pytest.mark.full
def test_a_strange_case_equals_postgresql_or_is_refused_by_name(tmp_path: Path) -> None:
    with StrangeRun(tmp_path) as run:
        found = {seed: run.run(seed) for seed in (EQUAL, REFUSED)}
    assert found[EQUAL].verdict is Verdict.EQUAL, found[EQUAL].text
    assert found[REFUSED].verdict is Verdict.REFUSED
    assert "was truncated by itself" in found[REFUSED].text
    with StrangeRun(tmp_path / "blind", is_blind=True) as blind:
        unseen = blind.run(REFUSED)
    assert unseen.verdict is Verdict.FAILED
    assert "is no longer in the database" in unseen.text


def test_a_case_follows_from_its_seed() -> None:
    one, other = (make_case(7) for _ in range(2))
    assert [*one.transactions(9)] == [*other.transactions(9)]
    assert [*one.definitions()] == [*other.definitions()]
    assert one.publication == other.publication
