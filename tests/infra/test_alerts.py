"""The alert rules fire when they should, and not before: Prometheus' promtool evaluates them over series."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.site.observability import FOLDER, PAGE, ROOT, alert_rules

RULES = FOLDER / "alerts.yaml"


@dataclass(frozen=True)
class Case:
    """Series at one-minute steps, when the alert is silent, when it fires, and what it then says."""

    series: dict[str, str]
    silent_at: str
    fires_at: str
    labels: dict[str, str]
    summary: str


INV, ORDERS = {"source": "inv"}, {"pipeline": "orders"}
CASES = {
    "SlackwaterSourceStalled": Case(
        {'slackwater_state{source="inv",state="stalled",instance="a"}': "0 0 1 1 1 1"},
        "2m",
        "4m",
        INV,
        "No cut of source inv passes: a transaction is incomplete.",
    ),
    "SlackwaterSourceRegressed": Case(
        {'slackwater_state{source="inv",state="regressed"}': "0 1 1 1"},
        "1m",
        "3m",
        INV,
        "The LSNs of source inv have gone back; nothing is published any more.",
    ),
    "SlackwaterSourceRefused": Case(
        {'slackwater_state{source="inv",state="bad_input"}': "0 1 1 1"},
        "1m",
        "3m",
        {**INV, "state": "bad_input"},
        "Source inv cannot be followed: bad_input.",
    ),
    "SlackwaterKafkaAway": Case(
        {'slackwater_dependency_trouble{source="inv",dependency="kafka"}': "0 1 1 1"},
        "1m",
        "3m",
        INV,
        "Kafka does not answer the sidecar of source inv.",
    ),
    "SlackwaterRedisAway": Case(
        {'slackwater_dependency_trouble{source="inv",dependency="redis"}': "0 1 1 1"},
        "1m",
        "3m",
        INV,
        "Redis does not answer the sidecar of source inv: pipelines are slower.",
    ),
    "SlackwaterRedisCorrected": Case(
        {'slackwater_redis_corrections_total{source="inv"}': "3 3 3 4 4"},
        "2m",
        "4m",
        INV,
        "Somebody else writes to the Redis of source inv, or it was exchanged.",
    ),
    "SlackwaterHeldBack": Case(
        {'slackwater_held_back_offsets{source="inv"}': "0 2 2 2 2 2 2 2"},
        "5m",
        "7m",
        INV,
        "A Kafka transaction over the topics of source inv hangs.",
    ),
    "SlackwaterSidecarSilent": Case(
        {
            'slackwater_last_turn_age_seconds{source="inv",instance="a"}': "0 60 120 180",
            'slackwater_last_turn_age_seconds{source="inv",instance="b"}': "0 0 60 120",
        },
        "1m",
        "2m",
        INV,
        "No sidecar of source inv does anything.",
    ),
    "SlackwaterTargetDown": Case(
        {'up{job="slackwater",instance="orders:8087"}': "1 0 0 0"},
        "1m",
        "3m",
        {"job": "slackwater", "instance": "orders:8087"},
        "orders:8087 does not answer Prometheus.",
    ),
    "SlackwaterPipelineDown": Case(
        {'slackwater_pipelines{state="vanished"}': "0 2 2 2"},
        "1m",
        "3m",
        {"state": "vanished"},
        "2 pipelines do not run: vanished.",
    ),
    "SlackwaterViewsDelayed": Case(
        {'slackwater_delay_causes{kind="pipeline"}': "0 1 1 1"},
        "1m",
        "3m",
        {"kind": "pipeline"},
        "1 of kind pipeline delay views.",
    ),
    "SlackwaterRunBehind": Case(
        {
            'slackwater_run_newest_commit_age_seconds{source="inv",pipeline="orders"}': "50 100 100 100 100",
            'slackwater_newest_commit_age_seconds{source="inv",instance="a"}': "10 10 10 10 10",
            'slackwater_newest_commit_age_seconds{source="inv",instance="b"}': "90 90 90 90 90",
        },
        "2m",
        "4m",
        {**INV, **ORDERS},
        "Pipeline orders is 1m 30s behind its source.",
    ),
    "SlackwaterRunSilent": Case(
        {
            'slackwater_run_last_turn_age_seconds{source="inv",pipeline="orders"}': "0 240 300 360",
            'slackwater_run_last_turn_age_seconds{source="inv",pipeline="other"}': "0 0 0 0",
        },
        "2m",
        "3m",
        {**INV, **ORDERS},
        "Pipeline orders has stood still for 6m 0s.",
    ),
    "SlackwaterRunRestarts": Case(
        {'slackwater_run_start_time_seconds{source="inv",pipeline="orders"}': "1 1 2 3 4"},
        "3m",
        "4m",
        ORDERS,
        "Pipeline orders is started again and again.",
    ),
    "SlackwaterRunErrors": Case(
        {'slackwater_run_log_records_total{source="inv",pipeline="orders",level="error"}': "0 0 1 1"},
        "1m",
        "3m",
        ORDERS,
        "The run of pipeline orders logs errors.",
    ),
}


def unit_test(name: str, case: Case) -> dict[str, Any]:
    """A test of one rule as promtool reads it."""
    alert = next(each for each in alert_rules() if each["alert"] == name)
    fired = {
        "exp_labels": {**alert["labels"], **case.labels},
        "exp_annotations": {**alert["annotations"], "summary": case.summary},
    }
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": case.silent_at, "alertname": name, "exp_alerts": []},
            {"eval_time": case.fires_at, "alertname": name, "exp_alerts": [fired]},
        ],
    }


def promtool(folder: Path, rules: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests of all rules over a file of rules; skips without promtool."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("THE ALERT RULES ARE NOT TESTED: there is no promtool; apt-get install prometheus")
    (folder / "alerts.yaml").write_text(rules)
    tests = {"rule_files": ["alerts.yaml"], "tests": [unit_test(*case) for case in CASES.items()]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(tests, sort_keys=False))
    command = [program, "test", "rules", "tests.yaml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    done = promtool(tmp_path, RULES.read_text())
    assert done.returncode == 0, done.stderr + done.stdout


def test_rules_that_never_fire_are_noticed(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["expr"] = f"({rule['expr']}) > 1e12"
    done = promtool(tmp_path, yaml.safe_dump(rules))
    assert done.returncode != 0
    for name in CASES:
        assert f"alertname: {name}" in done.stderr + done.stdout


def test_rules_that_do_not_wait_are_noticed(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())
    waiting = [rule for rule in rules["groups"][0]["rules"] if rule["for"] != "0m"]
    for rule in waiting:
        rule["for"] = "0m"
    done = promtool(tmp_path, yaml.safe_dump(rules))
    for rule in waiting:
        assert f"alertname: {rule['alert']}" in done.stderr + done.stdout


def test_every_alert_is_tested_and_has_a_runbook() -> None:
    assert set(CASES) == {rule["alert"] for rule in alert_rules()}
    headings = {
        line[3:].lower().replace(" ", "-")
        for line in (ROOT / "docs" / "runbooks.md").read_text().splitlines()
        if line.startswith("## ")
    }
    page = PAGE.read_text()
    for rule in alert_rules():
        runbook, _, heading = rule["annotations"]["runbook"].partition("#")
        assert runbook == "docs/runbooks.md"
        assert heading in headings
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert f"| {rule['alert']} |" in page
