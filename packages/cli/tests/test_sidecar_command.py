"""``slackwater sidecar``: what reaches the library, from flags, environment and file alike."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import slackwater_sidecar
from slackwater import main
from slackwater_sidecar import SidecarSettings, SidecarStatus

FILE = """
source = "inv"
[kafka]
bootstrap = "h:1"
security_protocol = "SSL"
[redis]
url = "redis://:s3cret@r:2"
[sidecar]
tables = ["inventory.a", "inventory.b"]
open_after = 7
"""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[SidecarSettings]:
    """What was run, instead of running it."""
    monkeypatch.chdir(tmp_path)
    calls: list[SidecarSettings] = []

    def record(
        settings: SidecarSettings, stop: threading.Event, _on_status: Callable[[SidecarStatus], None]
    ) -> None:
        assert not stop.is_set()
        calls.append(settings)

    monkeypatch.setattr(slackwater_sidecar, "run_sidecar", record)
    return calls


def expect(runs: list[SidecarSettings]) -> None:
    (settings,) = runs
    assert settings.source == "inv"
    assert settings.bootstrap == "h:1"
    assert (settings.redis_url, settings.redis_password) == ("redis://r:2", "s3cret")
    assert settings.tables == frozenset({"inventory.a", "inventory.b"})
    assert settings.open_after == timedelta(seconds=7)
    assert settings.kafka["security.protocol"] == "SSL"


def test_flags_reach_the_sidecar(runs: list[SidecarSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_SIDECAR_TABLES", "inventory.a,inventory.b")
    monkeypatch.setenv("SLACKWATER_SIDECAR_OPEN_AFTER", "7")
    monkeypatch.setenv("SLACKWATER_KAFKA_SECURITY_PROTOCOL", "SSL")
    flags = ["--source", "inv", "--bootstrap", "h:1", "--redis-url", "redis://:s3cret@r:2"]
    assert main.run(["sidecar", *flags]) == 0
    expect(runs)


def test_the_environment_reaches_the_sidecar(
    runs: list[SidecarSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_SOURCE", "inv")
    monkeypatch.setenv("SLACKWATER_BOOTSTRAP", "h:1")
    monkeypatch.setenv("SLACKWATER_REDIS_URL", "redis://r:2")
    monkeypatch.setenv("SLACKWATER_REDIS_PASSWORD", "s3cret")
    monkeypatch.setenv("SLACKWATER_KAFKA__SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("SLACKWATER_SIDECAR__TABLES", "inventory.a, inventory.b")
    monkeypatch.setenv("SLACKWATER_SIDECAR__OPEN_AFTER", "7")
    assert main.run(["sidecar"]) == 0
    expect(runs)


def test_the_file_reaches_the_sidecar(runs: list[SidecarSettings]) -> None:
    Path("slackwater.toml").write_text(FILE)
    assert main.run(["sidecar"]) == 0
    expect(runs)


@pytest.mark.parametrize(("level", "is_quiet"), [("info", True), ("debug", False)])
def test_kafkas_own_lines_on_standard_error_are_for_debugging(
    runs: list[SidecarSettings], level: str, is_quiet: bool
) -> None:
    Path("slackwater.toml").write_text(FILE)
    assert main.run(["--log-level", level, "sidecar"]) == 0
    assert ("log_level" in runs[0].kafka) is is_quiet


def test_without_a_source_nothing_runs(
    runs: list[SidecarSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["sidecar", "--bootstrap", "h:1", "--redis-url", "redis://r:2"]) == 2
    assert "SLACKWATER_SOURCE" in capsys.readouterr().err
    assert runs == []
