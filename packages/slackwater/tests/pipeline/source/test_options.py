import pickle

import pytest

from slackwater.engine.settings import Scope
from slackwater.pipeline.source.options import SourceOptions
from slackwater.protocol import ConfigError, KafkaSettings, RedisSettings, RegistrySettings, Servers

REQUIRED = {"source": "inv", "bootstrap": "b:9092", "tables": "inventory.orders, inventory.order_lines"}


def test_the_required_options_are_enough() -> None:
    options = SourceOptions.parse(REQUIRED)
    assert options.source == "inv"
    assert options.tables == ("inventory.orders", "inventory.order_lines")
    assert options.topics == {"inv.inventory.orders", "inv.inventory.order_lines"}
    assert options.servers == Servers(KafkaSettings("b:9092"))


def test_every_option_is_read() -> None:
    options = SourceOptions.parse(
        REQUIRED
        | {
            "redis_url": "redis://r:6379/0",
            "redis.password": "hush",
            "timeline": "3",
            "scope": "aggregate",
            "starting": "latest",
            "allow_truncated_start": "true",
            "max_events_per_batch": "7",
            "parallelism": "5",
            "min_task_events": "11",
            "target_task_events": "13",
            "read_timeout_ms": "1700",
            "kafka.sasl.password": "hush",
        }
    )
    assert options == SourceOptions(
        source="inv",
        servers=Servers(
            KafkaSettings("b:9092", {"sasl.password": "hush"}), RedisSettings("redis://r:6379/0", "hush")
        ),
        tables=("inventory.orders", "inventory.order_lines"),
        timeline=3,
        scope=Scope.AGGREGATE,
        starting="latest",
        allow_truncated_start=True,
        max_events_per_batch=7,
        parallelism=5,
        min_task_events=11,
        target_task_events=13,
        read_timeout_ms=1700,
    )
    assert "hush" not in repr(options)


def test_secrets_are_not_shown() -> None:
    options = SourceOptions.parse(REQUIRED | {"redis.password": "hush", "kafka.sasl.password": "hush"})
    assert "hush" not in repr(options)


@pytest.mark.parametrize("missing", ["source", "bootstrap", "tables"])
def test_a_required_option_that_is_missing_is_named_with_an_example(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"'{missing}': expected .*, got nothing; .*e.g.") as caught:
        SourceOptions.parse({k: v for k, v in REQUIRED.items() if k != missing})
    assert f"option {missing!r}" in str(caught.value)


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="did you mean max_events_per_batch"):
        SourceOptions.parse(REQUIRED | {"max_events_in_batch": "1"})
    with pytest.raises(ConfigError, match=r"is not a known key; known: .*bootstrap, redis_url"):
        SourceOptions.parse(REQUIRED | {"zzz": "1"})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("source", " ", "is empty"),
        ("tables", "orders", "expected schema.table"),
        ("tables", 'a."b,c.d', "expected schema.table"),
        ("tables", '"a.b".c', "has a dot in its name"),
        ("tables", 'a.b,"a"."b"', "names a table twice"),
        ("tables", "a.b,a.b", "names a table twice"),
        ("timeline", "0", "expected a whole number from 1 on"),
        ("max_events_per_batch", "many", "expected a whole number"),
        ("max_events_per_batch", "0", "expected a whole number from 1 on"),
        ("scope", "both", "expected 'strict' or 'aggregate'"),
        ("starting", "yesterday", "expected 'earliest' or 'latest'"),
        ("allow_truncated_start", "perhaps", "expected true or false"),
        ("redis_url", "localhost:6379", "does not have the form"),
        ("redis_url", "redis://:hush@r:6379", "use option 'redis.password'"),
        ("kafka.isolation.level", "read_uncommitted", "cannot be set"),
        ("kafka.bootstrap.servers", "x", "use the option 'bootstrap'"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(name: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        SourceOptions.parse(REQUIRED | {name: value})
    assert f"option '{name}" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_options_travel_to_the_tasks() -> None:
    options = SourceOptions.parse(REQUIRED | {"kafka.client.id": "x"})
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own bytes


def test_names_are_quoted_as_in_sql() -> None:
    topics = '{"s.\\"a,b\\"": "elsewhere"}'
    options = SourceOptions.parse(REQUIRED | {"tables": 's."a,b", s.c.d', "topics": topics})
    assert options.tables == ("s.a,b", "s.c.d")
    assert options.topics == {"elsewhere", "inv.s.c.d"}


def test_topics_that_were_renamed_are_read_where_they_are() -> None:
    options = SourceOptions.parse(REQUIRED | {"topics": '{"inventory.orders": "all"}'})
    assert options.topics == {"all", "inv.inventory.order_lines"}
    assert options.source_topics.data("inventory.orders") == "all"


def test_several_tables_may_share_a_topic() -> None:
    topics = '{"inventory.orders": "all", "inventory.order_lines": "all"}'
    assert SourceOptions.parse(REQUIRED | {"topics": topics}).topics == {"all"}


@pytest.mark.parametrize(
    ("topics", "problem"),
    [
        ("inventory.orders=all", "line 1 column 1"),
        ("[]", "expected a table"),
        ('{"inventory.orders": 1}', "expected a text"),
        ('{"inventory.orders": ""}', "it is empty"),
        ('{"inventory.order": "all"}', "names 'inventory.order', which is not in 'tables'"),
    ],
)
def test_topics_that_cannot_be_used_are_refused(topics: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SourceOptions.parse(REQUIRED | {"topics": topics})


def test_the_connector_s_configuration_is_an_object_of_texts() -> None:
    options = SourceOptions.parse(REQUIRED | {"connect_properties": '{"time.precision.mode": "connect"}'})
    assert options.connect_properties == {"time.precision.mode": "connect"}
    with pytest.raises(ConfigError, match=r"'connect_properties.tombstones.on.delete': expected a text"):
        SourceOptions.parse(REQUIRED | {"connect_properties": '{"tombstones.on.delete": true}'})


def test_a_schema_registry_is_reached_with_user_and_password() -> None:
    registry = {"schema_registry": "http://r:1", "schema_registry.user": "u"}
    options = SourceOptions.parse(REQUIRED | registry | {"schema_registry.password": "hush"})
    assert options.servers.registry == RegistrySettings(url="http://r:1", user="u", password="hush")
    assert "hush" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own bytes


def test_an_address_of_a_schema_registry_must_be_one_and_hold_no_password() -> None:
    with pytest.raises(ConfigError, match=r"schema_registry.*contains credentials") as caught:
        SourceOptions.parse(REQUIRED | {"schema_registry": "http://u:hush@r:1"})
    assert "hush" not in str(caught.value)
