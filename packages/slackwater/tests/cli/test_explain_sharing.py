"""What `slackwater explain` says of rows that one stage keeps for others, too."""

import json
from pathlib import Path

import pytest

from slackwater.cli import main
from slackwater.pipeline import load_pipeline
from slackwater.pipeline.explain import explain, explanation_lines

SHOP = Path(__file__).parents[4] / "pipelines" / "shop"
SHARED = (
    "stage 1 keeps the rows of shop.orders and shop.lines for stage 3, too: else they would be kept twice"
)


def test_rows_that_are_kept_for_another_stage_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", str(SHOP)]) == 0
    shown = capsys.readouterr().out.splitlines()

    assert shown[1] == SHARED
    assert "  keeps     the rows of shop.orders and the rows of shop.lines, for stage 3, too" in shown
    assert "  keeps     no rows: stage 1 keeps those that it reads" in shown


def test_tools_are_told_which_stage_keeps_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", str(SHOP), "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]

    assert {stage["number"]: stage["kept_by"] for stage in stages} == {1: 0, 2: 0, 3: 1, 4: 0}


def test_the_state_of_several_stages_is_told_of_the_one_that_keeps_it() -> None:
    sizes = {1: 1_000, 2: 50, 4: 70}
    lines = list(explanation_lines(explain(load_pipeline(SHOP), with_sql=False, state_bytes=sizes)))

    assert [line for line in lines if line.startswith("  state ")] == [
        "  state     1,000 bytes",
        "  state     50 bytes",
        "  state     70 bytes",
    ]


def test_a_pipeline_that_shares_nothing_says_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", str(SHOP.parent / "orders")]) == 0
    shown = capsys.readouterr().out
    assert "kept twice" not in shown
    assert "too" not in shown.split()
