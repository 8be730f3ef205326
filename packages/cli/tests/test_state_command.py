"""``slackwater state``: what is refused before Spark starts, and what people and tools see."""

import json
from pathlib import Path

import msgspec
import pytest

from slackwater import main
from slackwater.commands.state import key_lines, rescaled_line, size, state_json, state_lines
from slackwater_engine.state.contents import Amount, BucketContents, KeyAmount
from slackwater_engine.state.log import LogMeta
from slackwater_spark.state import BucketState, KeptRows, PipelineState, Rescaled, StageState
from slackwater_sql.compiler import compile_pipeline
from slackwater_sql.postgres import parse_catalog

DDL = "CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint NOT NULL);"
SQL = "SELECT TRANSACTIONALLY o.id, o.customer_id FROM s.orders o"
PLAN = compile_pipeline([("orders.sql", SQL)], parse_catalog({"t.sql": DDL}))


def checkpoint(folder: Path, *, unfinished: bool = False) -> Path:
    """As Spark and a first run of a pipeline leave it."""
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"a"}')
    (folder / "slackwater.json").write_text('{"name":"orders","buckets":"64"}')
    conf = '{"conf":{"spark.sql.shuffle.partitions":"4"}}'
    for batch in (0, 1) if unfinished else (0,):
        (folder / "offsets" / str(batch)).write_text(f"v1\n{conf}\n-")
    (folder / "commits" / "0").write_text("v1\n{}")
    return folder


@pytest.fixture
def state(tmp_path: Path) -> PipelineState:
    contents = BucketContents(
        keys=3,
        kinds={"input 0": Amount(3, 2048), "documents": Amount(3, 60)},
        largest=[KeyAmount(1000, 1, msgspec.msgpack.encode([7]))],
    )
    meta = LogMeta("f" * 64, b"token", 500_000, 2_108, range(4, 9))
    buckets = (BucketState(1, 5, 2, 2, meta, 1234, contents),)
    return PipelineState(tmp_path, 41, 4, (StageState(1, buckets, contents),))


def test_people_see_what_a_stage_keeps_by_the_names_of_the_view(state: PipelineState) -> None:
    text = "\n".join(state_lines(state, PLAN, top=5))
    assert "batch 41, 4 partitions" in text
    assert "stage 1, keyed by id: plan ffffffffffff, format 2" in text
    assert "rows of o (s.orders)  3  2.0 KiB" in text
    assert "live 2.1 KiB, log 488.3 KiB in 5 blobs (1.2 KiB compressed), 1 buckets due" in text
    assert '{"id":7}  1 entries' in text


def test_without_the_views_inputs_have_numbers_and_keys_no_names(state: PipelineState) -> None:
    text = "\n".join(state_lines(state, None, top=5))
    assert "rows of input 0" in text
    assert "[7]" in text


def test_tools_get_the_same_in_bytes(state: PipelineState) -> None:
    (stage,) = json.loads(state_json(state, PLAN, top=5))["stages"]
    assert (stage["live_bytes"], stage["log_bytes"], stage["compressed_bytes"]) == (2_108, 500_000, 1_234)
    assert stage["buckets_due_for_compaction"] == 1
    assert stage["largest_keys"] == [{"key": '{"id":7}', "entries": 1, "bytes": 1000}]


def test_rows_of_a_key_are_shown_line_by_line() -> None:
    kept = KeptRows(2, 5, {"o (s.orders)": ({"id": 1, "note": "ü"},)})
    assert key_lines([kept]) == ["stage 2, bucket 5", "  o (s.orders)", '    {"id": 1, "note": "ü"}']
    assert key_lines([]) == ["nothing is kept under this key"]


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes_are_short(count: int, shown: str) -> None:
    assert size(count) == shown


def test_what_a_change_of_partitions_did_is_one_line() -> None:
    done = Rescaled(before=4, after=16, batch=7, buckets=64, blobs=100, bytes=1 << 20)
    assert rescaled_line(done, 16).startswith(
        "4 partitions became 16 (batch 7): 64 buckets with 100 blobs, 1.0 MiB"
    )
    assert "nothing to do" in rescaled_line(None, 4)


def test_a_change_that_cannot_be_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = checkpoint(tmp_path / "c", unfinished=True)
    assert main.run(["state", "rescale", str(place), "--partitions", "16"]) == 1
    assert "finish it first: `slackwater run --available-now`" in capsys.readouterr().err
    assert main.run(["state", "rescale", str(place), "--partitions", "65"]) == 1
    assert "expected 1 to 64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "problem"), [("{", "expected a JSON object"), ('{"id": 5}', "only the pipeline's views say")]
)
def test_a_key_needs_the_views_and_has_to_be_an_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, problem: str
) -> None:
    assert main.run(["state", str(checkpoint(tmp_path / "c")), "--key", key]) == 1
    assert problem in capsys.readouterr().err


def test_a_folder_that_is_neither_pipeline_nor_checkpoint_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["state", str(tmp_path)]) == 1
    assert "a pipeline is a folder with it" in capsys.readouterr().err
