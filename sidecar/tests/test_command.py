"""``slackwater-sidecar``: the same as ``slackwater sidecar``, but for the control plane."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click
import pytest

from slackwater.cli.commands.sidecar import sidecar
from slackwater.cuts import FrontierState
from slackwater_sidecar import SidecarSettings, SidecarStatus
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
    assert "run `slackwater sidecar`" in capsys.readouterr().err
    assert runs == []


def test_errors_are_lines(runs: list[SidecarSettings], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FLAGS[2:]) == 2
    assert capsys.readouterr().err.startswith("error: missing setting source")
    assert runs == []


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slackwater-sidecar 0.")


def test_without_a_terminal_a_source_has_a_line_when_its_state_changes_and_one_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("slackwater_sidecar.command.time.monotonic", lambda: now)
    status = SidecarStatus(
        source="inv",
        timeline=1,
        state=FrontierState.RUNNING,
        detail="",
        lsn=0,
        event_count=0,
        records_read=0,
        records_per_second=0,
        lag_ms=None,
        open=(),
        redis_error=None,
    )

    def follow(_: object, show: Callable[[SidecarStatus], None], **__: object) -> None:
        nonlocal now
        for second, changes in enumerate([{}, {"lsn": 16}, *[{"lsn": 17}] * 70, {"detail": "alone"}]):
            now = float(second)
            show(replace(status, **changes))  # type: ignore[arg-type]

    monkeypatch.setattr(
        "slackwater_sidecar.command.run_sidecars", lambda _, stop, show, **more: follow(stop, show, **more)
    )
    assert run(FLAGS) == 0
    told = [line.split(" | ")[1] for line in capsys.readouterr().out.splitlines() if line.startswith("inv")]
    assert told == ["no cut yet", "frontier 1/0/10", "frontier 1/0/11", "no cut yet"]
