"""The process boundary: help, versions, exit codes, errors as lines."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest

from slackwater.cli import main
from slackwater.cli.commands import status as status_module
from slackwater.observe.stopping import stop_on_signals
from slackwater.protocol import StateError, UnavailableError

COMMANDS = [
    "dev",
    "dev up",
    "dev down",
    "dev status",
    "dev read",
    "dev sql",
    "demo",
    "sidecar",
    "run",
    "schema",
    "read",
    "wait",
    "topology",
    "pipeline list",
    "acl",
    "status",
    "doctor",
    "source",
    "source show",
    "source skip",
    "source new-timeline",
    "archive-classes",
]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("SLACKWATER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def fails_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def broken() -> None:
        raise error

    monkeypatch.setattr(status_module, "status", broken)


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["statu"], "'status'"), (["source", "skp"], "'skip'"), (["status", "--sorce"], "--source")],
)
def test_a_command_or_option_that_does_not_exist_is_refused_with_what_may_be_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    assert main.run(words) == 2
    assert meant in capsys.readouterr().err.partition("Did you mean")[2]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in main.COMMANDS)


@pytest.mark.parametrize("command", main.COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each(command: str) -> None:
    found = main.cli.get_command(click.Context(main.cli), command)
    assert found is not None
    first, _, _ = (found.help or "").partition("\n\n")
    assert " ".join(first.split()) == main.first_sentence(command)


@pytest.mark.parametrize("command", [*COMMANDS, "schema pull", "schema outputs", "config"])
def test_every_help_text_says_what_it_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: slackwater {command}")
    assert len(text.splitlines()) > 6


def test_help_imports_no_heavy_library() -> None:
    heavy = {"pydantic", "rich", "redis", "confluent_kafka", "pyspark", "psycopg", "duckdb"}
    code = "import sys; from slackwater.cli import main; main.run(['--help'])"
    code = f"{code}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slackwater 0.")


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["stauts"]) == 2
    assert "stauts" in capsys.readouterr().err


def test_an_unknown_flag_is_wrong_usage() -> None:
    assert main.run(["status", "--sauce", "x"]) == 2


def test_a_missing_setting_says_all_three_ways_to_give_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["status", "--source", "inv"]) == 2
    message = capsys.readouterr().err
    assert "--redis-url" in message
    assert "SLACKWATER_REDIS_URL" in message
    assert "[redis]" in message


def test_an_error_is_a_line_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(
        UnavailableError("topic orders cannot be read: it does not exist", "check the name"),
        monkeypatch,
    )
    assert main.run(["status"]) == 1
    assert capsys.readouterr().err.startswith("error: topic orders cannot be read: it does not exist")


def test_an_unexpected_error_names_its_type_and_the_way_to_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(RuntimeError("boom"), monkeypatch)
    assert main.run(["status"]) == 1
    message = capsys.readouterr().err
    assert "RuntimeError: boom" in message
    assert "--debug" in message
    assert "Traceback" not in message


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(RuntimeError("boom"), monkeypatch)
    assert main.run(["--debug", "status"]) == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("SLACKWATER_DEBUG", "1")
    assert main.run(["status"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interruption_ends_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(KeyboardInterrupt(), monkeypatch)
    assert main.run(["status"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_a_redis_that_is_away_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLACKWATER_REDIS_URL", "redis://:s3cret@127.0.0.1:1")
    assert main.run(["status", "--source", "inv"]) == 1
    message = capsys.readouterr().err
    assert "127.0.0.1:1" in message
    assert "s3cret" not in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["status", "--redis-url", "127.0.0.1:6379"],
            2,
            "error: setting redis.url (from flag): expected redis://",
        ),
        (
            ["status", "--redis-url", "redis://nowhere.invalid"],
            1,
            "error: Redis nowhere.invalid",
        ),
        (
            ["schema", "pull", "--postgres-url", "mysql://h/d"],
            2,
            "error: setting postgres.url (from flag): expected",
        ),
        (
            ["schema", "pull", "--postgres-url", "postgresql://u@127.0.0.1:1/d"],
            1,
            "error: PostgreSQL does not",
        ),
        (
            ["schema", "pull", "--postgres-url", "postgresql://u@h:port/d"],
            1,
            "error: PostgreSQL does not",
        ),
        (
            ["schema", "pull", "--postgres-url", "postgresql://u:s3cret@h/d"],
            2,
            "error: setting postgres.url (from flag): it holds a password",
        ),
        (
            ["run", "p", "--bootstrap", "h:port"],
            2,
            "error: setting kafka.bootstrap (from flag): expected host:port",
        ),
    ],
)
def test_an_address_that_is_wrong_or_leads_nowhere_is_an_expected_error(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    always = {"status": ["--source", "inv"], "schema": ["--table", "s.t"], "run": ["--checkpoint", "c"]}
    assert main.run([*arguments, *always[arguments[0]]]) == code
    message = capsys.readouterr().err
    assert message.startswith(said)
    assert "unexpected" not in message
    assert "s3cret" not in message


def test_config_shows_values_and_origins_but_no_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLACKWATER_REDIS_URL", "redis://:s3cret@host")
    Path("slackwater.toml").write_text('source = "inv"\n')
    assert main.run(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["source", "inv", "slackwater.toml"] for line in lines)
    assert any("redis.url" in line and "environment SLACKWATER_REDIS_URL" in line for line in lines)
    assert not any("s3cret" in line for line in lines)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_first_signal_asks_to_stop(number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    with stop_on_signals("it") as stop:
        assert not stop.event.is_set()
        os.kill(os.getpid(), number)
        assert stop.event.wait(300)
        assert stop.exit_code == code
    assert signal.getsignal(number) is before


def test_a_server_that_is_away_when_a_stop_was_asked_for_is_no_failure() -> None:
    def end(error: Exception, *, is_asked: bool) -> None:
        with stop_on_signals("it") as stop:
            if is_asked:
                os.kill(os.getpid(), signal.SIGTERM)
                assert stop.event.wait(300)
            raise error

    away, gone = UnavailableError("Kafka is away", "wait"), StateError("records are gone", "look")
    end(away, is_asked=True)
    with pytest.raises(UnavailableError):
        end(away, is_asked=False)
    with pytest.raises(StateError):
        end(gone, is_asked=True)


def test_without_a_signal_the_exit_code_is_zero() -> None:
    with stop_on_signals("it") as stop:
        assert stop.exit_code == 0
        assert isinstance(stop.event, threading.Event)


@pytest.mark.parametrize(
    ("words", "completed"), [("slackwater sc", "schema"), ("slackwater run --check", "--checkpoint")]
)
def test_the_shell_completes_commands_and_options(words: str, completed: str) -> None:
    code = "from slackwater.cli.main import main; main()"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    environment = os.environ | {"_SLACKWATER_COMPLETE": "bash_complete"} | asked
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"plain,{completed}"], done.stderr
