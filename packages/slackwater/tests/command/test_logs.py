"""The log in JSON: one object per line, events the same for every event of a kind."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from slackwater.observe.logs import configure_logging
from slackwater.protocol.log_fields import FIELDS
from slackwater.settings.model import LogSection


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a process that has not said yet what it is."""
    monkeypatch.setattr("slackwater.protocol.log_fields._process", {})
    return tmp_path / "log"


def configured(log: Path, **settings: Any) -> logging.Logger:
    configure_logging(LogSection(file=log, **settings))
    return logging.getLogger("slackwater_test")


def test_in_json_values_are_fields_and_the_event_stays_the_same(log: Path) -> None:
    logger = configured(log, format="json")
    for xid in (7, 8):
        logger.warning("waiting for %d", xid, extra={"xid": xid, "expected": {"s.a": 2}})

    lines = [json.loads(line) for line in log.read_text().splitlines()]

    assert [line["event"] for line in lines] == ["waiting for %d"] * 2
    assert [(line["text"], line["xid"]) for line in lines] == [("waiting for 7", 7), ("waiting for 8", 8)]
    first = lines[0]
    assert (first["level"], first["logger"], first["expected"]) == ("warning", "slackwater_test", {"s.a": 2})
    assert first["time"].endswith("+00:00")
    assert set(first) == FIELDS.keys() - {"source", "pipeline", "error"} | {"xid", "expected"}


def test_in_json_an_error_with_its_traceback_is_still_one_line(log: Path) -> None:
    logger = configured(log, format="json")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logger.exception("it failed", extra={"place": log})

    (line,) = log.read_text().splitlines()

    assert "ValueError: first" in json.loads(line)["error"]
    assert json.loads(line)["place"] == str(log)


def test_text_is_the_default(log: Path) -> None:
    configured(log).info("hello %s", "you", extra={"xid": 1})
    assert log.read_text().endswith("INFO    slackwater_test: hello you\n")


def test_a_name_cannot_forge_a_line_or_command_a_terminal(log: Path) -> None:
    forged = "t\n2026-01-01 00:00:00,000 INFO    slackwater: all is well\r\x1b[2J\u2028é\t."
    logger = configured(log)
    logger.warning("table %s", forged)
    try:
        raise ValueError(forged)
    except ValueError:
        logger.exception("it failed")

    lines = log.read_bytes().decode().split("\n")[:-1]

    assert lines[0].endswith(
        r"table t\n2026-01-01 00:00:00,000 INFO    slackwater: all is well\r\x1b[2J\u2028é" + "\t."
    )
    assert lines[1].endswith("ERROR   slackwater_test: it failed")
    assert lines[2] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in lines[2:])
    assert any("ValueError: t" in line for line in lines)
    assert not any(character in "".join(lines) for character in "\r\x1b\u2028")


def test_in_json_a_name_cannot_forge_a_line(log: Path) -> None:
    configured(log, format="json").warning("table %s", "t\n{}", extra={"table": "t\n{}"})
    (line,) = log.read_text().splitlines()
    assert json.loads(line)["table"] == "t\n{}"
