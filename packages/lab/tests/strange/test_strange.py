"""Some strange cases, and whether the judge notices what a blind pipeline does not."""

from pathlib import Path

import pytest

from slackwater_lab.strange.run import StrangeRun, Verdict
from slackwater_lab.strange.schema import TYPES, make_case

UNSEEN = (15, 59)
"""Seeds with a partition that is truncated by itself, and with a column that is rewritten."""


@pytest.mark.system
@pytest.mark.slow
def test_a_strange_case_equals_postgresql_or_is_refused_by_name(tmp_path: Path) -> None:
    with StrangeRun(tmp_path / "seeing") as run:
        for seed in (2, *UNSEEN):
            found = run.run(seed)
            assert found.verdict is not Verdict.FAILED, found.text
            assert found.verdict is Verdict.EQUAL or found.text
    with StrangeRun(tmp_path / "blind", is_blind=True) as blind:
        unseen = [blind.run(seed) for seed in UNSEEN]
    assert Verdict.FAILED in {each.verdict for each in unseen}, "the judge notices what nobody refuses"


def test_a_case_follows_from_its_seed() -> None:
    one, other = (make_case(7) for _ in range(2))
    assert [*one.transactions(9)] == [*other.transactions(9)]
    assert [*one.definitions()] == [*other.definitions()]
    assert one.publication == other.publication


@pytest.mark.parametrize(
    ("of_postgresql", "of_document"),
    [
        ("0044-03-15 BC", "0044-03-15 (BC)"),
        ("0044-03-15 00:00:00 BC", "-43-03-15T00:00:00"),
        ("2026-11-21T10:11:12.5+00:00", "2026-11-21T10:11:12.500000Z"),
    ],
)
def test_a_time_has_two_texts(of_postgresql: str, of_document: str) -> None:
    read = {each.name: each.read for each in TYPES}["timestamptz"]
    assert read(of_postgresql) == read(of_document)
    assert read(of_postgresql) != read("2026-11-20")


@pytest.mark.parametrize(
    ("name", "of_document", "of_postgresql"),
    [
        ("numeric[]", ["0.000000000000000000", "-0.000010000000000000", None], [0, -1e-05, None]),
        ("double precision[]", [-0.0, 1e300], [0, 1e300]),
        ("integer[]", [0, 7], [0, 7]),
    ],
)
def test_a_number_has_two_texts_in_an_array_too(
    name: str, of_document: list[object], of_postgresql: list[object]
) -> None:
    read = {each.name: each.read for each in TYPES}[name]
    assert read(of_document) == read(of_postgresql) != read([7, 1, 1])
