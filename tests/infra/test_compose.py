"""The compose file: valid, with health checks, and with settings that the commands know."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from slackwater.settings.loading import NOT_SETTINGS, setting_fields
from tests.infra.chart_tools import MissingToolError, compose_schema

FILE = Path(__file__).parents[2] / "infra" / "compose" / "compose.yaml"
ENDS = {"connector"}
"""What does its work and ends."""
OURS = {"connector", "sidecar-1", "sidecar-2", "pipeline"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def test_it_is_a_valid_compose_file(compose: dict[str, Any]) -> None:
    try:
        schema = compose_schema()
    except MissingToolError as error:
        pytest.skip(str(error))
    validator = Draft202012Validator(schema)
    assert [f"{each.json_path}: {each.message}" for each in validator.iter_errors(compose)] == []
    broken = json.loads(json.dumps(compose))
    broken["services"]["redis"]["comand"] = []
    assert not validator.is_valid(broken)


def test_every_server_says_when_it_is_ready(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"postgres", "kafka", "connect", "redis", *OURS}
    without = {name for name, service in services.items() if "healthcheck" not in service}
    assert without == ENDS
    for service in services.values():
        for other, condition in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other in ENDS else "service_healthy"
            assert condition == {"condition": wanted}


def test_every_image_can_be_exchanged(compose: dict[str, Any]) -> None:
    images = [service["image"] for service in compose["services"].values()]
    assert [image for image in images if not re.fullmatch(r"\$\{[A-Z]+_IMAGE:-\S+\}", image)] == []


def test_what_is_ours_may_not_write_to_its_image_nor_become_root(compose: dict[str, Any]) -> None:
    for name in OURS:
        service = compose["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_every_variable_is_a_setting_that_the_commands_know(compose: dict[str, Any]) -> None:
    known = {name for field in setting_fields() for name in field.variables} | set(NOT_SETTINGS)
    for name in OURS:
        assert set(compose["services"][name]["environment"]) - known == set(), name


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_tables_that_the_pipeline_reads_are_those_that_the_database_is_made_with(
    compose: dict[str, Any],
) -> None:
    mounts = [volume.split(":") for volume in compose["services"]["postgres"]["volumes"]]
    made = [Path(source) for source, target, *_ in mounts if target.startswith("/docker-entrypoint-initdb.d")]
    assert [(FILE.parent / path).is_file() for path in made] == [True, True]
    [folder] = [v.split(":")[0] for v in compose["services"]["pipeline"]["volumes"] if v.startswith("..")]
    assert (FILE.parent / folder / "schema.sql").resolve() in [(FILE.parent / p).resolve() for p in made]
