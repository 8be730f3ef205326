"""``slackwater state``: what people and tools see of a checkpoint, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slackwater.cli import main
from slackwater.cli.commands.state import key_lines, size
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.settings import StageSettings
from slackwater.engine.state.inspection import KeptRows
from slackwater.engine.state.manifest import SegmentReader, StateKeeper, read_state
from slackwater.engine.state.store import ArrowStore
from slackwater.engine.task import PipelineTask
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

DDL = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint NOT NULL);
"""
SQL = "SELECT TRANSACTIONALLY o.id, o.customer_id FROM s.orders o"
OTHER_SQL = "SELECT TRANSACTIONALLY o.customer_id, list(o.id) AS ids FROM s.orders o GROUP BY o.customer_id"
PLAN = compile_pipeline([("orders.sql", SQL)], parse_catalog({"t.sql": DDL}))
BUCKETS = 4
SETTINGS = StageSettings(buckets=BUCKETS)
PIPELINE = 'name = "orders"\nsource = "inv"\nbuckets = 4\n[outputs.orders]\ntopic = "orders"\n'


def order(lsn: int, number: int) -> ChangeEvent:
    row = {"id": number, "customer_id": number % 3}
    return "s.orders", "c", lsn, None, json.dumps(row).encode()


def position(lsn: int) -> dict[str, Any]:
    return {"source": "inv", "lsns": [lsn, lsn]}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """After three batches, the last of which another one follows that may or may not be visible."""
    folder = tmp_path / "checkpoint"
    store = ArrowStore(str(folder))
    note = {"query_id": "q", "name": "orders", "buckets": str(BUCKETS)}
    store.create("slackwater.json", json.dumps(note).encode())
    engine = LocalEngine(PLAN, buckets=BUCKETS)
    keeper = StateKeeper(store, state_fingerprint(PLAN, SETTINGS))
    for batch in range(4):
        changes = [order(100 * (batch + 1), 10 * batch + number) for number in range(10)]
        rows = [(*name, *each) for name, packed in engine.payloads(changes).items() for each in packed]
        indexes = LocalEngine(PLAN, buckets=BUCKETS).indexes
        result = PipelineTask(PLAN, SETTINGS).process(
            rows, keeper.state, SegmentReader(store), lambda *place, indexes=indexes: indexes[place]
        )
        name = keeper.prepare(position(0x100 * batch), result.writes)
        if batch < 3:
            keeper.adopt(name)
    return folder


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    folder = tmp_path / "pipeline"
    (folder / "views").mkdir(parents=True)
    (folder / "pipeline.toml").write_text(PIPELINE)
    (folder / "schema.sql").write_text(DDL)
    (folder / "views" / "orders.sql").write_text(SQL)
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Calls the command; returns its output, or its error if it has none."""
    assert main.run(["state", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out or captured.err


def test_people_see_the_newest_state_that_is_certainly_true(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *lines = told(capsys, str(checkpoint)).splitlines()
    assert first == f"{checkpoint}: state after batch 2, inv at 0/200"
    assert second == (
        "  4 manifests, the newest of batch 3: only the output knows whether that became visible"
    )
    text = "\n".join(lines)
    assert "stage 1: 4 buckets\n  live " in text
    assert "blobs (" in text
    assert text.count(" live ") == 1 + BUCKETS
    assert "keys" not in text


def test_a_first_batch_that_may_not_have_become_true_is_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ArrowStore(str(tmp_path))
    store.create("slackwater.json", json.dumps({"query_id": "q", "buckets": "4"}).encode())
    StateKeeper(store, "stages").prepare(position(0x100), [])
    text = told(capsys, str(tmp_path))
    assert "state after batch 0, inv at 0/100, which was prepared; only the output knows" in text


def test_contents_are_named_by_the_pipeline(
    checkpoint: Path, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, str(pipeline), "--checkpoint", str(checkpoint), "--contents", "--top", "2")
    assert "stage 1, keyed by id: 4 buckets, 30 keys" in text
    assert "rows of o (s.orders)  30  " in text
    assert text.count('{"id":') == 2
    assert text.count(" keys  live ") == 2


def test_contents_of_a_checkpoint_alone_have_numbers_and_no_names(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, str(checkpoint), "--contents")
    assert re.search(r"rows of input 0 +30 ", text)
    assert "keyed by" not in text


def test_names_of_other_views_are_not_given_to_it(
    checkpoint: Path, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pipeline / "views" / "orders.sql").write_text(OTHER_SQL)
    arguments = [str(pipeline), "--checkpoint", str(checkpoint)]
    assert "keyed by" not in told(capsys, *arguments)
    assert "belongs to other views" in told(capsys, *arguments, "--key", '{"customer_id": 5}', code=1)


def test_tools_get_the_same_in_bytes(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(told(capsys, str(checkpoint), "--contents", "--json", "--top", "1"))
    state = read_state(ArrowStore(str(checkpoint)), facts["manifest"], facts["fingerprint"])
    (stage,) = facts["stages"]
    assert (facts["checkpoint"], facts["batch"], facts["is_true"]) == (str(checkpoint), 2, True)
    assert facts["position"] == position(0x200)
    assert stage["live_bytes"] == sum(head.live_bytes for head in state.heads.values())
    assert stage["compressed_bytes"] == sum(b.length for head in state.heads.values() for b in head.blobs)
    assert (stage["buckets"], stage["keys"], stage["kept"][0]["entries"]) == (BUCKETS, 30, 30)
    assert len(stage["largest_keys"]) == len(stage["largest_buckets"]) == 1
    assert [each["batch"] for each in facts["manifests"]] == [0, 1, 2, 3]
    assert "damage" not in facts


def test_without_contents_tools_get_what_the_manifests_say(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stage,) = json.loads(told(capsys, str(checkpoint), "--json"))["stages"]
    assert "keys" not in stage
    assert "keys" not in stage["largest_buckets"][0]
    assert stage["blobs"] == 3 * BUCKETS


class TestChecking:
    """All of the state is read."""

    def test_says_that_nothing_is_damaged(self, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert told(capsys, str(checkpoint), "--check").endswith("12 blobs read, 0 of them damaged\n")
        assert json.loads(told(capsys, str(checkpoint), "--check", "--json"))["damage"] == []

    def test_names_what_is_damaged_and_exits_with_1(
        self, checkpoint: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        segment = sorted((checkpoint / "segments").iterdir())[1]
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(bytes(data))
        text = told(capsys, str(checkpoint), "--check", code=1)
        assert f"the state in the checkpoint cannot be read: segment {segment.name}" in text
        assert text.endswith("12 blobs read, 1 of them damaged\n")

        segment.unlink()
        facts = json.loads(told(capsys, str(checkpoint), "--check", "--json", code=1))
        assert len(facts["damage"]) == BUCKETS
        assert all(f"no file segments/{segment.name}" in each for each in facts["damage"])

    def test_of_a_damaged_manifest_is_an_error_that_names_it(
        self, checkpoint: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        manifest = sorted((checkpoint / "manifests").iterdir())[-1]
        manifest.write_bytes(b"damaged")
        assert manifest.name in told(capsys, str(checkpoint), "--check", code=1)


def test_rows_of_a_key_are_read_from_its_bucket(
    checkpoint: Path, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(pipeline), "--checkpoint", str(checkpoint), "--key", '{"id": 12}']
    assert '    {"id": 12, "customer_id": 0}' in told(capsys, *arguments).splitlines()
    ((kept),) = json.loads(told(capsys, *arguments, "--json"))
    assert kept["kept"]["o (s.orders)"] == [{"id": 12, "customer_id": 0}]


def test_rows_of_a_key_are_shown_line_by_line() -> None:
    kept = KeptRows(2, 5, {"o (s.orders)": ({"id": 1, "note": "ü"},)})
    assert key_lines([kept]) == ["stage 2, bucket 5", "  o (s.orders)", '    {"id": 1, "note": "ü"}']
    assert key_lines([]) == ["nothing is kept for this key"]


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes_are_short(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("key", "problem"), [("{", "expected a JSON object"), ('{"id": 5}', "only the pipeline's views define")]
)
def test_a_key_needs_the_views_and_has_to_be_an_object(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], key: str, problem: str
) -> None:
    assert problem in told(capsys, str(checkpoint), "--key", key, code=1)


def test_a_checkpoint_without_a_batch_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "slackwater.json").write_text('{"query_id": "q", "buckets": "4"}')
    assert "no state yet" in told(capsys, str(tmp_path), code=1)


def test_a_pipeline_without_a_checkpoint_is_asked_for_it(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--checkpoint" in told(capsys, str(pipeline), code=2)


def test_a_checkpoint_is_named_by_its_address_as_well(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "state after batch 2" in told(capsys, f"file://{checkpoint}")


def test_a_folder_that_is_neither_pipeline_nor_checkpoint_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "a pipeline is a folder that contains this file" in told(capsys, str(tmp_path), code=1)
