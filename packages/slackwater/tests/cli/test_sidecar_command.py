"""``slackwater sidecar``: what reaches the library, from flags, environment and file alike."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from slackwater.cli import main
from slackwater.cli.commands.sidecar import alone, sidecar
from slackwater.command.listening import HttpSettings
from slackwater.cuts import FrontierState
from slackwater.protocol import Evidence, RedisSettings, RegistrySettings
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
evidence = {"inventory.a" = "overtaken"}
topics = {"inventory.b" = "routed.b"}
transaction_topic = "inv.tx"
notification_topic = "inv.note"
workers = 3
[registry]
url = "http://r:1"
"""
SEVERAL = (
    FILE.replace('source = "inv"', 'sources = ["inv", "crm"]')
    + """
[sidecar.of.crm]
tables = ["public.c"]
open_after = 60
evidence = {}
transaction_topic = "crm.tx"
timeline = 4
"""
)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[SidecarSettings]:
    """What was run, instead of running it."""
    monkeypatch.chdir(tmp_path)
    calls: list[SidecarSettings] = []

    def record(
        settings: Sequence[SidecarSettings],
        stop: threading.Event,
        on_status: Callable[[SidecarStatus], None],
        *,
        http: HttpSettings | None,
        on_http: Callable[[str], None],
        telemetry: object,
    ) -> None:
        assert not stop.is_set()
        assert telemetry is None
        calls.extend(settings)
        if http is not None:
            on_http(f"http://{http.address}")

    monkeypatch.setattr("slackwater.cli.commands.sidecar.run_sidecars", record)
    return calls


def expect(runs: list[SidecarSettings]) -> None:
    (settings,) = runs
    assert settings.source == "inv"
    assert settings.servers.kafka.bootstrap == "h:1"
    assert settings.servers.redis == RedisSettings("redis://r:2", "s3cret")
    assert settings.tables == frozenset({"inventory.a", "inventory.b"})
    assert settings.open_after == timedelta(seconds=7)
    assert settings.servers.kafka.options["security.protocol"] == "SSL"
    assert settings.evidence == {"inventory.a": Evidence.OVERTAKEN}
    topics = settings.source_topics
    assert (topics.data("inventory.a"), topics.data("inventory.b")) == ("inv.inventory.a", "routed.b")
    assert (topics.transactions, topics.notifications) == ("inv.tx", "inv.note")
    assert settings.servers.registry == RegistrySettings(url="http://r:1")
    assert settings.workers == 3


def test_credentials_of_the_schema_registry_reach_the_sidecar(
    runs: list[SidecarSettings], tmp_path: Path
) -> None:
    config = tmp_path / "s.toml"
    config.write_text(FILE + 'user = "u"\npassword = "p"\n')
    assert main.run(["--config", str(config), "sidecar"]) == 0
    (settings,) = runs
    assert settings.servers.registry == RegistrySettings(url="http://r:1", user="u", password="p")
    assert "'p'" not in repr(settings)


def test_flags_reach_the_sidecar(runs: list[SidecarSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_SIDECAR_TABLES", "inventory.a,inventory.b")
    monkeypatch.setenv("SLACKWATER_SIDECAR_OPEN_AFTER", "7")
    monkeypatch.setenv("SLACKWATER_KAFKA_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("SLACKWATER_SIDECAR_NOTIFICATION_TOPIC", "inv.note")
    monkeypatch.setenv("SLACKWATER_REGISTRY_URL", "http://r:1")
    monkeypatch.setenv("SLACKWATER_REDIS_PASSWORD", "s3cret")
    flags = ["--source", "inv", "--bootstrap", "h:1", "--redis-url", "redis://r:2"]
    flags += ["--evidence", "inventory.a=overtaken", "--topics", "inventory.b=routed.b"]
    flags += ["--transaction-topic", "inv.tx", "--workers", "3"]
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
    monkeypatch.setenv("SLACKWATER_SIDECAR_EVIDENCE", "inventory.a = overtaken")
    monkeypatch.setenv("SLACKWATER_SIDECAR_TOPICS", "inventory.b=routed.b")
    monkeypatch.setenv("SLACKWATER_SIDECAR_TRANSACTION_TOPIC", "inv.tx")
    monkeypatch.setenv("SLACKWATER_SIDECAR_NOTIFICATION_TOPIC", "inv.note")
    monkeypatch.setenv("SLACKWATER_REGISTRY_URL", "http://r:1")
    monkeypatch.setenv("SLACKWATER_SIDECAR_WORKERS", "3")
    assert main.run(["sidecar"]) == 0
    expect(runs)


def test_the_file_reaches_the_sidecar(runs: list[SidecarSettings]) -> None:
    Path("slackwater.toml").write_text(FILE)
    assert main.run(["sidecar"]) == 0
    expect(runs)


def test_several_sources_differ_where_the_file_says_so(runs: list[SidecarSettings]) -> None:
    Path("slackwater.toml").write_text(SEVERAL)
    assert main.run(["sidecar"]) == 0
    inv, crm = runs
    assert (inv.source, inv.timeline, inv.open_after) == ("inv", 1, timedelta(seconds=7))
    assert (crm.source, crm.timeline, crm.open_after) == ("crm", 4, timedelta(seconds=60))
    assert (inv.tables, crm.tables) == (frozenset({"inventory.a", "inventory.b"}), frozenset({"public.c"}))
    assert (len(inv.evidence), len(crm.evidence)) == (1, 0)
    assert (inv.source_topics.transactions, crm.source_topics.transactions) == ("inv.tx", "crm.tx")
    assert crm.source_topics.notifications == "inv.note"


def test_flags_name_several_sources_and_win_over_the_file(runs: list[SidecarSettings]) -> None:
    Path("slackwater.toml").write_text(SEVERAL)
    assert main.run(["sidecar", "--source", "erp", "--source", "inv", "--source", "erp"]) == 0
    assert [settings.source for settings in runs] == ["erp", "inv"]


def test_the_address_of_the_pages_is_shown(
    runs: list[SidecarSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("slackwater.toml").write_text(FILE)
    assert main.run(["sidecar", "--http", "127.0.0.1:8085"]) == 0
    assert "answering at http://127.0.0.1:8085" in capsys.readouterr().out


def test_an_unknown_kind_of_evidence_is_refused_with_the_known_ones(
    runs: list[SidecarSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("slackwater.toml").write_text(FILE.replace("overtaken", "hope"))
    assert main.run(["sidecar"]) == 2
    message = capsys.readouterr().err
    assert "sidecar.evidence" in message
    assert "'overtaken'" in message
    assert runs == []


@pytest.mark.parametrize(("level", "is_quiet"), [("info", True), ("debug", False)])
def test_kafkas_own_lines_on_standard_error_are_for_debugging(
    runs: list[SidecarSettings], level: str, is_quiet: bool
) -> None:
    Path("slackwater.toml").write_text(FILE)
    assert main.run(["--log-level", level, "sidecar"]) == 0
    assert ("log_level" in runs[0].servers.kafka.options) is is_quiet


def test_without_a_source_nothing_runs(
    runs: list[SidecarSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["sidecar", "--bootstrap", "h:1", "--redis-url", "redis://r:2"]) == 2
    assert "SLACKWATER_SOURCE" in capsys.readouterr().err
    assert runs == []


def test_an_address_of_a_schema_registry_with_credentials_is_refused_without_repeating_them(
    runs: list[SidecarSettings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "s.toml"
    config.write_text(FILE.replace("http://r:1", "http://u:geheim@r:1"))
    assert main.run(["--config", str(config), "sidecar"]) == 2
    told = capsys.readouterr().err
    assert f"setting registry (from {config}): the schema registry's address contains credentials" in told
    assert "geheim" not in told
    assert runs == []


FLAGS = ["--source", "inv", "--bootstrap", "h:1", "--redis-url", "redis://r:2"]


def test_flags_environment_and_file_reach_the_program_of_its_own(
    runs: list[SidecarSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "other.toml"
    config.write_text('[kafka]\nbootstrap = "h:1"\n[sidecar]\ntables = ["a.b"]\n')
    monkeypatch.setenv("SLACKWATER_REDIS_URL", "redis://r:2")
    log = tmp_path / "log"
    flags = ["--config", str(config), "--log-level", "debug", "--log-file", str(log), "--source", "inv"]
    assert main.run_sidecar(flags) == 0
    (settings,) = runs
    assert (settings.source, settings.servers.kafka.bootstrap) == ("inv", "h:1")
    assert settings.tables == frozenset({"a.b"})
    assert "log_level" not in settings.servers.kafka.options  # so the level has arrived
    assert "the sidecar ended" in log.read_text()


def test_the_program_of_its_own_has_every_option_and_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_sidecar(["--help"]) == 0
    text = capsys.readouterr().out
    assert [option for each in sidecar.params for option in each.opts if option not in text] == []
    assert "slackwater sidecar" not in text
    assert {each.name for each in alone.params} > {each.name for each in sidecar.params}


def test_the_program_of_its_own_serves_the_control_plane(
    runs: list[SidecarSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run_sidecar([*FLAGS, "--control", "127.0.0.1:0"]) == 0
    assert "control plane: http://127.0.0.1:" in capsys.readouterr().out
    assert [settings.source for settings in runs] == ["inv"]


def test_errors_of_the_program_of_its_own_are_lines(
    runs: list[SidecarSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run_sidecar(FLAGS[2:]) == 2
    assert capsys.readouterr().err.startswith("error: missing setting source")
    assert runs == []


def test_the_program_of_its_own_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_sidecar(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slackwater-sidecar 0.")


def test_without_a_terminal_a_source_has_a_line_when_its_state_changes_and_one_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("slackwater.cli.commands.sidecar.time.monotonic", lambda: now)
    status = SidecarStatus(
        source="inv",
        timeline=1,
        state=FrontierState.RUNNING,
        detail="",
        lsn=0,
        event_count=0,
        records_read=0,
        records_per_second=0,
        delay_ms=None,
        open=(),
        redis_error=None,
    )

    def follow(_: object, show: Callable[[SidecarStatus], None], **__: object) -> None:
        nonlocal now
        for second, changes in enumerate([{}, {"lsn": 16}, *[{"lsn": 17}] * 70, {"detail": "alone"}]):
            now = float(second)
            show(replace(status, **changes))  # type: ignore[arg-type]

    monkeypatch.setattr(
        "slackwater.cli.commands.sidecar.run_sidecars",
        lambda _, stop, show, **more: follow(stop, show, **more),
    )
    assert main.run(["sidecar", *FLAGS]) == 0
    told = [line.split(" | ")[1] for line in capsys.readouterr().out.splitlines() if line.startswith("inv")]
    assert told == ["no cut yet", "frontier 1/0/10", "frontier 1/0/11", "no cut yet"]
