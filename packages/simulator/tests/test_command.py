import re

import pytest

from slackwater_simulator.command import main


def test_seeds_without_failure_end_with_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--only", "stalls"]) == 0

    assert "5 seeds" in capsys.readouterr().out


def test_a_failure_is_shown_with_its_trace_and_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "30", "--only", "stalls", "--fault", "later-rows-passed"]) == 1

    out = capsys.readouterr().out
    assert "repeat: python -m slackwater_simulator --seeds 1 --from" in out
    assert "database   commits" in out


def test_several_processes_give_the_same_result_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for jobs in ("1", "2"):
        main(["--seeds", "30", "--jobs", jobs, "--only", "stalls", "--fault", "later-rows-passed"])
        results.append(re.sub(r"in \d+ s", "", capsys.readouterr().out))

    assert results[0] == results[1]


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--without", "x1"]])
def test_what_cannot_be_understood_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2

    assert arguments[1] in capsys.readouterr().err


def seeds_of(capsys: pytest.CaptureFixture[str]) -> tuple[str, ...]:
    found = re.search(r"^seeds: --from (\d+) --seeds (\d+)$", capsys.readouterr().out, re.MULTILINE)
    assert found is not None
    return found.groups()


def test_the_seeds_are_printed_so_that_drawn_ones_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = set()
    for _ in range(3):
        main(["--seeds", "1", "--from", "random"])
        first, count = seeds_of(capsys)
        assert count == "1"
        drawn.add(first)
        main(["--seeds", "1", "--from", first])
        assert seeds_of(capsys) == (first, "1")

    assert len(drawn) > 1


def test_without_a_start_the_seeds_begin_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seeds", "1"])

    assert seeds_of(capsys) == ("0", "1")
