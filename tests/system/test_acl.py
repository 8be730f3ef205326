"""Each role works with the rights that `slackwater acl` prints for it, on brokers that refuse all else."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
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
from slackwater_markers import KafkaCutLog, MarkersError
from slackwater_protocol import (
    KafkaSettings,
    Servers,
    SourceTopics,
    SystemClock,
)
from slackwater_protocol.keys import (
    cut_log_topic,
)
from slackwater_protocol.rights import (
    Operation,
    Resource,
    Right,
    producer_rights,
    reader_rights,
    sidecar_rights,
)
from slackwater_testing.errors import ProgramEndedError
from slackwater_testing.generator import TopicFiller
from slackwater_testing.programs import Program, slackwater_command
from slackwater_testing.publishing import publishing_pipeline
from slackwater_testing.secured_servers import SecuredServers
from slackwater_testing.workloads.orders import OrdersWorkload

pytestmark = [pytest.mark.system, pytest.mark.spark]

PIPELINE = Path(__file__).parents[2] / "pipelines" / "orders"
OUTPUT = "orders_with_lines"
SECONDS = 600.0
PATIENCE = 120.0
"""A role that has not done its work by then, lacks something."""
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


class LackingError(Exception):
    """A role could not do its work, or complained."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a role does with names that nobody has used, and the rights that it needs for it."""

    rights: list[Right]
    work: Callable[[], None]
    """Raises if it cannot be done."""


@dataclass(frozen=True, slots=True)
class World:
    """Servers, and programs that come as a user."""

    servers: SecuredServers
    folder: Path

    def kafka(self, user: str) -> KafkaSettings:
        return KafkaSettings(self.servers.kafka.bootstrap_for("scram"), self.servers.options(user, "scram"))

    @property
    def plain(self) -> KafkaSettings:
        """Of whoever may do everything."""
        return KafkaSettings(self.servers.kafka.bootstrap)

    def new_name(self) -> str:
        return f"n{uuid.uuid4().hex[:8]}"

    def run(self, user: str, *arguments: str, until: Callable[[], bool]) -> None:
        """Runs a command until something has happened.

        Raises:
            LackingError: It complains, or fails.
        """
        name = self.new_name()
        made = Program(name, lambda: slackwater_command(*arguments), self.folder)
        made.start(folder=self.folder, environment=self.servers.environment(user, "scram"))
        deadline = SystemClock().monotonic() + PATIENCE
        try:
            while made.is_well and not until():
                if complains(made.output()) or SystemClock().monotonic() > deadline:
                    raise LackingError(made.last_words())
            if complains(made.output()):
                raise LackingError(made.last_words())
            made.check()
        except ProgramEndedError as error:
            raise LackingError(str(error)) from error
        finally:
            made.stop()


def complains(output: str) -> bool:
    """Whether it says that something is not allowed."""
    return any(each in output.lower() for each in ("authorization failed", "not authorized", "not allowed"))


def trial_of_a_sidecar(world: World) -> Trial:
    source = world.new_name()
    with TopicFiller(world.plain.bootstrap, OrdersWorkload(20, 1), prefix=source, partitions=1) as filler:
        filler.fill(20)

    def has_cut() -> bool:
        if cut_log_topic(source) not in world.servers.admin.list_topics(timeout=60).topics:
            return False
        with closing(KafkaCutLog(source, world.plain.bootstrap)) as log:
            return log.newest() is not None

    work = partial(world.run, "sidecar", "sidecar", "--source", source, until=has_cut)
    return Trial(sidecar_rights(SourceTopics(source), None), work)


def trial_of_a_member(world: World) -> Trial:
    name = world.new_name()
    publish(world, name)
    return Trial(
        reader_rights([f"{name}.one"], "mailer"), partial(read, world.kafka("mailer"), f"{name}.one", 10)
    )


def trial_of_a_producer(world: World) -> Trial:
    name = world.new_name()
    return Trial(producer_rights(name), partial(write, world.kafka("billing"), name))


def publish(world: World, name: str) -> None:
    output = f'topic = "{name}.one"'
    with publishing_pipeline(
        world.folder / name, view="one", output=output, servers=Servers(world.plain)
    ) as made:
        made.publish({1: 1})


TRIALS: Mapping[str, tuple[str, Callable[[World], Trial]]] = {
    "sidecar": ("sidecar", trial_of_a_sidecar),
    "member": ("mailer", trial_of_a_member),
    "producer": ("billing", trial_of_a_producer),
}


@pytest.fixture
def world(servers: SecuredServers, tmp_path: Path) -> World:
    return World(servers, tmp_path)


def superfluous(world: World, user: str, make: Callable[[World], Trial]) -> list[Right]:
    """Returns the rights without which a role can do its work; with all of them it has to."""
    admin, found, missing = world.servers.admin, list[Right](), 0
    while True:
        trial = make(world)
        revoke_all(admin, user)
        rights = trial.rights[:missing] + trial.rights[missing + 1 :]
        if rights:
            grant(admin, user, rights)
        try:
            trial.work()
        except (ClientError, MarkersError, LackingError, NothingReadError):
            if missing == len(trial.rights):
                raise
        else:
            if missing == len(trial.rights):
                return found
            found.append(trial.rights[missing])
        missing += 1


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "producer" else pytest.mark.full) for name in TRIALS]
)
def test_no_line_of_a_list_can_be_left_out(world: World, name: str) -> None:
    assert superfluous(world, *TRIALS[name]) == []


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
