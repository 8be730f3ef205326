"""``slackwater-certify``: its settings, its exit codes, and what it says."""

from pathlib import Path

import pytest

from slackwater_certify import Certificate, Connections, Specification, command
from slackwater_certify.certifier import judge
from slackwater_certify.output import OutputRecords
from slackwater_certify.view import load_view
from slackwater_lab.fakes.certified import RightOutput, SourceLog, order, write_specification


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Connections]:
    """Outputs come from memory; returns the connections that were asked for."""
    log, found = SourceLog(), list[Connections]()
    log.commit(("orders", 1, order(1, "0.00")))

    def certify(specification: Specification, connections: Connections, **options: object) -> Certificate:
        found.append(connections)
        records = OutputRecords(RightOutput.publish(log).outputs)
        return judge(specification, load_view(specification), records, None)

    monkeypatch.setattr(command, "certify", certify)
    return found


def test_a_file_has_the_settings_of_brokers_and_of_a_registry(
    asked: list[Connections], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_specification(tmp_path)
    file = tmp_path / "client.properties"
    file.write_text(
        "# the settings of our cluster\n\nsecurity.protocol = SASL_SSL\nsasl.password=a=b\n"
        "schema.registry.url=https://registry\nbasic.auth.user.info=me:pass:word\n"
    )
    given = [str(tmp_path), "--bootstrap", "here:1", "--kafka-config", str(file)]
    assert command.main([*given, "--json", str(tmp_path / "out" / "c.json")]) == 0
    assert (tmp_path / "out" / "c.json").exists()
    assert capsys.readouterr().out.endswith("clean\n")
    (connections,) = asked
    assert connections.kafka == {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}
    assert connections.registry == "https://registry"
    assert (connections.registry_user, connections.registry_password) == ("me", "pass:word")


@pytest.mark.parametrize(
    ("text", "problem"), [("no setting", "line 1: expected a setting"), (None, "cannot be read")]
)
def test_a_file_that_has_no_settings_is_refused(
    text: str | None, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_specification(tmp_path)
    file = tmp_path / "client.properties"
    if text is not None:
        file.write_text(text)
    assert command.main([str(tmp_path), "--kafka-config", str(file)]) == 2
    assert problem in capsys.readouterr().err


def test_what_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.main([str(tmp_path)]) == 2
    assert "certify.toml: No such file" in capsys.readouterr().err
    write_specification(tmp_path)
    assert command.main([str(tmp_path)]) == 2
    assert "give --bootstrap" in capsys.readouterr().err

    def without_lake(*_: object, **__: object) -> Certificate:
        raise ModuleNotFoundError(name="deltalake")

    monkeypatch.setattr(command, "certify", without_lake)
    assert command.main([str(tmp_path)]) == 2
    assert "install slackwater-certify[lake]" in capsys.readouterr().err
