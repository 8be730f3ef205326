import pytest

from slackwater.outputs.contract import Format, KeyFormat, SinkKind
from slackwater.pipeline import ViewOutput
from slackwater.pipeline.definition import check_places
from slackwater.pipeline.folder import read_outputs
from slackwater.pipeline.toml_table import TomlTable
from slackwater.protocol import CommitFormat, ConfigError

VIEWS = ("orders", "totals")
POSTGRES: dict[str, object] = {"kind": "postgres"}
DELTA: dict[str, object] = {"kind": "delta"}
DEBEZIUM: dict[str, object] = {"format": "debezium"}


def outputs(values: dict[str, object], revision: int = 1) -> tuple[ViewOutput, ...]:
    toml = TomlTable("pipeline.toml", "", values)
    found = read_outputs(toml, str(values.get("name", "pipeline")), VIEWS, revision)
    check_places(found, toml.error)
    return found


def test_every_view_is_published_under_its_name_unless_said_otherwise() -> None:
    assert outputs({}) == (ViewOutput("orders", "orders"), ViewOutput("totals", "totals"))


def test_topics_and_partitions_are_said_by_view() -> None:
    found = outputs({"outputs": {"totals": {"topic": "t", "partitions": 2}}})
    assert found == (ViewOutput("orders", "orders"), ViewOutput("totals", "t", 2))


def test_a_view_that_is_only_read_by_others_has_no_output() -> None:
    assert outputs({"outputs": {"orders": {"publish": False}}}) == (ViewOutput("totals", "totals"),)


def test_a_revision_writes_to_topics_of_its_own() -> None:
    found = outputs({"outputs": {"totals": {"topic": "t"}}}, revision=2)
    assert found == (ViewOutput("orders", "orders.v2"), ViewOutput("totals", "t"))


def test_a_table_is_in_public_under_the_view_s_name_unless_said_otherwise() -> None:
    values: dict[str, object] = {
        "outputs": {"orders": POSTGRES, "totals": POSTGRES | {"table": "w.t", "history": True}}
    }
    assert outputs(values, revision=2) == (
        ViewOutput("orders", "public.orders_v2", kind=SinkKind.POSTGRES),
        ViewOutput("totals", "w.t", kind=SinkKind.POSTGRES, history=True),
    )


def test_a_table_of_a_lake_is_in_views_unless_said_otherwise() -> None:
    values: dict[str, object] = {"outputs": {"orders": DELTA, "totals": DELTA | {"table": "w.t"}}}
    assert outputs(values, revision=2) == (
        ViewOutput("orders", "views.orders_v2", kind=SinkKind.DELTA),
        ViewOutput("totals", "w.t", kind=SinkKind.DELTA),
    )


def test_headers_of_cloudevents_are_asked_for_by_view() -> None:
    found = outputs({"outputs": {"totals": {"cloudevents": True}}})
    assert [output.cloudevents for output in found] == [False, True]


def test_commit_records_in_avro_are_asked_for_by_view() -> None:
    found = outputs({"outputs": {"totals": {"commit_format": "avro"}}})
    assert [output.commit_format for output in found] == [CommitFormat.JSON, CommitFormat.AVRO]


def test_a_topic_of_changes_is_named_like_a_connector_s() -> None:
    values: dict[str, object] = {
        "name": "shop",
        "outputs": {"orders": DEBEZIUM, "totals": DEBEZIUM | {"topic": "a.b.views.t"}},
    }
    found = outputs(values, revision=2)
    assert [(output.name, output.prefix) for output in found] == [
        ("shop_v2.public.orders", "shop_v2"),
        ("a.b.views.t", "a.b"),
    ]
    assert all(output.is_source for output in found)


@pytest.mark.parametrize(
    ("values", "key", "says"),
    [
        ({"output": {"topic": "x"}}, "output", "does not name its view; there are several views"),
        (
            {"output": {"topic": "x"}, "outputs": {"orders": {"topic": "y"}}},
            "output",
            "remove one of the two",
        ),
        ({"outputs": {"order": {}}}, "outputs.order", "did you mean orders?"),
        ({"outputs": {"orders": {"topics": "x"}}}, "outputs.orders.topics", "did you mean topic?"),
        ({"outputs": {"orders": {"topic": "a b"}}}, "outputs.orders.topic", "is part of Kafka topic names"),
        ({"outputs": {"orders": {"partitions": 0}}}, "outputs.orders.partitions", "from 1 to 10000, got 0"),
        ({"outputs": {"orders": {"publish": "no"}}}, "outputs.orders.publish", "expected true or false"),
        (
            {"outputs": {"orders": {"publish": False, "partitions": 3}}},
            "outputs.orders.partitions",
            "cannot be combined with publish = false",
        ),
        (
            {"outputs": {"orders": {"publish": False}, "totals": {"publish": False}}},
            "outputs.orders",
            "no view is published",
        ),
        ({"outputs": {"orders": {"topic": "totals"}}}, "outputs", "both write topic 'totals'"),
        (
            {"outputs": {"orders": {"kind": "lake"}}},
            "outputs.orders.kind",
            "'postgres' or 'delta' or 'iceberg'",
        ),
        ({"outputs": {"orders": {"table": "a.b"}}}, "outputs.orders.table", "is not a known key"),
        ({"outputs": {"orders": {"commit_format": "xml"}}}, "outputs.orders.commit_format", "'avro'"),
        (
            {"outputs": {"orders": POSTGRES | {"commit_format": "avro"}}},
            "outputs.orders.commit_format",
            "is not a known key",
        ),
        (
            {"outputs": {"orders": {"commit_format": "avro"}, "totals": {"topic": "orders.commits-avro"}}},
            "outputs",
            "both write topic 'orders.commits-avro'",
        ),
        ({"outputs": {"orders": POSTGRES | {"topic": "a"}}}, "outputs.orders.topic", "is not a known key"),
        ({"outputs": {"orders": POSTGRES | {"table": "a"}}}, "outputs.orders.table", "expected schema.name"),
        (
            {"outputs": {"orders": POSTGRES | {"table": "a.b;"}}},
            "outputs.orders.table",
            "expected schema.name",
        ),
        (
            {"outputs": {"orders": POSTGRES | {"table": f"a.{'b' * 56}", "history": True}}},
            "outputs.orders.table",
            "too long for the table of its versions",
        ),
        (
            {
                "outputs": {
                    "orders": POSTGRES | {"table": "a.b", "history": True},
                    "totals": POSTGRES | {"table": "a.b_history"},
                }
            },
            "outputs",
            "orders and totals both write table 'a.b_history'",
        ),
        ({"outputs": {"orders": DELTA | {"history": True}}}, "outputs.orders.history", "is not a known key"),
        (
            {"outputs": {"orders": DELTA | {"table": "slackwater.orders"}}},
            "outputs.orders.table",
            "is reserved for the ledgers",
        ),
        (
            {"outputs": {"orders": {"format": "xml"}}},
            "outputs.orders.format",
            "'json' or 'debezium' or 'avro'",
        ),
        ({"outputs": {"orders": POSTGRES | {"format": "json"}}}, "outputs.orders.format", "not a known key"),
        (
            {"outputs": {"orders": DEBEZIUM | {"topic": "a.b.c"}, "totals": {"topic": "a.transaction"}}},
            "outputs",
            "totals writes topic 'a.transaction', which describes the transactions of orders",
        ),
        (
            {
                "outputs": {
                    "orders": {"kind": "opensearch", "index": "a"},
                    "totals": {"kind": "opensearch", "index": "a-versions"},
                }
            },
            "outputs",
            "orders and totals both write index 'a-versions'",
        ),
        (
            {"outputs": {"orders": {"topic": "totals.commits"}}},
            "outputs",
            "both write topic 'totals.commits'",
        ),
    ],
)
def test_outputs_that_cannot_be_are_named_by_key(values: dict[str, object], key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        outputs(values)
    assert f": {key}: " in str(caught.value)
    assert says in str(caught.value)


def test_forms_of_values_and_keys_are_said_by_view() -> None:
    found = outputs({"outputs": {"totals": {"format": "avro", "key_format": "string"}}})
    assert [(each.format, each.key_format) for each in found] == [
        (Format.JSON, KeyFormat.JSON),
        (Format.AVRO, KeyFormat.STRING),
    ]
