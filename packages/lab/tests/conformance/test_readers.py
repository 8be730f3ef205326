"""Every reader of commit topics that is shipped conforms, and each requirement has a case that needs it."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from slackwater.dev import KafkaBroker
from slackwater_lab.__main__ import main
from slackwater_lab.conformance.case import cases_about, load_cases
from slackwater_lab.conformance.command import java_reader
from slackwater_lab.conformance.record import record_all
from slackwater_lab.conformance.runner import run_cases
from slackwater_lab.workloads.workload import REPOSITORY

pytestmark = pytest.mark.integration

EXAMPLES = REPOSITORY / "docs" / "examples"
COMMITS, CUTS = EXAMPLES / "whole_transactions.py", EXAMPLES / "whole_changes.py"
SPECIFICATION = REPOSITORY / "docs" / "specification.md"
CLIENT = (sys.executable, "-m", "slackwater_lab.conformance.client")
LONG = 600.0
"""A late marker that a reader does not wait for is noticed as soon as the reader has printed something."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The example without a rule: what is replaced in its text, and by what."""

    requirement: str
    old: str
    new: str


ALL = "records(documents, topic, partition, first, last)"
TAKEN = "            commit, count, ranges = read(message.value())\n"
LOG = "records(commits, commit_topic, 0, start, end - 1)"
END = "documents.get_watermark_offsets(TopicPartition(topic, partition), 60)[1] - 1"
FAULTS = (
    Fault("R1", '"read_committed"', '"read_uncommitted"'),
    Fault("R2", LOG, f'sorted({LOG}, key=lambda each: json.loads(each.value())["commit_lsn"])'),
    Fault("R3", "in partitions.items()", "in list(partitions.items())[:1]"),
    Fault("R3", ALL, ALL.replace("last", END)),
    Fault("R4", TAKEN, f"            start = start + 1 if message.offset() == start else 1 // 0\n{TAKEN}"),
    Fault("R5", "if (message.offset() or 0) > last:\n                    return", "return"),
    Fault("R6", "            yield {", "            assert count == len(found)\n            yield {"),
    Fault("R7", "            yield {", "            assert ranges\n            yield {"),
    Fault("R8", '"xid": commit["xid"]', '"xid": int(commit["xid"])'),
    Fault(
        "R9",
        "    ranges = [\n        (topic, int(",
        "    assert len(commit) <= 15\n    ranges = [\n        (topic, int(",
    ),
    Fault("R9", 'commit.get("skipped", [])', 'commit["skipped"]'),
    Fault("R10", 'if commit["v"] > VERSION:', "if False:"),
    Fault("R11", 'commit.get("skipped", [])', "[]"),
    Fault("R12", "if not low <= start <= end:", "if False:"),
    Fault("R13", '"auto.offset.reset": "error"', '"auto.offset.reset": "earliest"'),
    Fault("C1", 'accumulate(cut["xids"])', 'cut["xids"]'),
    Fault("C2", ' or event["source"]["txId"] not in wanted', ""),
    Fault("C3", "if change not in seen:", "if True:"),
    Fault("C4", " if lsn > above}", "}"),
    Fault("C4", 'if cut["previous"] > position:', "if False:"),
    Fault("C5", 'if cut["v"] > VERSION or cut.get("kind", OTHERS[0]) not in OTHERS:', "if False:"),
    Fault("R14", "json.loads(value)", "json.loads(value, parse_int=lambda each: int(float(each)))"),
)


def problems(
    program: Sequence[str], broker: KafkaBroker, names: Sequence[str] = (), **options: float
) -> dict[str, str]:
    """Returns what is wrong with a reader, by case."""
    found = run_cases(load_cases(names).values(), program, broker.bootstrap, **options)
    return {case.name: problem for case, problem in found if problem}


def test_the_plain_reader_of_commit_topics_conforms(kafka_broker: KafkaBroker) -> None:
    assert problems([sys.executable, str(COMMITS)], kafka_broker, [*cases_about(cuts=False)]) == {}


def test_the_plain_reader_of_cut_logs_conforms(kafka_broker: KafkaBroker) -> None:
    assert problems([sys.executable, str(CUTS)], kafka_broker, [*cases_about(cuts=True)]) == {}


@pytest.mark.full
def test_the_client_conforms(kafka_broker: KafkaBroker) -> None:
    assert problems(CLIENT, kafka_broker) == {}


@pytest.mark.full
def test_the_reader_in_java_conforms(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    assert problems(java_reader(tmp_path), kafka_broker, [*cases_about(cuts=False)]) == {}


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.requirement)
def test_a_reader_without_a_rule_fails(fault: Fault, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    text = (CUTS if fault.requirement.startswith("C") else COMMITS).read_text()
    assert text.count(fault.old) == 1, fault
    program = tmp_path / "reader.py"
    program.write_text(text.replace(fault.old, fault.new))
    names = [name for name, case in load_cases().items() if fault.requirement in case.head.requirements]
    found = problems([sys.executable, str(program)], kafka_broker, names, hold_seconds=LONG, seconds=20)
    assert found


def test_the_command_names_what_fails(kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str]) -> None:
    reader = (sys.executable, "-c", "print('{}')")
    given = ("conformance", "--bootstrap", kafka_broker.bootstrap, "--only", "skipped")
    assert main([*given, sys.executable, str(COMMITS)]) == 0
    assert "passed skipped (R11)" in capsys.readouterr().out
    assert main([*given, *reader]) == 1
    assert "failed skipped (R11)" in (printed := capsys.readouterr().out)
    assert "1 cases, 1 failed" in printed


def test_the_command_refuses_what_it_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance"]) == 2
    assert "which reader?" in capsys.readouterr().err
    assert main(["conformance", "--only", "skiped", "reader"]) == 2
    assert "no case skiped; there are aborted, compacted" in capsys.readouterr().err


def test_every_requirement_has_a_case_and_a_planted_fault() -> None:
    stated = set(re.findall(r"^\| ([RC]\d+) \|", SPECIFICATION.read_text(), re.MULTILINE))
    assert stated == {name for case in load_cases().values() for name in case.head.requirements}
    assert stated == {fault.requirement for fault in FAULTS}


@pytest.mark.full
def test_the_cases_can_be_recorded_again(tmp_path: Path) -> None:
    names = record_all(tmp_path)
    assert {name: case.expected for name, case in load_cases(names, tmp_path).items()} == {
        name: case.expected for name, case in load_cases().items()
    }
