"""What a run may not do in Kafka and Redis is named before it begins; real servers that ask who comes."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from slackwater.cli import main
from slackwater.dev import RedisServer
from slackwater.pipeline import load_pipeline
from slackwater.pipeline.definition import rights_of
from slackwater.pipeline.dry_run import ask_for_rights
from slackwater.protocol import KafkaSettings, SystemClock
from slackwater.protocol.keys import frontier_key
from slackwater.protocol.rights import Operation, Resource, Right
from slackwater_lab.secured_servers import broker_with_user
from slackwater_lab.servers.stack import LabBroker

pytestmark = pytest.mark.integration

USER, PASSWORD = "revenue", "secret-of-revenue"
SECONDS = 120.0
PATIENCE = timedelta(seconds=SECONDS)
KINDS = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabBroker]:
    """Lets a user do what ACLs say."""
    with broker_with_user(tmp_path_factory.mktemp("kafka"), USER, PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def admin(broker: LabBroker) -> AdminClient:
    """Of a user who may do everything."""
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def kafka(broker: LabBroker) -> KafkaSettings:
    """As the user."""
    return KafkaSettings(broker.bootstrap_for("users"), LOGIN)


def words(right: Right) -> tuple[Any, ...]:
    operation = AclOperation[right.operation.name]
    name = (KINDS[right.resource], right.name, ResourcePatternType.LITERAL, f"User:{USER}", "*")
    return (*name, operation, AclPermissionType.ALLOW)


def grant(admin: AdminClient, rights: list[Right]) -> None:
    """Returns when the broker knows them."""
    for made in admin.create_acls([AclBinding(*words(right)) for right in rights]).values():
        made.result(SECONDS)
    for right in rights:
        while not admin.describe_acls(AclBindingFilter(*words(right))).result(SECONDS):
            pass


def revoke(admin: AdminClient, rights: list[Right]) -> None:
    filters = [AclBindingFilter(*words(right)) for right in rights]
    for gone in admin.delete_acls(filters).values():
        gone.result(SECONDS)
    for each in filters:
        while admin.describe_acls(each).result(SECONDS):
            pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pipeline whose source and name nobody else has."""
    name = f"p{uuid.uuid4().hex[:8]}"
    found = tmp_path / "revenue"
    assert main.run(["new", str(found), "--source", f"s{name}", "--name", name]) == 0
    return found


@pytest.fixture
def rights(admin: AdminClient, folder: Path) -> Iterator[list[Right]]:
    """What the pipeline needs, and what its user has."""
    found = rights_of(load_pipeline(folder))
    grant(admin, found)
    yield found
    revoke(admin, found)


@pytest.mark.full
def test_each_right_that_is_missing_is_named_and_no_other(
    admin: AdminClient, kafka: KafkaSettings, rights: list[Right]
) -> None:
    def lacking_without(right: Right) -> list[Right]:
        revoke(admin, [right])
        found, _ = ask_for_rights(kafka, rights, PATIENCE)
        grant(admin, [right])
        return found

    topics = sorted({right.name for right in rights if right.resource is Resource.TOPIC})
    made = sorted({right.name for right in rights if right.operation is Operation.CREATE})
    assert ask_for_rights(kafka, rights, PATIENCE)[1] == list(made)
    of_topics = (Operation.CREATE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    for right in rights:
        if right.operation in of_topics:
            assert lacking_without(right) == [right]
    for done in admin.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
        done.result(SECONDS)
    assert ask_for_rights(kafka, rights, PATIENCE)[1] == []
    for right in rights:
        assert lacking_without(right) == ([] if right.operation is Operation.CREATE else [right])


def test_a_topic_that_is_not_shown_is_examined_all_the_same(
    admin: AdminClient, kafka: KafkaSettings, rights: list[Right]
) -> None:
    name = next(right.name for right in rights if right.operation is Operation.ALTER_CONFIGS)
    hides = [
        each for each in rights if each.name == name and each.operation in (Operation.READ, Operation.WRITE)
    ]
    revoke(admin, hides)
    assert ask_for_rights(kafka, rights, PATIENCE)[0] == list(hides)
    alters = [each for each in rights if each.name == name and each not in hides]
    revoke(admin, alters)
    assert ask_for_rights(kafka, rights, PATIENCE)[0] == sorted([*hides, *alters])


def test_an_active_run_does_not_notice(
    admin: AdminClient, kafka: KafkaSettings, rights: list[Right], folder: Path
) -> None:
    transactional_id = next(each.name for each in rights if each.resource is Resource.TRANSACTIONAL_ID)
    topic = f"{load_pipeline(folder).name}.slackwater.progress"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    producer = Producer({**kafka.client_config, "transactional.id": transactional_id})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"written before and after somebody asked")
    producer.flush(SECONDS)
    assert ask_for_rights(kafka, rights, PATIENCE)[0] == []
    producer.commit_transaction(SECONDS)
    reader = Consumer({**kafka.client_config, "group.id": transactional_id})
    clock = SystemClock()
    deadline = clock.monotonic() + SECONDS
    committed = (0, 2)  # the record and the marker of its commit, which Kafka writes a moment later
    while (found := reader.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)) != committed:
        assert clock.monotonic() < deadline, found
    reader.close()


def test_all_that_is_missing_in_kafka_and_redis_is_named_together(
    admin: AdminClient,
    broker: LabBroker,
    redis_server: RedisServer,
    rights: list[Right],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = [right for right in rights if right.resource is Resource.TRANSACTIONAL_ID]
    missing += [right for right in rights if right.operation is Operation.ALTER_CONFIGS]
    assert len(missing) == 2
    revoke(admin, missing)
    for name, value in LOGIN.items():
        monkeypatch.setenv(f"SLACKWATER_KAFKA_{name.upper().replace('.', '_')}", value)
    monkeypatch.setenv("SLACKWATER_REDIS_PASSWORD", PASSWORD)
    source = load_pipeline(folder).source
    argv = ["run", str(folder), "--bootstrap", broker.bootstrap_for("users")]
    argv += ["--redis-url", f"redis://{USER}@127.0.0.1:{redis_server.port}"]
    argv += ["--checkpoint", str(folder.parent / "checkpoint"), "--dry-run"]

    def lines_for(*rules: str) -> list[str]:
        with redis.Redis.from_url(redis_server.url) as client:
            cast("Any", client).execute_command(
                "ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", "resetchannels", *rules
            )
        capsys.readouterr()
        assert main.run(argv) == 1
        return capsys.readouterr().out.splitlines()

    try:
        allowed = lines_for(f"~{frontier_key(source)}", "+hmget")
        assert f"warning  redis: it answers, but has no cut of source {source}" in allowed
        text = "; ".join(map(str, sorted(missing)))
        assert f"problem  rights: the brokers do not allow: {text}" in allowed
        for rules, lacks in (
            ((f"~{frontier_key(source)}", "+hget"), "permissions to run the 'hmget' command"),
            (("~another", "+hmget"), "permissions to access"),
        ):
            refused = lines_for(*rules)
            [at] = [n for n, line in enumerate(refused) if line.startswith("problem  redis: ")]
            assert lacks in refused[at]
            assert "docs/sidecar.md#users lists" in refused[at + 1]
            assert not any(PASSWORD in line for line in refused)
    finally:
        with redis.Redis.from_url(redis_server.url) as client:
            client.acl_deluser(USER)
