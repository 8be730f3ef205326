import re

import pytest

from slackwater_lab.__main__ import main

SIMULATE = ["simulate"]
DIFFERENTIAL = ["differential"]
SUBJECTS = pytest.mark.parametrize("subject", [SIMULATE, DIFFERENTIAL], ids=["simulate", "differential"])
FAILING = ["simulate", "--seeds", "30", "--only", "stalls", "--fault", "later-rows-passed"]


def test_seeds_without_failure_end_with_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SIMULATE, "--seeds", "5", "--only", "stalls"]) == 0

    assert "5 seeds (5 right)" in capsys.readouterr().out


def test_details_are_shown_when_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DIFFERENTIAL, "--seeds", "5", "--only", "group,left-join,latest", "--verbose"]) == 0

    out = capsys.readouterr().out
    assert "5 seeds (5 right)" in out
    assert "% left-join" in out


def test_a_failure_is_shown_with_its_trace_and_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(FAILING) == 1

    out = capsys.readouterr().out
    assert "repeat: python -m slackwater_lab simulate --seeds 1 --from" in out
    assert "database   commits" in out


def test_the_command_that_is_shown_repeats_the_failure(capsys: pytest.CaptureFixture[str]) -> None:
    main([*FAILING, "--stop"])
    repeat = re.search(r"^repeat: python -m slackwater_lab (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert repeat is not None

    assert main([*repeat.group(1).split(), "--fault", "later-rows-passed"]) == 1


@pytest.mark.full
@pytest.mark.parametrize("arguments", [FAILING, [*DIFFERENTIAL, "--seeds", "24", "--only", "where,latest"]])
def test_several_processes_give_the_same_result_as_one(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for jobs in ("1", "2"):
        main([*arguments, "--jobs", jobs])
        results.append(re.sub(r"in \d+ s", "", capsys.readouterr().out))

    assert results[0] == results[1]


def test_a_run_may_end_soon_after_the_first_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FAILING, "--seeds", "300", "--stop"]) == 1

    found = re.search(r"^(\d+) seeds ", capsys.readouterr().out, re.MULTILINE)
    assert found is not None
    assert int(found.group(1)) < 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "--only", "nothing"],
        ["differential", "--only", "nothing"],
        ["simulate", "--without", "x1"],
    ],
)
def test_what_cannot_be_understood_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2

    assert arguments[2] in capsys.readouterr().err


@SUBJECTS
def test_help_teaches(subject: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([subject[0], "--help"])

    assert "examples:" in capsys.readouterr().out


def seeds_of(capsys: pytest.CaptureFixture[str]) -> tuple[str, ...]:
    found = re.search(r"^seeds: --from (\d+) --seeds (\d+)$", capsys.readouterr().out, re.MULTILINE)
    assert found is not None
    return found.groups()


@SUBJECTS
def test_the_seeds_are_printed_so_that_drawn_ones_can_be_repeated(
    subject: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = set()
    for _ in range(3):
        main([*subject, "--seeds", "1", "--from", "random"])
        first, count = seeds_of(capsys)
        assert count == "1"
        drawn.add(first)
        main([*subject, "--seeds", "1", "--from", first])
        assert seeds_of(capsys) == (first, "1")

    assert len(drawn) > 1


@SUBJECTS
def test_without_a_start_the_seeds_begin_with_0(
    subject: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*subject, "--seeds", "1"])

    assert seeds_of(capsys) == ("0", "1")
