"""The example for Strimzi: its connector is one whose topics can be read as whole transactions."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from infra.charts.tools import MissingToolError, strimzi_schemas
from slackwater_cdc.connector import faults_of, reading_properties, topic_properties
from slackwater_protocol.keys import cut_log_topic

FOLDER = Path(__file__).parents[2] / "infra" / "charts" / "examples" / "strimzi"
VALUES = FOLDER.parent / "values.yaml"


def resources() -> dict[str, Any]:
    """All resources by kind."""
    found = [each for file in FOLDER.glob("*.yaml") for each in yaml.safe_load_all(file.read_text())]
    return {each["kind"]: each for each in found}


def test_every_resource_is_valid_for_strimzi() -> None:
    try:
        schemas = strimzi_schemas()
    except MissingToolError as error:
        pytest.skip(str(error))
    found = resources()
    assert set(found) == set(schemas)
    for kind, resource in found.items():
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
    assert values["settings"]["kafka.sasl_username"] == found["KafkaUser"]["metadata"]["name"]
    assert (
        found["KafkaConnector"]["metadata"]["labels"]["strimzi.io/cluster"]
        == found["KafkaConnect"]["metadata"]["name"]
    )
    ids = [
        each["resource"]["name"]
        for each in found["KafkaUser"]["spec"]["authorization"]["acls"]
        if each["resource"]["type"] == "transactionalId"
    ]
    assert ids == [f"slackwater-{name}" for name in values["pipelines"]]
