"""Who is admitted over HTTP. Seen to fail: ``Gate.admit`` compares names."""

import os
from pathlib import Path

import pytest

from slackwater.cli import main
from slackwater.command.listening import Gate, Role, new_token, read_tokens
from slackwater.settings.errors import CommandConfigError

HERE = "10.0.0.7"


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


def test_the_command_prints_an_entry_and_tells_the_token_apart(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["token", "ada", "--role", "operator"]) == 0
    said = capsys.readouterr()
    path.write_text(said.out)
    token = said.err.split()[-1]
    assert Gate(path).admit(f"Bearer {token}", HERE).role is Role.OPERATOR
    assert token not in said.out


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
