"""Each role works with the rights that `slackwater acl` prints for it, on brokers that refuse all else."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from slackwater import main
from slackwater_client import (
    ClientError,
    ClientUnavailableError,
    OutputTopics,
    TransactionalConsumer,
    TransactionalProducer,
)
from slackwater_protocol import KafkaSettings, Servers, SystemClock
from slackwater_protocol.keys import cut_log_topic
from slackwater_protocol.rights import Operation, Resource, Right, producer_rights, reader_rights
from slackwater_testing.generator import TopicFiller
from slackwater_testing.programs import Program, slackwater_command
from slackwater_testing.publishing import publishing_pipeline
from slackwater_testing.secured_servers import SecuredServers
from slackwater_testing.workloads.orders import OrdersWorkload

pytestmark = [pytest.mark.system, pytest.mark.spark]

PIPELINE = Path(__file__).parents[2] / "pipelines" / "orders"
OUTPUT = "orders_with_lines"
SECONDS = 600.0
ROLES: Mapping[str, tuple[str, ...]] = {
    "sidecar": ("sidecar", "--source", "inv"),
    "orders": ("pipeline", str(PIPELINE)),
    "mailer": ("reader", "--topic", OUTPUT, "--group", "mailer"),
    "billing": ("producer", "billing"),
    "viewer": ("viewer", "--source", "inv"),
    "operator": ("operator", "--source", "inv"),
}
OPERATIONS = {
    Operation.READ: AclOperation.READ,
    Operation.WRITE: AclOperation.WRITE,
    Operation.CREATE: AclOperation.CREATE,
    Operation.DELETE: AclOperation.DELETE,
    Operation.DESCRIBE: AclOperation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS: AclOperation.ALTER_CONFIGS,
}
RESOURCES = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}


def rights_of(role: str, capsys: pytest.CaptureFixture[str]) -> list[Right]:
    capsys.readouterr()
    assert main.run(["acl", *ROLES[role], "--user", role, "--as", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return [
        Right(Resource(e["resource"]), e["name"], Operation(e["operation"]), e["is_prefix"]) for e in found
    ]


def grant(admin: AdminClient, user: str, rights: list[Right]) -> None:
    """Grants rights, and waits until the brokers know them."""
    bindings = [
        AclBinding(
            RESOURCES[right.resource],
            right.name,
            ResourcePatternType.PREFIXED if right.is_prefix else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            OPERATIONS[right.operation],
            AclPermissionType.ALLOW,
        )
        for right in rights
    ]
    for made in admin.create_acls(bindings).values():
        made.result(SECONDS)
    while len(admin.describe_acls(everything_of(user)).result(SECONDS)) < len(bindings):
        pass


def everything_of(user: str) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]  # any
        ResourcePatternType.ANY,
        f"User:{user}",
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def revoke_all(admin: AdminClient, user: str) -> None:
    for gone in admin.delete_acls([everything_of(user)]).values():
        gone.result(SECONDS)
    while admin.describe_acls(everything_of(user)).result(SECONDS):
        pass


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServers]:
    """Hold the topics of a connector; users may do nothing at first."""
    users = {name: f"password-of-{name}" for name in ROLES}
    with SecuredServers(tmp_path_factory.mktemp("secured"), users) as running:
        with TopicFiller(
            running.kafka.bootstrap, OrdersWorkload(20, 1), prefix="inv", partitions=2
        ) as filler:
            filler.fill(100)
        yield running


def wait_until(condition: Callable[[], bool], program: Program) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + SECONDS
    while not condition():
        program.check()
        assert clock.monotonic() < deadline, program.last_words()


class NothingReadError(Exception):
    """A consumer was given nothing."""


def read(kafka: KafkaSettings, output: str, seconds: float = 60) -> None:
    with TransactionalConsumer(kafka, OutputTopics(output), group="mailer") as consumer:
        if consumer.poll(timedelta(seconds=seconds)) is None:
            raise NothingReadError


def write(kafka: KafkaSettings, source: str) -> None:
    """Writes twice: the second producer reads where the first one ended."""
    for number in range(2):
        with TransactionalProducer(kafka, source) as producer:
            producer.make_table("public.invoice")
            with producer.transaction() as transaction:
                transaction.insert("public.invoice", {"id": number}, {"total": 120})


@pytest.mark.parametrize("role", ["mailer", "billing"])
def test_no_line_of_a_list_can_be_left_out(servers: SecuredServers, tmp_path: Path, role: str) -> None:
    admin = servers.admin
    kafka = KafkaSettings(servers.kafka.bootstrap_for("scram"), servers.options(role, "scram"))
    missing = 0
    while True:
        name = f"n{uuid.uuid4().hex[:8]}"  # topics that are there need no Create
        if role == "mailer":
            rights = reader_rights([f"{name}.one"], "mailer")
            seconds = 60 if missing == len(rights) else 10
            work = partial(read, kafka, f"{name}.one", seconds)
            plain = Servers(KafkaSettings(servers.kafka.bootstrap))
            output = f'topic = "{name}.one"'
            with publishing_pipeline(tmp_path / name, view="one", output=output, servers=plain) as made:
                made.publish({1: 1})
        else:
            rights, work = producer_rights(name), partial(write, kafka, name)
        revoke_all(admin, role)
        if missing == len(rights):
            grant(admin, role, rights)
            work()
            return
        grant(admin, role, rights[:missing] + rights[missing + 1 :])
        try:
            work()
        except (ClientError, NothingReadError):
            missing += 1
        else:
            pytest.fail(f"nobody needs {rights[missing]}")


def test_every_role_works_with_its_list(
    servers: SecuredServers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = servers.admin

    def program(user: str, *arguments: str) -> Program:
        made = Program(user, lambda: slackwater_command(*arguments), tmp_path)
        made.start(folder=tmp_path, environment=servers.environment(user, "scram"))
        running.callback(made.stop)
        return made

    def ended(user: str, *arguments: str) -> tuple[int, str]:
        made = program(user, *arguments)
        return made.wait(SECONDS), made.output()

    def kafka(user: str) -> KafkaSettings:
        return KafkaSettings(servers.kafka.bootstrap_for("scram"), servers.options(user, "scram"))

    with ExitStack() as running:
        with pytest.raises(ClientUnavailableError), TransactionalProducer(kafka("billing"), "billing"):
            pytest.fail("it has opened without rights")
        for role in ROLES:
            grant(admin, role, rights_of(role, capsys))
        sidecar = program("sidecar", "sidecar", "--source", "inv")
        wait_until(lambda: cut_log_topic("inv") in admin.list_topics(timeout=60).topics, sidecar)
        checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
        code, said = ended("orders", "run", str(PIPELINE), *checkpoint, "--available-now")
        assert code == 0, said
        assert "not allowed" not in said
        assert "authorization failed" not in said
        read(kafka("mailer"), OUTPUT)
        write(kafka("billing"), "billing")
        for asked in (("topology",), ("pipeline", "list"), ("status", "--source", "inv"), ("delay",)):
            code, said = ended("viewer", *asked)
            assert (code, "authorization failed" in said) == (0, False), said
        code, said = ended("viewer", "pipeline", "delete", "orders")
        assert (code, "authorization failed" in said.lower()) == (1, True), said
        code, said = ended("operator", "pipeline", "delete", "orders")
        assert (code, said.splitlines()[-1:]) == (0, ["deleted: orders"]), said
        sidecar.check()
