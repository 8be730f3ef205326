import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slackwater_protocol import KafkaSettings, RedisSettings, Servers
from slackwater_spark.errors import PipelineConfigError, PipelineStateError
from slackwater_spark.pipeline import RunSettings, load_pipeline
from slackwater_spark.pipeline.fingerprint import (
    FINGERPRINT_FILE,
    PipelineFingerprint,
    ViewFingerprint,
    check_fingerprint,
    claim_checkpoint,
)
from slackwater_spark.state import Checkpoint
from slackwater_spark.state.checkpoint import FAILED_FILE

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"

FACTS = {"column inventory.orders.total": "numeric(12,2) NOT NULL", "output total": "DECIMAL(12,2)"}
VIEW = ViewFingerprint(topic="out", fingerprint="abc", facts=FACTS)
FINGERPRINT = PipelineFingerprint(
    pipeline="orders",
    revision=1,
    source="inv",
    timeline=1,
    scope="strict",
    emit="latest",
    buckets=64,
    stages="s1",
    views={"orders": VIEW},
)


def test_a_new_checkpoint_is_claimed_once_and_then_fits(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "new")
    check_fingerprint(checkpoint, FINGERPRINT)
    assert not checkpoint.folder.exists()
    claim_checkpoint(checkpoint, FINGERPRINT)
    claim_checkpoint(checkpoint, FINGERPRINT)
    check_fingerprint(Checkpoint(tmp_path / "new"), FINGERPRINT)


def begun(folder: Path, offsets: dict[int, int], commits: list[int]) -> Checkpoint:
    """A checkpoint with these batches in Spark's logs, each with its number of partitions."""
    for log in ("offsets", "commits"):
        (folder / log).mkdir()
    (folder / "metadata").write_text('{"id": "q"}')
    for batch, partitions in offsets.items():
        conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": str(partitions)}})
        (folder / "offsets" / str(batch)).write_text(f"v1\n{conf}\n{{}}\n")
        (folder / "offsets" / f".{batch}.crc").write_text("sum")
    for batch in commits:
        (folder / "commits" / str(batch)).write_text("v1\n{}")
    return Checkpoint(folder)


def batches(checkpoint: Checkpoint) -> list[str]:
    return sorted(path.name for path in (checkpoint.folder / "offsets").iterdir())


def start(checkpoint: Checkpoint, published: int | None) -> list[str]:
    """What the next run finds planned."""
    with checkpoint.hold("a run", alone=False) as hold:
        checkpoint.replan_failed_batch(published, hold)
    return batches(checkpoint)


def state_files(folder: Path, *versions: int) -> None:
    """Of one partition of one operator, as Spark writes them; each version is that before the batch."""
    partition = folder / "state" / "0" / "1"
    (partition / "SSTs").mkdir(parents=True)
    (folder / "state" / "0" / "63").mkdir()
    (partition / "SSTs" / "000008.sst").write_text("")
    for version in versions:
        for name in ("{}.changelog", ".{}.changelog.crc", "{}.zip", ".{}.zip.crc"):
            (partition / name.format(version)).write_text("")


def state_versions(folder: Path) -> set[int]:
    names = {path.name for path in (folder / "state" / "0" / "1").iterdir() if path.is_file()}
    return {int(name.removeprefix(".").partition(".")[0]) for name in names}


@pytest.mark.parametrize("published", [None, 1])
def test_a_batch_that_failed_is_planned_anew_without_what_its_tasks_have_kept(
    tmp_path: Path, published: int | None
) -> None:
    checkpoint = begun(tmp_path, {1: 4, 2: 4}, [0, 1])
    state_files(tmp_path, 1, 2, 3)
    checkpoint.note_failed_batch()
    assert start(checkpoint, published) == [".1.crc", "1"]
    assert state_versions(tmp_path) == {1, 2}
    assert (tmp_path / "state" / "0" / "1" / "SSTs" / "000008.sst").exists()
    assert (tmp_path / "state" / "0" / "63").is_dir(), "its number is that of a partition, not of a version"


def test_the_first_batch_is_planned_anew(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path, {0: 4}, [])
    (tmp_path / "state" / "0").mkdir(parents=True)
    checkpoint.note_failed_batch()
    assert start(checkpoint, None) == []
    assert not (tmp_path / "state").exists(), "Spark refuses to begin with batch 0 beside a state"


def test_a_batch_during_which_a_run_was_killed_is_repeated_as_it_was(tmp_path: Path) -> None:
    """Its tasks may still write state, which must not differ from that of its repetition."""
    checkpoint = begun(tmp_path, {1: 4, 2: 4}, [0, 1])
    before = batches(checkpoint)
    assert start(checkpoint, 1) == before
    checkpoint.note_failed_batch()
    with Checkpoint(tmp_path).hold("a run that was frozen", alone=False):
        assert start(checkpoint, 1) == before
    assert start(checkpoint, 1) == before, "a later run may have been killed in it"


@pytest.mark.parametrize(
    ("offsets", "commits", "published"),
    [
        ({1: 4, 2: 4}, [1], 2),  # published, not yet in Spark's log
        ({1: 4, 2: 4}, [1, 2], 1),  # an empty batch has no output
        ({1: 4, 2: 8}, [1], 1),  # another number of partitions
        ({}, [], 1),
    ],
)
def test_other_batches_stay_as_they_were_planned(
    tmp_path: Path, offsets: dict[int, int], commits: list[int], published: int
) -> None:
    checkpoint = begun(tmp_path, offsets, commits)
    before = batches(checkpoint)
    checkpoint.note_failed_batch()
    assert start(checkpoint, published) == before


def test_the_batch_after_the_one_that_failed_stays_as_it_was_planned(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path, {1: 4, 2: 4}, [1])
    checkpoint.note_failed_batch()
    (tmp_path / "commits" / "2").write_text("v1\n{}")
    shutil.copy(tmp_path / "offsets" / "2", tmp_path / "offsets" / "3")
    assert start(checkpoint, 1) == [".1.crc", ".2.crc", "1", "2", "3"]


def test_a_note_that_a_full_disk_has_cut_off_says_nothing(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path, {1: 4, 2: 4}, [1])
    (tmp_path / FAILED_FILE).touch()
    before = batches(checkpoint)
    assert start(checkpoint, 1) == before
    assert not (tmp_path / FAILED_FILE).exists()


def test_nothing_is_noted_of_a_run_that_fails_between_batches(tmp_path: Path) -> None:
    begun(tmp_path, {1: 4}, [1]).note_failed_batch()
    assert not (tmp_path / FAILED_FILE).exists()


def test_a_failure_that_cannot_be_noted_does_not_hide_itself(tmp_path: Path) -> None:
    checkpoint = begun(tmp_path, {1: 4, 2: 4}, [1])
    (tmp_path / FAILED_FILE).mkdir()
    checkpoint.note_failed_batch()


def other_view(**changes: Any) -> dict[str, object]:
    return {"views": {"orders": replace(VIEW, **changes)}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"buckets": 32}, "buckets was 64, is 32"),
        ({"source": "erp"}, "source was inv, is erp"),
        ({"emit": "transactions"}, "emit was latest, is transactions"),
        ({"pipeline": "p"}, "name was orders, is p"),
        ({"timeline": 2}, "timeline was 1, is 2"),
        ({"scope": "aggregate"}, "scope was strict, is aggregate"),
        ({"stages": "s2"}, "the stages are planned otherwise by this version"),
        (other_view(topic="other"), "output topic of view orders was out, is other"),
        (other_view(fingerprint="abd"), "view orders has another SQL"),
        ({"views": {"orders": VIEW, "totals": VIEW}}, "view totals is new"),
        ({"views": {"totals": VIEW}}, "view orders is gone; view totals is new"),
        (
            other_view(
                fingerprint="abd", facts={**FACTS, "column inventory.orders.total": "numeric(14,2) NOT NULL"}
            ),
            "view orders has another meaning; "
            "column inventory.orders.total was numeric(12,2) NOT NULL, is numeric(14,2) NOT NULL",
        ),
        (
            other_view(fingerprint="abd", facts={**FACTS, "column inventory.orders.status": "text"}),
            "column inventory.orders.status was no part of it, is text",
        ),
    ],
)
def test_a_changed_pipeline_does_not_fit_and_is_told_what_changed_and_the_way_out(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    checkpoint = Checkpoint(tmp_path)
    claim_checkpoint(checkpoint, FINGERPRINT)
    with pytest.raises(PipelineStateError) as caught:
        check_fingerprint(checkpoint, replace(FINGERPRINT, **change))  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "write `revision = 2` into pipeline.toml" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - made here


def test_facts_that_change_without_the_meaning_do_not_matter(tmp_path: Path) -> None:
    """For instance when another view of the same stage is what changed them."""
    checkpoint = Checkpoint(tmp_path)
    claim_checkpoint(checkpoint, FINGERPRINT)
    check_fingerprint(checkpoint, replace(FINGERPRINT, views={"orders": replace(VIEW, facts={})}))


def test_a_checkpoint_from_before_there_were_stages_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / FINGERPRINT_FILE).write_text(json.dumps({"version": "1", "name": "orders"}))
    with pytest.raises(PipelineStateError, match="the form of the state was 1, is 2"):
        check_fingerprint(Checkpoint(tmp_path), FINGERPRINT)


def test_the_fingerprint_of_a_pipeline_names_the_columns_its_views_use() -> None:
    definition = load_pipeline(ORDERS_PIPELINE)
    fingerprint = PipelineFingerprint.take(definition, 1)
    facts = fingerprint.views["orders_with_lines"].facts
    assert facts["column inventory.order_lines.price"] == "numeric(10,2) NOT NULL"
    assert facts["primary key of inventory.orders"] == "id"
    assert facts["output total"] == "DECIMAL(12,2)"
    assert facts["record key"] == "id"
    assert fingerprint.changes_since(json.loads(json.dumps(fingerprint.to_json()))) == ()


def test_a_retyped_column_is_named_when_the_old_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    shutil.copytree(ORDERS_PIPELINE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    claim_checkpoint(checkpoint, PipelineFingerprint.take(load_pipeline(folder), 1))
    schema = folder / "schema.sql"
    schema.write_text(schema.read_text().replace("numeric(12, 2)", "numeric(14, 2)"))
    with pytest.raises(PipelineStateError) as caught:
        check_fingerprint(checkpoint, PipelineFingerprint.take(load_pipeline(folder), 1))
    said = "column inventory.orders.total was numeric(12,2) NOT NULL, is numeric(14,2) NOT NULL"
    assert said in str(caught.value)


def test_a_column_that_no_view_uses_may_change(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    shutil.copytree(ORDERS_PIPELINE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    claim_checkpoint(checkpoint, PipelineFingerprint.take(load_pipeline(folder), 1))
    schema = folder / "schema.sql"
    schema.write_text(
        schema.read_text().replace("customer text NOT NULL,", "customer text NOT NULL, note text,")
    )
    check_fingerprint(checkpoint, PipelineFingerprint.take(load_pipeline(folder), 1))


def test_the_checkpoint_of_another_spark_query_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    with pytest.raises(PipelineStateError, match="a Spark query of another kind"):
        claim_checkpoint(Checkpoint(tmp_path), FINGERPRINT)


def test_the_query_id_is_spark_s(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path).query_id() is None
    (tmp_path / "metadata").write_text(json.dumps({"id": "0f5c"}))
    assert Checkpoint(tmp_path).query_id() == "0f5c"


@pytest.mark.parametrize(
    ("text", "folder"), [("/a/b", "/a/b"), ("a", "a"), ("file:///a/b", "/a/b"), ("file:/a/b", "/a/b")]
)
def test_a_checkpoint_is_a_path_or_a_file_address(text: str, folder: str) -> None:
    assert RunSettings.local_folder(text) == Path(folder)


def test_a_checkpoint_elsewhere_is_refused() -> None:
    with pytest.raises(PipelineConfigError, match="s3://bucket/x"):
        RunSettings.local_folder("s3://bucket/x")


def test_secrets_of_a_run_are_not_shown() -> None:
    settings = RunSettings(
        servers=Servers(KafkaSettings("b:1", {"sasl.password": "hush"}), RedisSettings("redis://r", "hush")),
        checkpoint=Path("c"),
    )
    assert "hush" not in repr(settings)
