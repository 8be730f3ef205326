import json
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater_spark.pipeline import IncompatibleCheckpointError, RunSettings, RunSettingsError
from slackwater_spark.pipeline.checkpoint import FINGERPRINT_FILE, Checkpoint, PipelineFingerprint

FINGERPRINT = PipelineFingerprint(
    pipeline="orders",
    source="inv",
    timeline=1,
    scope="strict",
    emit="latest",
    buckets=64,
    output="out",
    view="abc",
)


def test_a_new_checkpoint_is_claimed_once_and_then_fits(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "new")
    checkpoint.check(FINGERPRINT)
    assert not checkpoint.folder.exists()
    checkpoint.claim(FINGERPRINT)
    checkpoint.claim(FINGERPRINT)
    Checkpoint(tmp_path / "new").check(FINGERPRINT)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"view": "abd"}, "view or schema (fingerprint) was abc, is abd"),
        ({"buckets": 32}, "buckets was 64, is 32"),
        ({"source": "erp"}, "source was inv, is erp"),
        ({"emit": "transactions"}, "emit was latest, is transactions"),
        ({"output": "other"}, "output topic was out, is other"),
        ({"pipeline": "p"}, "name was orders, is p"),
        ({"timeline": 2}, "timeline was 1, is 2"),
        ({"scope": "aggregate"}, "scope was strict, is aggregate"),
    ],
)
def test_a_changed_pipeline_does_not_fit_and_is_told_what_changed(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.claim(FINGERPRINT)
    with pytest.raises(IncompatibleCheckpointError) as caught:
        checkpoint.check(replace(FINGERPRINT, **change))  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "new name, with a new checkpoint" in str(caught.value)


def test_a_checkpoint_from_before_there_were_scopes_is_strict(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.claim(FINGERPRINT)
    file = tmp_path / FINGERPRINT_FILE
    fields = json.loads(file.read_text())
    del fields["scope"]
    file.write_text(json.dumps(fields))
    checkpoint.check(FINGERPRINT)
    with pytest.raises(IncompatibleCheckpointError, match="scope was strict, is aggregate"):
        checkpoint.check(replace(FINGERPRINT, scope="aggregate"))


def test_the_checkpoint_of_another_spark_query_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    with pytest.raises(IncompatibleCheckpointError, match="a Spark query of another kind"):
        Checkpoint(tmp_path).claim(FINGERPRINT)


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
    with pytest.raises(RunSettingsError, match="s3://bucket/x"):
        RunSettings.local_folder("s3://bucket/x")


def test_secrets_of_a_run_are_not_shown() -> None:
    settings = RunSettings(
        bootstrap="b:1", checkpoint=Path("c"), redis_password="hush", kafka={"sasl.password": "hush"}
    )
    assert "hush" not in repr(settings)
