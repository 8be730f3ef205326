"""``slackwater-sidecar``: the same as ``slackwater sidecar``, but for the control plane."""

import os
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from slackwater.commands.sidecar import sidecar
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.main import run

FLAGS = ["--source", "inv", "--bootstrap", "h:1", "--redis-url", "redis://r:2"]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[SidecarSettings]:
    """What was run, instead of running it."""
    for name in os.environ:
        if name.startswith("SLACKWATER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    calls: list[SidecarSettings] = []

    def record(settings: Sequence[SidecarSettings], *_: object, **__: object) -> None:
        calls.extend(settings)

    monkeypatch.setattr("slackwater_sidecar.command.run_sidecars", record)
    return calls


def options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_flags_environment_and_file_reach_the_sidecar(
    runs: list[SidecarSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "other.toml"
    config.write_text('[kafka]\nbootstrap = "h:1"\n[sidecar]\ntables = ["a.b"]\n')
    monkeypatch.setenv("SLACKWATER_REDIS_URL", "redis://r:2")
    log = tmp_path / "log"
    flags = ["--config", str(config), "--log-level", "debug", "--log-file", str(log), "--source", "inv"]
    assert run(flags) == 0
    (settings,) = runs
    assert (settings.source, settings.servers.kafka.bootstrap) == ("inv", "h:1")
    assert settings.tables == frozenset({"a.b"})
    assert "log_level" not in settings.servers.kafka.options  # so the level has arrived
    assert "the sidecar ended" in log.read_text()


def test_it_has_every_option_of_the_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert [option for option in options(sidecar) if option not in text] == []
    assert "slackwater sidecar" not in text


def test_it_says_how_to_get_a_control_plane(
    runs: list[SidecarSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*FLAGS, "--control", "127.0.0.1:0"]) == 2
    assert "pip install 'slackwater[control]'" in capsys.readouterr().err
    assert runs == []


def test_errors_are_lines(runs: list[SidecarSettings], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FLAGS[2:]) == 2
    assert capsys.readouterr().err.startswith("error: missing setting source")
    assert runs == []


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slackwater-sidecar 0.")
