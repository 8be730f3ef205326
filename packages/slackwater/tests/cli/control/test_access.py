"""Who is admitted to the control plane, and how often.

How the promises were seen to fail. Tokens: ``Gate.admit`` compares names. Rates: ``RateLimit.take`` gives
everybody the burst anew.
"""

import asyncio
import os
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.server import ServerState

from slackwater.cli import main
from slackwater.cli.control.access import RateLimit
from slackwater.cli.control.server import check_control, web_config
from slackwater.command.tokens import Gate, Role, new_token, read_tokens
from slackwater.protocol import SystemClock
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import ControlSection

HERE = "10.0.0.7"


class HandClock(SystemClock):
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def test_a_token_names_its_holder_and_the_role(path: Path) -> None:
    tokens = {
        name: new_token(name, role) for name, role in (("grafana", Role.VIEWER), ('a"da', Role.OPERATOR))
    }
    path.write_text("".join(entry for _, entry in tokens.values()))
    gate = Gate(path)
    for name, role in (("grafana", Role.VIEWER), ('a"da', Role.OPERATOR)):
        found = gate.admit(f"Bearer {tokens[name][0]}", HERE)
        assert (found.name, found.role) == (name, role)
        assert tokens[name][0] not in path.read_text()
    assert len({token for token, _ in tokens.values()}) == 2


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer x", "Basic {}", "Bearer {}x", "Bearer {} {}", "{}"]
)
def test_nobody_else_is_admitted(path: Path, authorization: str) -> None:
    token, entry = new_token("ada", Role.OPERATOR)
    path.write_text(entry)
    found = Gate(path).admit(authorization.format(token, token), HERE)
    assert (found.name, found.role) == (HERE, None)


def test_the_hash_is_no_token(path: Path) -> None:
    path.write_text(new_token("ada", Role.OPERATOR)[1])
    assert Gate(path).admit(f"Bearer {read_tokens(path)[0].sha256}", HERE).role is None


def test_without_a_file_everybody_reads_and_nobody_decides() -> None:
    token, _ = new_token("ada", Role.OPERATOR)
    for authorization in ("", f"Bearer {token}"):
        assert Gate(None).admit(authorization, HERE).role is Role.VIEWER


def test_changes_of_the_file_are_obeyed_and_mistakes_are_not(path: Path) -> None:
    (one, one_entry), (two, two_entry) = (new_token(name, Role.VIEWER) for name in ("one", "two"))

    def write(text: str) -> None:
        path.write_text(text)
        os.utime(path, ns=(len(text), len(text)))

    write(one_entry)
    gate = Gate(path)
    assert gate.admit(f"Bearer {two}", HERE).role is None
    write(one_entry + two_entry)
    assert gate.admit(f"Bearer {two}", HERE).role is Role.VIEWER
    write("[[tokens]")
    assert gate.admit(f"Bearer {two}", HERE).role is Role.VIEWER
    assert str(path) in str(gate.fault)
    write(two_entry)
    assert gate.admit(f"Bearer {one}", HERE).role is None
    assert gate.fault is None
    path.unlink()
    assert gate.admit(f"Bearer {two}", HERE).role is Role.VIEWER


@pytest.mark.parametrize(
    "text",
    [
        "tokens = 1",
        '[[tokens]]\nname = "a"\nrole = "root"\nsha256 = ""',
        '[[tokens]]\nname = "a"\nrole = "viewer"',
        '[[token]]\nname = "a"',
        '[[tokens]]\nname = "a"\nrole = "viewer"\nsha256 = ""\ntoken = "x"',
        "\x00",
    ],
)
def test_a_file_that_cannot_be_used_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(CommandConfigError, match=r"tokens\.toml cannot be used"):
        Gate(path)


def test_a_client_may_ask_at_its_rate_and_for_a_moment_more_often() -> None:
    clock = HandClock()
    limit = RateLimit(2, 4, clock)
    assert [limit.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert limit.take("b") == 0
    clock.seconds = 1.0
    assert [limit.take("a") for _ in range(3)] == [0, 0, 0.5]
    clock.seconds = 100.0
    assert [limit.take("a") > 0 for _ in range(5)] == [False] * 4 + [True]


def test_only_so_many_clients_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.cli.control.access._MANY_CLIENTS", 2)
    limit = RateLimit(1, 1, HandClock())
    assert [limit.take(name) > 0 for name in "abacba"] == [False, False, True, False, False, False]


def test_the_command_prints_an_entry_and_tells_the_token_apart(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["token", "ada", "--role", "operator"]) == 0
    said = capsys.readouterr()
    path.write_text(said.out)
    token = said.err.split()[-1]
    assert Gate(path).admit(f"Bearer {token}", HERE).role is Role.OPERATOR
    assert token not in said.out


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.1.2.3:80", ":0"])
def test_this_machine_needs_no_tokens(listen: str) -> None:
    check_control(ControlSection(listen=listen))


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:80", "db.example:80"])
def test_other_machines_do(listen: str, path: Path) -> None:
    with pytest.raises(CommandConfigError, match="other machines could read everything"):
        check_control(ControlSection(listen=listen))
    path.write_text("")
    check_control(ControlSection(listen=listen, tokens=path))
    check_control(ControlSection(listen=listen, certificate=path, key=path, client_ca=path))
    with pytest.raises(CommandConfigError, match="other machines could read everything"):
        check_control(ControlSection(listen=listen, certificate=path, key=path))


def test_files_of_tls_need_each_other(path: Path) -> None:
    for name in ("certificate", "key", "client_ca"):
        settings = ControlSection.model_validate({"listen": "127.0.0.1:0", name: path})
        with pytest.raises(CommandConfigError, match=r"control\."):
            check_control(settings)


def test_a_file_that_comes_back_is_obeyed(path: Path) -> None:
    (one, one_entry), (two, two_entry) = (new_token(name, Role.VIEWER) for name in ("one", "two"))
    path.write_text(one_entry)
    gate = Gate(path)
    path.unlink()
    assert gate.admit(f"Bearer {one}", HERE).role is Role.VIEWER
    assert "cannot be used" in str(gate.fault)
    assert gate.admit(f"Bearer {two}", HERE).role is None
    path.write_text(two_entry)
    assert gate.admit(f"Bearer {two}", HERE).role is Role.VIEWER
    assert gate.admit(f"Bearer {one}", HERE).role is None
    assert gate.fault is None


def test_a_file_that_changes_without_another_size_is_obeyed(path: Path) -> None:
    (_, one_entry), (two, two_entry) = (new_token(name, Role.VIEWER) for name in ("one", "two"))
    path.write_text(one_entry)
    gate = Gate(path)
    with path.open("r+") as file:
        file.write(two_entry)
    os.utime(path, ns=(1, 1))
    assert gate.admit(f"Bearer {two}", HERE).role is Role.VIEWER


def test_a_file_that_replaces_one_of_the_same_size_and_time_is_obeyed(path: Path) -> None:
    (_, one_entry), (two, two_entry) = (new_token(name, Role.VIEWER) for name in ("one", "two"))
    other = path.with_name("other.toml")
    for file, entry in ((path, one_entry), (other, two_entry)):
        file.write_text(entry)
        os.utime(file, ns=(1, 1))
    gate = Gate(path)
    other.replace(path)
    assert gate.admit(f"Bearer {two}", HERE).role is Role.VIEWER


def test_spaces_around_a_token_and_capitals_of_its_hash_do_not_matter(path: Path) -> None:
    token, entry = new_token("ada", Role.VIEWER)
    key, _, digest = entry.rpartition("sha256 = ")
    path.write_text(f"{key}sha256 = {digest.upper()}")
    assert Gate(path).admit(f"Bearer  {token} ", HERE).role is Role.VIEWER


def test_the_web_server_has_its_limits_and_asks_for_certificates(path: Path) -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    plain = web_config(ControlSection(listen="127.0.0.1:0"), app)
    assert (plain.limit_concurrency, plain.h11_max_incomplete_event_size) == (256, 16 << 10)
    assert (plain.timeout_keep_alive, plain.proxy_headers, plain.server_header) == (30, False, False)
    assert (plain.access_log, plain.ws, plain.lifespan) == (False, "none", "off")
    assert (plain.ssl_certfile, plain.ssl_ca_certs) == (None, None)
    asking = web_config(ControlSection(listen="x:0", certificate=path, key=path, client_ca=path), app)
    assert asking.ssl_cert_reqs == ssl.CERT_REQUIRED
    assert (asking.ssl_certfile, asking.ssl_keyfile, asking.ssl_ca_certs) == (path, path, str(path))
    assert web_config(ControlSection(certificate=path, key=path), app).ssl_cert_reqs == ssl.CERT_NONE


class Wire(asyncio.Transport):
    """A connection that leads nowhere."""

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_of_too_many_connections_those_end_that_have_asked_for_nothing_for_longest() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    async def connect() -> list[Wire]:
        config = web_config(ControlSection(listen="127.0.0.1:0"), app)
        config.load()
        protocol: Any = config.http_protocol_class
        state, wires = ServerState(), [Wire() for _ in range(130)]
        for number, wire in enumerate(wires):
            connection = protocol(config, state, {})
            connection.connection_made(wire)
            if number == 0:
                connection.cycle = SimpleNamespace(response_complete=False)  # it is being answered
        return wires

    ended = [number for number, wire in enumerate(asyncio.run(connect())) if wire.is_aborted]
    assert ended == [1, 2]
