"""What a run needs on its machine is checked before Spark starts, and by a dry run."""

import os
from pathlib import Path

import pytest

from slackwater.pipeline.checkpoint import Checkpoint
from slackwater.pipeline.session import starting_spark
from slackwater.pipeline.settings import RunSettings
from slackwater.pipeline.spark_home import fault_of_java
from slackwater.protocol import ConfigError, KafkaSettings, Servers


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java of the version that a test writes; it cannot be started."""
    (tmp_path / "java" / "bin").mkdir(parents=True)
    (tmp_path / "java" / "bin" / "java").touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    return tmp_path / "java"


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_412", "16"])
def test_an_old_java_is_refused_by_its_version(java_home: Path, version: str) -> None:
    (java_home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    assert fault_of_java() == f"{java_home / 'bin/java'} is Java {version}"


@pytest.mark.parametrize("text", ['JAVA_VERSION="17.0.9"', 'JAVA_VERSION="21"', "", None])
def test_a_new_java_and_one_that_does_not_say_its_version_are_tried(
    java_home: Path, text: str | None
) -> None:
    if text is not None:
        (java_home / "release").write_text(text)
    assert fault_of_java() is None


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert fault_of_java() == "JAVA_HOME is /nowhere, which has no bin/java"


def settings(checkpoint: Path, log: Path) -> RunSettings:
    return RunSettings(servers=Servers(KafkaSettings("k:1"), None), checkpoint=str(checkpoint), spark_log=log)


def test_a_run_is_refused_before_spark_starts(java_home: Path, tmp_path: Path) -> None:
    (java_home / "release").write_text('JAVA_VERSION="11.0.22"')
    with (
        pytest.raises(ConfigError, match=r"is Java 11\.0\.22"),
        starting_spark("p", settings(tmp_path / "c", tmp_path / "spark.log")),
    ):
        pass


def test_a_checkpoint_that_is_no_folder_is_refused_before_spark_starts(
    java_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="file is not a folder"),
        starting_spark("p", settings(tmp_path / "file" / "c", tmp_path / "spark.log")),
    ):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Checkpoint(str(tmp_path / "a" / "b")).fault_of_folder() is None
    assert Checkpoint("s3a://bucket/a").fault_of_folder() is None
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert Checkpoint(str(tmp_path / "a" / "b")).fault_of_folder() == f"{tmp_path} cannot be written"
