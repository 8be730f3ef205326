"""``slackwater certify`` up to the servers: usage, exit codes, files."""

import json
from pathlib import Path

import pytest

from slackwater.cli.main import run
from slackwater_certify import Certificate, Connections, Specification
from slackwater_certify.certifier import judge
from slackwater_certify.output import OutputRecords
from slackwater_certify.view import load_view
from slackwater_lab.fakes.certified import RightOutput, SourceLog, order, write_specification


@pytest.fixture
def output() -> RightOutput:
    log = SourceLog()
    log.commit(("orders", 1, order(1, "0.00")))
    return RightOutput.publish(log)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, output: RightOutput) -> list[Connections]:
    """Outputs come from memory; returns the connections that were asked for."""
    asked: list[Connections] = []

    def certify(specification: Specification, connections: Connections, **options: object) -> Certificate:
        asked.append(connections)
        records = OutputRecords(output.outputs)
        return judge(specification, load_view(specification), records, None)

    monkeypatch.setattr("slackwater_certify.command.certify", certify)
    return asked


def test_a_clean_output_ends_with_0_and_files_are_written(
    judged: list[Connections], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_specification(tmp_path)
    files = ["--json", str(tmp_path / "out" / "c.json"), "--report", str(tmp_path / "out" / "c.txt")]
    servers = [
        "--bootstrap",
        "here:1",
        "--dsn",
        "postgresql://there",
        "--output-dsn",
        "postgresql://elsewhere",
    ]
    assert run(["certify", str(tmp_path), *servers, *files]) == 0
    assert json.loads((tmp_path / "out" / "c.json").read_text())["is_clean"] is True
    assert "verdict" in (tmp_path / "out" / "c.txt").read_text()
    assert "clean" in capsys.readouterr().out
    assert (judged[0].bootstrap, judged[0].dsn) == ("here:1", "postgresql://there")
    assert judged[0].output_dsn == "postgresql://elsewhere"


@pytest.mark.usefixtures("judged")
def test_a_violated_output_ends_with_1(
    output: RightOutput, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output.change(0, document={"total": "no key"})
    assert run(["certify", str(write_specification(tmp_path))]) == 1
    assert "VIOLATED" in capsys.readouterr().out


def test_a_specification_that_cannot_be_used_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["certify", str(write_specification(tmp_path, "[output]\nkind = 'stone'"))]) == 2
    assert "certify.toml: " in capsys.readouterr().err


def test_a_server_that_is_needed_and_not_named_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["certify", str(write_specification(tmp_path))]) == 2
    assert "--bootstrap" in capsys.readouterr().err
