"""Configuration files say to the servers what we mean."""

from datetime import timedelta
from pathlib import Path

import pytest

from slackwater.cdc.connector import replication_name
from slackwater.dev import ConnectMode, DevStackSettings
from slackwater.dev.java import render_properties
from slackwater.dev.kafka import broker_properties, position_properties, worker_properties
from slackwater.dev.stack import connector_properties
from slackwater.protocol import ConfigError

PORT = 5432


def settings(**changes: object) -> DevStackSettings:
    return DevStackSettings(folder=Path("/nowhere"), **changes)  # type: ignore[arg-type]


def test_a_backslash_reaches_the_server() -> None:
    assert render_properties({"include": r"inv\.orders"}) == "include=inv\\\\.orders\n"


def test_line_ends_leading_blanks_and_letters_outside_ascii_survive_a_properties_file() -> None:
    assert render_properties({"a b": " ü\n"}) == "a\\ b=\\ \\u00fc\\n\n"


def test_a_character_outside_the_basic_plane_becomes_two_escapes() -> None:
    assert render_properties({"k": "\U0001f30a"}) == "k=\\ud83c\\udf0a\n"


def test_the_connector_takes_exactly_the_tables_named() -> None:
    properties = connector_properties(settings(), PORT, ("inventory.orders", "inventory.lines"))
    assert properties["table.include.list"] == r"inventory\.orders,inventory\.lines"


def test_without_tables_the_connector_takes_all_of_the_publication() -> None:
    assert "table.include.list" not in connector_properties(settings(), PORT, ())


def test_only_data_topics_get_several_partitions() -> None:
    properties = connector_properties(settings(prefix="a.b", partitions=7), PORT, ())
    assert properties["topic.creation.default.partitions"] == "7"
    assert properties["topic.creation.single.partitions"] == "1"
    included = properties["topic.creation.single.include"]
    assert included == r"a\.b\.transaction,a\.b\.notifications,__debezium\-heartbeat\.a\.b"


def test_the_connector_sends_what_the_sidecar_reads() -> None:
    properties = connector_properties(settings(heartbeat_interval=timedelta(seconds=1.5)), PORT, ())
    assert properties["provide.transaction.metadata"] == "true"
    assert properties["notification.sink.topic.name"] == "inv.notifications"
    assert properties["heartbeat.interval.ms"] == "1500"
    assert properties["decimal.handling.mode"] == "string"


def test_overrides_win() -> None:
    chosen = settings(connector_overrides={"snapshot.mode": "no_data"})
    assert connector_properties(chosen, PORT, ())["snapshot.mode"] == "no_data"
    broker = broker_properties(1, 2, Path("/d"), {"auto.create.topics.enable": "true"})
    assert broker["auto.create.topics.enable"] == "true"


def test_the_worker_writes_json_without_schemas_and_stores_offsets_as_often_as_asked() -> None:
    worker = worker_properties("h:1", 2, timedelta(milliseconds=300))
    assert worker["value.converter.schemas.enable"] == "false"
    assert worker["offset.flush.interval.ms"] == "300"


def test_a_standalone_worker_keeps_its_position_in_a_file_and_a_distributed_one_in_kafka() -> None:
    standalone = position_properties(ConnectMode.STANDALONE, "inv", Path("/o"))
    assert standalone == {"offset.storage.file.filename": "/o"}
    distributed = position_properties(ConnectMode.DISTRIBUTED, "inv", Path("/o"))
    assert distributed["group.id"] == "connect-inv"
    assert distributed["config.storage.topic"] == "connect-inv.config"
    assert "exactly.once.source.support" not in distributed


def test_exactly_once_is_asked_of_worker_and_connector() -> None:
    mode = ConnectMode.EXACTLY_ONCE
    assert position_properties(mode, "inv", Path("/o"))["exactly.once.source.support"] == "enabled"
    connector = connector_properties(settings(connect_mode=mode), PORT, ())
    assert connector["exactly.once.support"] == "required"
    assert "exactly.once.support" not in connector_properties(settings(), PORT, ())


def test_everything_listens_on_loopback_only() -> None:
    broker = broker_properties(1, 2, Path("/d"), {})
    worker = worker_properties("h:1", 2, timedelta(seconds=1))
    assert broker["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert worker["listeners"] == "http://127.0.0.1:2"


@pytest.mark.parametrize(("prefix", "name"), [("inv", "inv"), ("Inv-2.eu", "inv_2_eu"), ("x" * 80, "x" * 63)])
def test_a_slot_name_has_only_what_postgres_allows(prefix: str, name: str) -> None:
    assert replication_name(prefix) == name


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"prefix": "a b"}, "prefix"),
        ({"prefix": ""}, "prefix"),
        ({"tables": ("orders",)}, "tables"),
        ({"partitions": 0}, "partitions"),
        ({"connect_heap": "plenty"}, "connect_heap"),
        ({"postgres": False}, "connect"),
    ],
)
def test_a_value_that_no_server_can_use_is_refused_by_name(changes: dict[str, object], setting: str) -> None:
    with pytest.raises(ConfigError, match=f"^setting {setting} is "):
        settings(**changes)
