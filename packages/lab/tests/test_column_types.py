"""The reference page of types says what the declared types say; a real connector wrote it."""

from pathlib import Path

import pytest

from slackwater.sql.postgres import parse_catalog
from slackwater_lab.column_types import EXACT, IDENTITIES, PAGE, SAMPLES, STEPS, TYPES, Outcome, Sample, page

WRITTEN = (Path(__file__).parents[3] / PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.type)
def test_a_type_that_is_refused_is_refused_on_the_page(sample: Sample, identity: str) -> None:
    full = "ALTER TABLE ty.t REPLICA IDENTITY FULL;" if identity == "full" else ""
    ddl = f"{TYPES} CREATE TABLE ty.t (id int PRIMARY KEY, v {sample.type}); {full}"
    (table,) = parse_catalog({"": ddl}).tables
    of = table.columns[1].type
    lines = [line for line in WRITTEN.splitlines() if line.startswith(f"| `{sample.type}` |")]
    (cells,) = (line.split("|")[3:-1] for line in lines if identity in line or "| all |" in line)
    assert all("refused" in cell for cell in cells) == (not of.is_supported)
    is_known_by_its_definition = of.reason.endswith("which Debezium does not send")  # the catalogue has none
    assert of.is_supported or is_known_by_its_definition or f". {of.reason}\n" in WRITTEN


def test_the_page_has_no_wrong_value() -> None:
    assert "WRONG" not in WRITTEN


def test_words_are_written_once_and_referred_to() -> None:
    outcomes = [Outcome("t", i, step, EXACT) for i in IDENTITIES for step in STEPS]
    outcomes += [Outcome("t", "full", "insert", "no such value", "1")]
    lines = page(outcomes).splitlines()
    assert "| `t` | default, index | exact | exact | exact | exact | exact | exact |" in lines
    assert "| `t` | full | exact | exact, except [1] | exact | exact | exact | exact |" in lines
    assert lines[-1] == "1. no such value"
