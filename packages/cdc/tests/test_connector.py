"""Which properties of a connector keep its topics from being read."""

import pytest

from slackwater_cdc.connector import (
    REASONS,
    faults_of,
    publication_name,
    reading_properties,
    replication_name,
    topic_properties,
)


def test_what_is_recommended_has_no_fault() -> None:
    assert faults_of(reading_properties("inv")) == []


@pytest.mark.parametrize("name", REASONS)
def test_a_property_that_is_left_out_counts_as_its_default(name: str) -> None:
    """Only where the connector's default is what is needed nothing is wrong."""
    properties = reading_properties("inv")
    del properties[name]
    harmless = {"time.precision.mode", "binary.handling.mode"}
    assert [fault[0] for fault in faults_of(properties)] == ([] if name in harmless else [name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time.precision.mode", "connect"),
        ("binary.handling.mode", "hex"),
        ("decimal.handling.mode", "double"),
        ("provide.transaction.metadata", "false"),
        ("notification.enabled.channels", "log"),
        ("heartbeat.interval.ms", "0"),
        ("publication.autocreate.mode", "filtered"),
    ],
)
def test_another_value_is_a_fault(name: str, value: str) -> None:
    [(found, has, _)] = faults_of(reading_properties("inv") | {name: value})
    assert (found, has) == (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heartbeat.interval.ms", "500"),
        ("notification.sink.topic.name", "elsewhere"),
        ("snapshot.mode", "no_data"),
        ("slot.name", "own"),
        ("tombstones.on.delete", "false"),
    ],
)
def test_what_may_be_chosen_is_no_fault(name: str, value: str) -> None:
    assert faults_of(reading_properties("inv") | {name: value}) == []


def test_a_publication_that_the_connector_makes_needs_the_roots() -> None:
    made = reading_properties("inv") | {"publication.autocreate.mode": "filtered"}
    assert faults_of(made | {"publish.via.partition.root": "true"}) == []


def test_topics_that_tell_of_transactions_have_one_partition() -> None:
    made = topic_properties("a.b", 7, 3)
    assert made["topic.creation.default.partitions"] == "7"
    assert made["topic.creation.single.partitions"] == "1"
    assert made["topic.creation.single.replication.factor"] == "3"
    assert made["topic.creation.single.include"].split(",") == [
        r"a\.b\.transaction",
        r"a\.b\.notifications",
        r"__debezium\-heartbeat\.a\.b",
    ]


def test_names_in_the_database_allow_fewer_characters() -> None:
    assert replication_name("My.Source-1") == "my_source_1"
    assert publication_name("My.Source-1") == "slackwater_my_source_1"
    assert len(publication_name("x" * 100)) == len(replication_name("x" * 100)) == 63
