"""What the engine's scenarios run."""

import tomllib
from pathlib import Path

import pytest

from slackwater.pipeline import load_pipeline
from slackwater_bench.bed import output_of
from slackwater_bench.catch_up import CASES, SEED, with_emit


@pytest.mark.parametrize("emit", ["latest", "transactions"])
@pytest.mark.parametrize("case", CASES)
def test_a_copy_of_a_pipeline_differs_in_what_it_emits(case: str, emit: str, tmp_path: Path) -> None:
    pipeline = CASES[case](SEED, 10).pipeline
    copy = with_emit(pipeline, tmp_path, emit=emit)
    assert tomllib.loads((copy / "pipeline.toml").read_text())["emit"] == emit
    assert load_pipeline(copy).plan == load_pipeline(pipeline).plan
    assert output_of(pipeline) == load_pipeline(pipeline).outputs[0].name
