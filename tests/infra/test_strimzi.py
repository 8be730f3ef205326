"""The example for Strimzi: its connector is one whose topics can be read as whole transactions."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from slackwater.cdc.connector import faults_of, reading_properties, topic_properties
from slackwater.cli import main
from slackwater.protocol.keys import cut_log_topic
from tests.infra.chart_tools import MissingToolError, strimzi_schemas

FOLDER = Path(__file__).parents[2] / "infra" / "charts" / "examples" / "strimzi"
VALUES = FOLDER.parent / "values.yaml"


def all_resources() -> list[dict[str, Any]]:
    return [each for file in FOLDER.glob("*.yaml") for each in yaml.safe_load_all(file.read_text())]


def resources() -> dict[str, Any]:
    """One resource of each kind."""
    return {each["kind"]: each for each in all_resources()}


def users() -> dict[str, Any]:
    """The users by name."""
    return {each["metadata"]["name"]: each for each in all_resources() if each["kind"] == "KafkaUser"}


def rights(user: dict[str, Any]) -> set[tuple[str, str, str, str, str]]:
    """What a user may do, one operation at a time."""
    return {
        (of["type"], of["name"], of["patternType"], acl.get("host", "*"), operation)
        for acl in user["spec"]["authorization"]["acls"]
        for of in [acl["resource"]]
        for operation in acl["operations"]
    }


@pytest.fixture
def revenue(tmp_path: Path) -> Path:
    """The folder of the pipeline, which reads the tables of the connector."""
    folder = tmp_path / "revenue"
    assert main.run(["new", str(folder), "--source", "shop"]) == 0
    include = resources()["KafkaConnector"]["spec"]["config"]["table.include.list"]
    tables = include.replace("\\", "").split(",")
    declared = [f"CREATE TABLE {each} (id bigint PRIMARY KEY, name text);" for each in tables]
    (folder / "schema.sql").write_text("\n".join(declared))
    joined = "".join(f" LEFT JOIN {each} t{n} ON t{n}.id = t.id" for n, each in enumerate(tables[1:]))
    names = "".join(f", t{n}.name AS name{n}" for n in range(len(tables) - 1))
    view = f"SELECT TRANSACTIONALLY t.id{names} FROM {tables[0]} t{joined}"  # noqa: S608 - names of the test
    (folder / "views" / "revenue.sql").write_text(view)
    return folder


@pytest.mark.parametrize("name", ["sidecar-shop", "revenue"])
def test_users_have_the_rights_that_slackwater_acl_prints_and_no_others(
    name: str, revenue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    role = {"sidecar-shop": ["sidecar", "--source", "shop"], "revenue": ["pipeline", str(revenue)]}[name]
    capsys.readouterr()
    assert main.run(["acl", *role, "--user", name, "--as", "strimzi"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert rights(users()[name]) == rights(printed)
    assert printed["apiVersion"] == users()[name]["apiVersion"]


def test_every_resource_is_valid_for_strimzi() -> None:
    try:
        schemas = strimzi_schemas()
    except MissingToolError as error:
        pytest.skip(str(error))
    found = resources()
    assert set(found) == set(schemas)
    for resource in all_resources():
        kind = resource["kind"]
        validator = Draft202012Validator(schemas[kind])
        assert [f"{each.json_path}: {each.message}" for each in validator.iter_errors(resource)] == []
        resource["spec"]["replcas"] = 1
        assert not validator.is_valid(resource), kind


def test_the_connector_has_the_properties_that_slackwater_connector_prints() -> None:
    spec = resources()["KafkaConnector"]["spec"]
    config = {"connector.class": spec["class"], "tasks.max": str(spec["tasksMax"]), **spec["config"]}
    assert faults_of(config) == []
    wanted = reading_properties("shop") | topic_properties("shop", 8, 3)
    assert wanted.items() <= config.items()


def test_the_cut_log_is_made_as_the_sidecar_would_make_it() -> None:
    spec = resources()["KafkaTopic"]["spec"]
    assert spec["topicName"] == cut_log_topic("shop")
    assert spec["partitions"] == 1
    assert {"cleanup.policy": "delete", "retention.ms": -1, "retention.bytes": -1}.items() <= spec[
        "config"
    ].items()


def test_names_are_those_of_the_example_of_values() -> None:
    values, found = yaml.safe_load(VALUES.read_text()), resources()
    assert values["sidecars"]["shop"]["sources"] == [
        found["KafkaConnector"]["spec"]["config"]["topic.prefix"]
    ]
    parts = [values["sidecars"]["shop"], values["pipelines"]["revenue"]]
    assert [each["settings"]["kafka.sasl_username"] for each in parts] == list(users())
    for each in parts:
        secret = each["secretSettings"]["kafka.sasl_password"]["name"]
        assert secret == each["settings"]["kafka.sasl_username"]  # Strimzi names the Secret like the user
    assert (
        found["KafkaConnector"]["metadata"]["labels"]["strimzi.io/cluster"]
        == found["KafkaConnect"]["metadata"]["name"]
    )
    ids = [
        each["resource"]["name"]
        for each in users()["revenue"]["spec"]["authorization"]["acls"]
        if each["resource"]["type"] == "transactionalId"
    ]
    assert ids == [f"slackwater-{name}" for name in values["pipelines"]]
