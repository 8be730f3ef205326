"""``slackwater run``: what reaches the library, from flags, environment and file alike."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import slackwater.pipeline
from slackwater.cli import main
from slackwater.cli.commands.run import batch_line, default_index_root
from slackwater.outputs.kafka.answers import answered
from slackwater.pipeline import BatchProgress, PipelineDefinition, RunSettings, runner, session
from slackwater.protocol import RedisSettings, RegistrySettings

PIPELINE = {
    "pipeline.toml": 'name = "p"\nsource = "inv"\n',
    "schema.sql": "CREATE TABLE inventory.a (id bigint PRIMARY KEY, n int NOT NULL);",
    "views/v.sql": "SELECT TRANSACTIONALLY a.id, a.n FROM inventory.a a GROUP BY a.id",
}
FILE = """
[kafka]
bootstrap = "h:1"
[redis]
url = "redis://:s3cret@r:2"
[run]
checkpoint = "c"
available_now = true
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in PIPELINE.items():
        path = tmp_path / "pipeline" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "pipeline"


@contextmanager
def no_spark(_name: str, settings: RunSettings, *, stop: threading.Event) -> Iterator[Callable[[], object]]:
    assert not stop.is_set()
    assert settings.spark_log is not None
    yield object


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PipelineDefinition, RunSettings]]:
    """What was run, instead of running it."""
    calls: list[tuple[PipelineDefinition, RunSettings]] = []

    def record(
        definition: PipelineDefinition,
        settings: RunSettings,
        _on_progress: Callable[[BatchProgress], None],
        *,
        stop: threading.Event,
        context: Callable[[], object],
        on_step: Callable[[str], None],
        on_turn: Callable[[bool], None],
    ) -> None:
        assert not stop.is_set()
        on_turn(False)
        on_step("asking Kafka")
        calls.append((definition, settings))

    monkeypatch.setattr(runner, "run_pipeline", record)
    monkeypatch.setattr(session, "starting_spark", no_spark)
    return calls


def expect(runs: list[tuple[PipelineDefinition, RunSettings]], checkpoint: str) -> None:
    ((definition, settings),) = runs
    assert definition.name == "p"
    assert settings.servers.kafka.bootstrap == "h:1"
    assert settings.servers.redis == RedisSettings("redis://r:2", "s3cret")
    assert settings.checkpoint == checkpoint
    assert settings.available_now


def test_flags_reach_the_run(folder: Path, runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_REDIS_PASSWORD", "s3cret")
    flags = [
        "--bootstrap",
        "h:1",
        "--redis-url",
        "redis://r:2",
        "--checkpoint",
        "c",
        "--available-now",
    ]
    assert main.run(["run", str(folder), *flags]) == 0
    expect(runs, "c")
    assert not runs[0][1].accept_changed_output


def test_a_changed_output_is_accepted_by_a_flag(folder: Path, runs: list[Any]) -> None:
    flags = ["--bootstrap", "h:1", "--checkpoint", "c", "--accept-changed-output"]
    assert main.run(["run", str(folder), *flags]) == 0
    assert runs[0][1].accept_changed_output


def test_a_run_begins_with_the_state_of_a_folder_or_of_an_installed_pipeline(
    folder: Path, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", str(folder), "--bootstrap", "h:1", "--checkpoint", "c"]
    assert main.run([*run, "--copy-state-of", str(folder)]) == 0
    assert runs.pop()[1].copy_state_of == (folder,)
    assert main.run(run) == 0
    assert runs.pop()[1].copy_state_of == ()
    assert main.run([*run, "--copy-state-of", "nowhere"]) == 1
    assert "nor an installed pipeline of that name" in capsys.readouterr().err


def test_a_run_says_what_it_waits_for(
    folder: Path, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["run", str(folder), "--bootstrap", "h:1", "--checkpoint", "c"]) == 0
    assert "p: asking Kafka\n" in capsys.readouterr().out


@pytest.mark.full
def test_a_broker_that_is_away_is_waited_for_in_sight(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything else is started."""

    def away(settings: Any, **_: Any) -> None:
        with answered(settings, "reading"):
            raise KafkaException(KafkaError(KafkaError.NETWORK_EXCEPTION, "no broker"))

    monkeypatch.setattr("slackwater.outputs.kafka.sink.newest_progress", away)
    assert main.run(["run", str(folder), "--bootstrap", "h:1", "--checkpoint", "c"]) == 1
    told = capsys.readouterr()
    assert re.search(r"p: asking Kafka at h:1 for its progress, until \d\d:\d\d:\d\d UTC if", told.out)
    assert "Kafka at h:1 did not complete reading: no broker; check that this address is right" in told.err


def test_the_environment_reaches_the_run(
    folder: Path, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_BOOTSTRAP", "h:1")
    monkeypatch.setenv("SLACKWATER_REDIS_URL", "redis://:s3cret@r:2")
    monkeypatch.setenv("SLACKWATER_CHECKPOINT", "c")
    monkeypatch.setenv("SLACKWATER_AVAILABLE_NOW", "true")
    assert main.run(["run", str(folder)]) == 0
    expect(runs, "c")


def test_the_file_reaches_the_run(folder: Path, runs: list[Any]) -> None:
    config = folder.parent / "etc" / "s.toml"
    config.parent.mkdir()
    config.write_text(FILE)
    assert main.run(["--config", str(config), "run", str(folder)]) == 0
    expect(runs, str(config.parent / "c"))


def test_the_schema_registry_of_the_source_reaches_the_run(folder: Path, runs: list[Any]) -> None:
    config = folder.parent / "s.toml"
    registry = 'url = "http://s:1"\nuser = "u"\npassword = "p"'
    config.write_text(f"{FILE}[registry]\n{registry}\n")
    assert main.run(["--config", str(config), "run", str(folder)]) == 0
    ((_, settings),) = runs
    assert settings.servers.registry == RegistrySettings(url="http://s:1", user="u", password="p")


def test_a_folder_without_pipeline_is_one_clear_error(
    runs: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--bootstrap", "h:1", "--checkpoint", str(tmp_path / "c")]
    assert main.run(["run", str(tmp_path / "nothing"), *flags]) == 1
    message = capsys.readouterr().err
    assert "pipeline.toml" in message
    assert "Traceback" not in message
    assert runs == []


def test_a_run_needs_a_checkpoint(folder: Path, runs: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", str(folder), "--bootstrap", "h:1"]) == 2
    assert "--checkpoint" in capsys.readouterr().err
    assert runs == []


def test_a_batch_is_told_with_its_lag_and_its_parts_in_their_order() -> None:
    commit = datetime(2026, 1, 1, tzinfo=UTC)
    batch = BatchProgress(
        pipeline="orders",
        source="inv",
        timeline=1,
        batch_id=4,
        commit_lsn=255,
        committed_at=commit,
        visible_at=commit + timedelta(milliseconds=420),
        events=1500,
        transactions=12,
        documents=300,
        deletes=3,
        was_covered=False,
        seconds={"plan": 0.001, "read": 0.0009, "evaluate": 1.5, "commit": 0.0204},
    )
    line = batch_line(batch)
    assert line == (
        "orders: batch 4 at 0/FF: 1,500 events, 300 documents, visible 420 ms after its newest commit "
        "(plan 0.001 s, evaluate 1.500 s, commit 0.020 s)"
    )


@pytest.mark.parametrize(("setting", "is_used"), [("", True), ("class_archive = false\n", False)])
def test_an_archive_of_classes_is_used_unless_it_is_switched_off(
    folder: Path,
    runs: list[tuple[PipelineDefinition, RunSettings]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    is_used: bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "slackwater.toml").write_text(FILE + setting)
    assert main.run(["run", str(folder)]) == 0
    ((_, settings),) = runs
    assert settings.class_archives == (tmp_path / "slackwater" / "spark" if is_used else None)


def test_classes_are_archived_in_the_user_s_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(slackwater.pipeline, "make_class_archive", lambda folder: folder / "made")
    assert main.run(["archive-classes"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/slackwater/spark/made\n"


def test_without_a_place_for_archives_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slackwater.pipeline, "default_class_archives", lambda _: None)
    assert main.run(["archive-classes"]) == 1
    assert "nor XDG_CACHE_HOME is set" in capsys.readouterr().err


def test_indexes_outlive_a_run_on_this_machine(tmp_path: Path) -> None:
    root = default_index_root({"XDG_CACHE_HOME": str(tmp_path)})
    assert root == tmp_path / "slackwater" / "indexes"
    assert root.is_dir()


def test_indexes_without_a_place_are_left_to_spark(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    assert default_index_root({"XDG_CACHE_HOME": str(blocked)}) is None


@pytest.mark.full
def test_a_dry_run_without_a_broker_still_says_all_that_it_knows(
    folder: Path,
    runs: list[tuple[PipelineDefinition, RunSettings]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    flags = ["--bootstrap", "127.0.0.1:1", "--redis-url", "redis://127.0.0.1:1", "--checkpoint", "c"]
    assert main.run(["run", str(folder), *flags, "--dry-run"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == f"ok       checkpoint: {Path.cwd() / 'c'} is new: the run starts at the beginning of the topics"
    )
    assert lines[1] == "problem  java: JAVA_HOME is /nowhere, which has no bin/java"
    assert lines[3].startswith("warning  redis: ")
    assert any(line.startswith("problem  brokers: 127.0.0.1:1 did not answer within 5 s: ") for line in lines)
    assert lines[-1] == "2 problems"
    assert runs == []
