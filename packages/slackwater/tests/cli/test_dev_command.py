"""``slackwater dev up``: the settings that it leaves, and the command that it names."""

import tomllib
from pathlib import Path

import pytest

import slackwater.dev
from slackwater.cli import main
from slackwater.cli.commands.dev import FIRST_LINE, settings_text
from slackwater.dev import DevStackSettings, ServerStatus, StackStatus
from slackwater.settings.loading import load_settings

ADDRESSES = {
    "postgres": "postgresql://postgres@127.0.0.1:5/inventory",
    "kafka": "127.0.0.1:6",
    "redis": "redis://127.0.0.1:7/0",
    "connect": "http://127.0.0.1:8",
}


@pytest.fixture(autouse=True)
def _stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stack that only says where it is."""
    monkeypatch.chdir(tmp_path)

    def up(settings: DevStackSettings, _progress: object) -> StackStatus:
        servers = tuple(
            ServerStatus(
                name=name,
                address=address,
                version="1",
                log=Path("log"),
                process=None,
            )
            for name, address in ADDRESSES.items()
            if settings.connect or name != "connect"
        )
        return StackStatus(
            folder=settings.folder, prefix=settings.prefix, database=settings.database, servers=servers
        )

    monkeypatch.setattr(slackwater.dev, "up", up)


def test_all_commands_find_the_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["dev", "up", "--source", "erp", "--folder", "stack"]) == 0
    out = capsys.readouterr().out
    assert "slackwater.toml was written: commands that you start in this folder use these servers" in out
    assert "next: slackwater dev sql FILE" in out
    assert "slackwater dev up   " not in out
    settings = load_settings({}, {}).settings
    assert (settings.source, settings.kafka.bootstrap) == ("erp", ADDRESSES["kafka"])
    assert settings.redis.url is not None
    assert settings.redis.url == ADDRESSES["redis"]
    assert settings.postgres.url is not None
    assert settings.postgres.url == ADDRESSES["postgres"]
    assert (settings.connect.url, settings.connect.database_user) == (ADDRESSES["connect"], "postgres")
    assert settings.dev.folder == tmp_path / "stack"


def test_the_next_start_writes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main.run(["dev", "up"]) == 0
    monkeypatch.setitem(ADDRESSES, "kafka", "127.0.0.1:9")
    assert main.run(["dev", "up"]) == 0
    assert load_settings({}, {}).settings.kafka.bootstrap == "127.0.0.1:9"


def test_a_file_of_somebody_else_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    own = 'source = "own"\n'
    Path("slackwater.toml").write_text(own)
    assert main.run(["dev", "up"]) == 0
    assert Path("slackwater.toml").read_text() == own
    out = capsys.readouterr().out
    assert "slackwater.toml is your own file and was not changed; for these servers it needs:" in out
    assert "  kafka.bootstrap = 127.0.0.1:6" in out


def test_without_a_connector_another_start_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["dev", "up", "--no-connect"]) == 0
    assert "slackwater dev up                   start the connector" in capsys.readouterr().out
    assert Path("slackwater.toml").read_text().startswith(FIRST_LINE)


def test_the_next_start_uses_the_database_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    up = slackwater.dev.up

    def remembering(settings: DevStackSettings, progress: object) -> StackStatus:
        started.append(settings.database)
        status = up(settings, progress)  # type: ignore[arg-type]
        monkeypatch.setattr(slackwater.dev, "status", lambda _folder: status)
        return status

    monkeypatch.setattr(slackwater.dev, "up", remembering)
    for options in ([], ["--database", "shop"], []):
        assert main.run(["dev", "up", *options]) == 0
    assert started == ["inventory", "shop", "shop"]


def test_sql_without_a_database_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tables.sql").write_text("SELECT 1")
    assert main.run(["dev", "sql", "tables.sql"]) == 1
    err = capsys.readouterr().err
    assert err == ("error: no database is running in .slackwater/dev; start it with `slackwater dev up`\n")


@pytest.mark.parametrize("value", ['a "quoted" \\ path\n', "größe", "\N{GRINNING FACE}"])
def test_whatever_a_setting_holds_is_read_as_it_was_written(value: str) -> None:
    text = settings_text({"prefix": value, "kafka.bootstrap": value})
    assert tomllib.loads(text) == {"prefix": value, "kafka": {"bootstrap": value}}
