import re

import pytest

from slackwater_differential.command import main

NAIVE = ["--engine", "naive"]


def test_seeds_without_failure_end_with_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NAIVE, "--seeds", "5", "--only", "group,left-join,latest", "--verbose"]) == 0

    out = capsys.readouterr().out
    assert "5 seeds (5 right)" in out
    assert "left-join" in out


def test_several_processes_give_the_same_result_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for jobs in ("1", "2"):
        main([*NAIVE, "--seeds", "24", "--jobs", jobs, "--only", "where,latest"])
        results.append(re.sub(r"in \d+ s", "", capsys.readouterr().out))

    assert results[0] == results[1]


def test_an_unknown_feature_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nothing"]) == 2

    assert "no feature nothing" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    out = capsys.readouterr().out
    assert "examples:" in out
    assert "reading a failure" in out


def seeds_of(capsys: pytest.CaptureFixture[str]) -> tuple[str, ...]:
    found = re.search(r"^seeds: --from (\d+) --seeds (\d+)$", capsys.readouterr().out, re.MULTILINE)
    assert found is not None
    return found.groups()


def test_the_seeds_are_printed_so_that_drawn_ones_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = set()
    for _ in range(3):
        main([*NAIVE, "--seeds", "1", "--from", "random"])
        first, count = seeds_of(capsys)
        assert count == "1"
        drawn.add(first)
        main([*NAIVE, "--seeds", "1", "--from", first])
        assert seeds_of(capsys) == (first, "1")

    assert len(drawn) > 1


def test_without_a_start_the_seeds_begin_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    main([*NAIVE, "--seeds", "1"])

    assert seeds_of(capsys) == ("0", "1")
