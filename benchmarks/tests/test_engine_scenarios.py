"""What the engine's scenarios run and how they judge it."""

import tomllib
from pathlib import Path

import duckdb
import pytest

from slackwater.pipeline import load_pipeline
from slackwater_bench.bed import output_of
from slackwater_bench.catch_up import SEED
from slackwater_bench.scenarios.engine import CASES, with_emit


@pytest.mark.parametrize("emit", ["latest", "transactions"])
@pytest.mark.parametrize("case", CASES)
def test_a_copy_of_a_pipeline_differs_in_what_it_emits(case: str, emit: str, tmp_path: Path) -> None:
    pipeline = CASES[case].workload(SEED, 10).pipeline
    copy = with_emit(pipeline, tmp_path, emit=emit)
    assert tomllib.loads((copy / "pipeline.toml").read_text())["emit"] == emit
    assert load_pipeline(copy).plan == load_pipeline(pipeline).plan


@pytest.mark.parametrize("case", CASES)
def test_every_output_is_judged(case: str) -> None:
    pipeline = CASES[case].workload(SEED, 10).pipeline
    topics = [output.name for output in load_pipeline(pipeline).outputs]
    assert [check.topic for check in CASES[case].checks] == topics
    assert output_of(pipeline) == topics[0]


@pytest.mark.parametrize("case", CASES)
def test_both_queries_of_a_check_give_as_many_values(case: str) -> None:
    tables = CASES[case].workload(SEED, 10).tables
    with duckdb.connect() as database:
        database.execute("CREATE TABLE documents (document JSON)").fetchall()
        for table in tables.values():
            columns = ", ".join(f"{column.name} {column.type.name}" for column in table.columns)
            database.execute(f"CREATE TABLE {table.name} ({columns})").fetchall()
        for check in CASES[case].checks:
            (found,) = database.execute(check.found).fetchall()
            (expected,) = database.execute(check.expected).fetchall()
            assert len(found) == len(expected) > 1
