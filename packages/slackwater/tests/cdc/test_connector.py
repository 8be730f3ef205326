"""Which properties of a connector keep its topics from being read."""

import re

import pytest

from slackwater.cdc.captured import shared_topics
from slackwater.cdc.connector import (
    faults_of,
    property_findings,
    publication_name,
    reading_properties,
    replication_name,
    table_list,
    topic_properties,
)
from slackwater.protocol import SourceTopics, Verdict

ROUTER = "org.apache.kafka.connect.transforms.RegexRouter"
TIME_MODES = ("connect", "adaptive_time_microseconds", "microseconds", "nanoseconds", "isostring")


def test_what_is_recommended_has_no_fault() -> None:
    assert faults_of(reading_properties("inv")) == []


NEEDED = (
    "plugin.name",
    "provide.transaction.metadata",
    "decimal.handling.mode",
    "skipped.operations",
    "notification.enabled.channels",
    "notification.sink.topic.name",
    "heartbeat.interval.ms",
    "publication.autocreate.mode",
    "value.converter.replace.null.with.default",
    "key.converter.replace.null.with.default",
)
"""What the connector or the converter does differently by default."""


@pytest.mark.parametrize("name", reading_properties("inv"))
def test_a_property_that_is_left_out_counts_as_its_default(name: str) -> None:
    properties = reading_properties("inv")
    del properties[name]
    assert [fault.name for fault in faults_of(properties) if fault.name == name] == [name] * (name in NEEDED)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provide.transaction.metadata", "false"),
        ("notification.enabled.channels", "log"),
        ("heartbeat.interval.ms", "0"),
        ("publication.autocreate.mode", "filtered"),
    ],
)
def test_another_value_is_a_fault(name: str, value: str) -> None:
    [fault] = faults_of(reading_properties("inv") | {name: value})
    assert (fault.name, fault.has, fault.is_silent) == (name, value, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("time.precision.mode", mode) for mode in TIME_MODES),
        *(("binary.handling.mode", mode) for mode in ("hex", "base64", "base64-url-safe")),
        *(("decimal.handling.mode", mode) for mode in ("double", "precise")),
        ("unavailable.value.placeholder", "?"),
        ("skipped.operations", "t"),
        ("skipped.operations", "d,t"),
        ("plugin.name", "decoderbufs"),
        ("event.processing.failure.handling.mode", "warn"),
        ("errors.tolerance", "all"),
        ("offset.mismatch.strategy", "trust_slot"),
        ("snapshot.select.statement.overrides", "shop.orders"),
        ("snapshot.query.mode", "custom"),
        ("snapshot.isolation.mode", "read_committed"),
        ("snapshot.isolation.mode", "read_uncommitted"),
        ("snapshot.max.threads", "4"),
        ("topic.creation.default.cleanup.policy", "compact"),
        ("topic.creation.single.cleanup.policy", "delete,compact"),
        ("database.initial.statements", "SET statement_timeout = 0; SET ROLE reader"),
        ("database.initial.statements", "SET default_transaction_isolation TO 'read committed'"),
        ("converters", "isbn"),
        ("post.processors", "reselector"),
        ("transaction.metadata.factory", "com.example.Factory"),
        ("column.mask.with.10.chars", "shop.orders.card"),
        ("column.mask.hash.SHA-256.with.salt.x", "shop.orders.card"),
        ("column.truncate.to.20.chars", "shop.orders.note"),
        ("value.converter.replace.null.with.default", "true"),
    ],
)
def test_what_changes_values_or_omits_rows_makes_views_wrong(name: str, value: str) -> None:
    [fault] = faults_of(reading_properties("inv") | {name: value})
    assert (fault.name, fault.has, fault.is_silent) == (name, value, True)
    assert "new snapshot" in fault.hint


@pytest.mark.parametrize(
    "kind",
    [
        "io.debezium.transforms.ExtractNewRecordState",
        "io.debezium.transforms.TimezoneConverter",
        "io.debezium.transforms.Filter",
        "org.apache.kafka.connect.transforms.MaskField$Value",
        "org.apache.kafka.connect.transforms.Cast$Value",
        "org.apache.kafka.connect.transforms.SetSchemaMetadata$Value",
        "com.example.Own",
    ],
)
def test_a_transform_that_may_change_values_is_a_fault(kind: str) -> None:
    """Even one that only copies the value: copies contain a DEFAULT instead of NULL."""
    changed = {"transforms": "route, own", "transforms.route.type": ROUTER, "transforms.own.type": kind}
    [fault] = faults_of(reading_properties("inv") | changed)
    assert (fault.name, fault.has, fault.is_silent) == ("transforms.own.type", kind.partition("$")[0], True)


def test_nulls_of_avro_are_kept_by_a_property_of_its_own() -> None:
    avro = {"value.converter": "io.confluent.connect.avro.AvroConverter"}
    [fault] = faults_of(reading_properties("inv") | avro)
    assert (fault.name, fault.needs) == ("value.converter.ignore.default.for.nullables", "true")
    assert faults_of(reading_properties("inv") | avro | {fault.name: "true"}) == []


def test_the_converter_of_a_worker_is_not_relied_on() -> None:
    """It cannot be seen, and a connector's property counts only beside a converter of its own."""
    properties = reading_properties("inv")
    del properties["value.converter"]
    [fault] = faults_of(properties)
    assert fault.name == "value.converter.replace.null.with.default"
    assert "together with value.converter" in fault.needs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heartbeat.interval.ms", "500"),
        ("notification.sink.topic.name", "elsewhere"),
        ("snapshot.mode", "no_data"),
        ("slot.name", "own"),
        ("tombstones.on.delete", "false"),
        ("snapshot.isolation.mode", "repeatable_read"),
        ("snapshot.max.threads", "1"),
        ("topic.creation.default.cleanup.policy", "delete"),
        ("database.initial.statements", "SET lock_timeout = '5s'; set session statement_timeout to 0;"),
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


@pytest.mark.parametrize(
    "mode", ["no_data", "never", "schema_only", "recovery", "configuration_based", "custom"]
)
def test_a_mode_that_may_take_no_snapshot_is_a_warning(mode: str) -> None:
    found = list(property_findings(reading_properties("inv") | {"snapshot.mode": mode}))

    assert [(each.subject, each.verdict) for each in found[1:]] == [("snapshot.mode", Verdict.WARNING)]
    assert "sidecar.complete_tables" in found[1].hint


def test_tables_that_are_left_out_of_the_snapshot_are_a_warning() -> None:
    properties = reading_properties("inv") | {"snapshot.include.collection.list": r"shop\.a"}
    assert [each.subject for each in property_findings(properties)][1:] == [
        "snapshot.include.collection.list"
    ]


def test_a_list_of_tables_matches_just_these_however_they_are_named() -> None:
    """As Debezium reads it: split at commas, trimmed, whole names."""
    names = ["s.a.b", "s.a,b", "s. c ", "s.[d]\\", "s.é😀"]
    patterns = [part.strip() for part in table_list(names).split(",")]
    for name in names:
        assert [
            other for other in (*names, "s.axb", "s.c") if re.fullmatch(patterns[names.index(name)], other)
        ] == [name]


SHARED = {
    "s.a b": "table s.a_b",
    "s.a_b": "table s.a b",
    "s.😀": "table s.é_",
    "s.é_": "table s.😀",
    "slackwater.cuts": "the cuts of the source",
    f"s.{'x' * 300}": f"table s.{'x' * 301}",
    f"s.{'x' * 301}": f"table s.{'x' * 300}",
}


def test_tables_whose_topic_is_not_theirs_alone_are_named() -> None:
    tables = [*SHARED, "s.A_b", "s.a.b", "s.orders"]
    found = {each.table: each.text for each in shared_topics(SourceTopics("inv"), tables)}
    assert {table: text.partition("also that of ")[2] for table, text in found.items()} == SHARED
    routed = {"s.a b": "all", "s.a_b": "all"}
    left = {each.table for each in shared_topics(SourceTopics("inv", routed), tables)}
    assert left == SHARED.keys() - routed.keys(), "a transform may send tables to one topic"
