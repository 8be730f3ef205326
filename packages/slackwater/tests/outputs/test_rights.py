"""A user of Kafka who may not do all that a pipeline does: what is missing is named, and nothing is lost."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import OutputRefusedError, SinkStep
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.protocol import KafkaSettings, UnavailableError
from slackwater_lab.probes import LookAt
from slackwater_lab.secured_servers import broker_with_user
from slackwater_lab.servers.stack import LabBroker

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
Change = Callable[[KafkaSinkSettings], KafkaSinkSettings]
Topics = Any  # the reader of conftest.py
QUERY = "0f5c2f6e-query"
USER, PASSWORD = "writer", "secret-of-the-writer"
SECONDS = 60.0
ONE_TOPIC = "one topic"
"""Of two views."""
OF_BOTH = pytest.mark.parametrize(
    "settings", ["one view", pytest.param(ONE_TOPIC, marks=pytest.mark.full)], indirect=True
)
T, X = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabBroker]:
    """Asks who a client is and lets him do what ACLs say."""
    with broker_with_user(tmp_path_factory.mktemp("kafka"), USER, PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def bootstrap(broker: LabBroker) -> str:
    """For who may do everything."""
    return broker.bootstrap


class Rights:
    def __init__(self, broker: LabBroker) -> None:
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def grant(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        for operation in operations:
            binding = AclBinding(*self._words(kind, name, operation))
            self._admin.create_acls([binding])[binding].result(SECONDS)
            self._await(kind, name, operation, is_there=True)

    def revoke(self, kind: ResourceType, name: str, operation: AclOperation) -> None:
        found = AclBindingFilter(*self._words(kind, name, operation))
        assert self._admin.delete_acls([found])[found].result(SECONDS), "the right was not there"
        self._await(kind, name, operation, is_there=False)

    def _await(self, kind: ResourceType, name: str, operation: AclOperation, *, is_there: bool) -> None:
        """Waits until the broker, too, knows what the controller has written."""
        same = AclBindingFilter(*self._words(kind, name, operation))
        while bool(self._admin.describe_acls(same).result(SECONDS)) != is_there:
            pass

    @staticmethod
    def _words(kind: ResourceType, name: str, operation: AclOperation) -> tuple[Any, ...]:
        return (
            kind,
            name,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )


@pytest.fixture
def rights(broker: LabBroker) -> Rights:
    return Rights(broker)


@pytest.fixture(params=["one view"])
def settings(
    broker: LabBroker,
    rights: Rights,
    in_avro: Change,
    in_one_topic: Change,
    request: pytest.FixtureRequest,
) -> KafkaSinkSettings:
    """Those of a pipeline whose user has the rights that the documentation asks for."""
    name = f"p{uuid.uuid4().hex[:12]}"
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    found = KafkaSinkSettings(
        pipeline=name,
        outputs=(OutputTopic(f"{name}.out", 2),),
        kafka=KafkaSettings(broker.bootstrap_for("users"), options),
    )
    found = in_avro(found if request.param == "one view" else in_one_topic(found))
    for topic in (*found.written_topics, found.progress_topic):
        rights.grant(
            T,
            topic,
            AclOperation.CREATE,
            AclOperation.WRITE,
            AclOperation.READ,
            AclOperation.DESCRIBE_CONFIGS,
        )
    rights.grant(X, found.transactional_id, AclOperation.WRITE)
    return found


def write(settings: KafkaSinkSettings, *batches: DocumentBatch) -> None:
    sink = KafkaSink(settings)
    try:
        sink.open()
        for batch in batches:
            sink.write(QUERY, batch)
    finally:
        sink.close()


@pytest.fixture
def resources(settings: KafkaSinkSettings) -> dict[str, tuple[ResourceType, str]]:
    """By words for them."""
    return {
        "output": (T, settings.outputs[0].name),
        "commits": (T, settings.outputs[0].commits),
        "commits in Avro": (T, f"{settings.outputs[0].name}.commits-avro"),
        "progress": (T, settings.progress_topic),
        "transactional id": (X, settings.transactional_id),
    }


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "resource", "operation"),
    [
        ("one view", "output", AclOperation.WRITE),
        ("one view", "output", AclOperation.READ),
        pytest.param("one view", "commits", AclOperation.WRITE, marks=pytest.mark.slow),
        pytest.param("one view", "commits", AclOperation.READ, marks=pytest.mark.slow),
        ("one view", "commits in Avro", AclOperation.WRITE),
        pytest.param("one view", "commits in Avro", AclOperation.READ, marks=pytest.mark.slow),
        pytest.param("one view", "progress", AclOperation.WRITE, marks=pytest.mark.slow),
        pytest.param("one view", "progress", AclOperation.READ, marks=pytest.mark.slow),
        ("one view", "transactional id", AclOperation.WRITE),
        (ONE_TOPIC, "output", AclOperation.WRITE),
        pytest.param(ONE_TOPIC, "output", AclOperation.READ, marks=pytest.mark.slow),
        pytest.param(ONE_TOPIC, "commits", AclOperation.WRITE, marks=pytest.mark.slow),
        pytest.param(ONE_TOPIC, "commits in Avro", AclOperation.WRITE, marks=pytest.mark.slow),
    ],
    indirect=["settings"],
)
def test_a_right_that_is_taken_away_is_named_with_its_user_and_the_next_run_goes_on(
    settings: KafkaSinkSettings,
    rights: Rights,
    resources: dict[str, tuple[ResourceType, str]],
    make_batch: MakeBatch,
    topics: Topics,
    resource: str,
    operation: AclOperation,
) -> None:
    write(settings, make_batch(0))
    kind, name = resources[resource]
    rights.revoke(kind, name, operation)
    with pytest.raises(OutputRefusedError) as refused:
        write(settings, make_batch(1))
    told = str(refused.value)
    _, _, grant = told.partition(f"grant the user {USER!r} ")
    assert operation.name.capitalize() in grant
    assert name in grant
    assert PASSWORD not in told
    assert len(topics.documents(settings)) == len(topics.commits(settings)) * 10 == 10
    rights.grant(kind, name, operation)
    write(settings, make_batch(1))
    assert len(topics.documents(settings)) == 20
    assert [record.batch_id for record in topics.progress(settings)] == [0, 1]


@OF_BOTH
def test_a_right_that_is_taken_away_within_a_batch_ends_the_run(
    settings: KafkaSinkSettings, rights: Rights, make_batch: MakeBatch, topics: Topics
) -> None:
    topic = settings.outputs[0].name

    def revoke() -> None:
        rights.revoke(T, topic, AclOperation.WRITE)

    sink = KafkaSink(settings, probe=LookAt(SinkStep.COLLECTED, revoke))
    try:
        sink.open()
        with pytest.raises(OutputRefusedError, match=f"grant the user '{USER}' Write.* {topic}"):
            sink.write(QUERY, make_batch(0))
    finally:
        sink.close()
    rights.grant(T, topic, AclOperation.WRITE)
    assert topics.documents(settings) == []
    write(settings, make_batch(0))
    assert len(topics.documents(settings)) == 10


@OF_BOTH
def test_topics_that_may_not_be_made_are_named(
    settings: KafkaSinkSettings, rights: Rights, make_batch: MakeBatch
) -> None:
    topic = settings.outputs[0].name
    rights.revoke(T, topic, AclOperation.CREATE)
    with pytest.raises(
        OutputRefusedError, match=f"the creation of topics .*{topic}.*grant the user"
    ) as refused:
        write(settings, make_batch(0))
    assert "Create if they do not exist" in str(refused.value)
    rights.grant(T, topic, AclOperation.CREATE)
    write(settings, make_batch(0))


@pytest.mark.full
def test_a_wrong_password_ends_the_run_and_is_not_told(settings: KafkaSinkSettings) -> None:
    options = {**settings.kafka.options, "sasl.password": "wrong-one"}
    wrong = replace(
        settings,
        kafka=KafkaSettings(settings.kafka.bootstrap, options),
        request_timeout=timedelta(seconds=5),
    )
    with pytest.raises(UnavailableError) as refused:
        write(wrong)
    assert "wrong-one" not in str(refused.value)
