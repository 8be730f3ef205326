"""Each role works with the rights that `slackwater acl` prints for it, on brokers that refuse all else.

``test_acl_lines.py`` shows that no line of these lists can be left out.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from slackwater.cli import main
from slackwater.client import OutputTopics, TransactionalConsumer, TransactionalProducer
from slackwater.protocol import (
    KafkaSettings,
    SystemClock,
    UnavailableError,
)
from slackwater.protocol.keys import (
    cut_log_topic,
)
from slackwater.protocol.rights import (
    Operation,
    Resource,
    Right,
)
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.programs import Program, slackwater_command, stated_connector
from slackwater_lab.secured_servers import SecuredServers
from slackwater_lab.trials import check_output
from slackwater_lab.workloads.orders import OrdersWorkload

pytestmark = [pytest.mark.system, pytest.mark.spark]

PIPELINE = Path(__file__).parents[2] / "pipelines" / "orders"
REDIS = Path(__file__).parents[2] / "docs" / "sidecar.md"
OUTPUT = "orders_with_lines"
TABLE = "public.invoice"
SECONDS = 600.0
IN_REDIS_REFUSED = "permissions to"
"""Redis says it of commands and of keys."""
ROLES: Mapping[str, tuple[str, ...]] = {
    "sidecar": ("sidecar", "--source", "inv"),
    "orders": ("pipeline", str(PIPELINE)),
    "mailer": ("reader", "--topic", OUTPUT, "--group", "mailer"),
    "billing": ("producer", "billing"),
    "viewer": ("viewer", "--source", "inv"),
    "operator": ("operator", "--source", "inv"),
}


def rights_of(role: str, capsys: pytest.CaptureFixture[str]) -> list[Right]:
    capsys.readouterr()
    assert main.run(["acl", *ROLES[role], "--user", role, "--as", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return [
        Right(Resource(e["resource"]), e["name"], Operation(e["operation"]), e["is_prefix"]) for e in found
    ]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServers]:
    """Hold the topics of a connector; users may do nothing at first."""
    users = {name: f"password-of-{name}" for name in ROLES}
    with SecuredServers(tmp_path_factory.mktemp("secured"), users) as running:
        bootstrap, workload = running.kafka.bootstrap, OrdersWorkload(20, 1)
        TopicFiller(bootstrap, workload, prefix="inv", partitions=2).fill(100)
        yield running


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """Ends what a test has started."""
    with ExitStack() as stack:
        yield stack


def wait_until(condition: Callable[[], bool], program: Program) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + SECONDS
    while not condition():
        program.check()
        assert clock.monotonic() < deadline, program.last_words()


def read(kafka: KafkaSettings) -> None:
    with TransactionalConsumer(kafka, OutputTopics(OUTPUT), group="mailer") as consumer:
        assert consumer.poll(timedelta(seconds=SECONDS)) is not None


def write(kafka: KafkaSettings) -> None:
    with TransactionalProducer(kafka, "billing") as producer:
        producer.make_table(TABLE)
        with producer.transaction() as transaction:
            transaction.insert(TABLE, {"id": 1}, {"total": 120})


def documented_users() -> dict[str, list[str]]:
    """What each user may do in Redis, as docs/sidecar.md#redis says, without the password."""
    lines = [line.split() for line in REDIS.read_text().splitlines() if line.startswith("user slackwater-")]
    return {words[1].removeprefix("slackwater-"): [w for w in words[3:] if w[0] != ">"] for words in lines}


@pytest.mark.full
def test_every_role_works_with_its_list(
    servers: SecuredServers, running: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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

    admin, in_redis = servers.admin, documented_users()
    with pytest.raises(UnavailableError), TransactionalProducer(kafka("billing"), "billing"):
        pytest.fail("it has opened without rights")
    for role, (kind, *_) in ROLES.items():
        servers.grant(role, rights_of(role, capsys))
        servers.limit_in_redis(role, in_redis.get("operator" if kind == "viewer" else kind, ["-@all"]))
    sidecar = program("sidecar", "sidecar", "--source", "inv")
    wait_until(lambda: cut_log_topic("inv") in admin.list_topics(timeout=60).topics, sidecar)
    (tmp_path / "slackwater.toml").write_text(stated_connector("inv"))
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    code, said = ended("orders", "run", str(PIPELINE), *checkpoint, "--available-now")
    assert code == 0, said
    check_output(said)
    assert IN_REDIS_REFUSED not in said
    read(kafka("mailer"))
    write(kafka("billing"))
    looks = [("topology",), ("pipeline", "list"), ("status", "--source", "inv"), ("delay",)]
    for asked in (*looks, ("doctor", "--source", "inv")):
        code, said = ended("viewer", *asked)
        assert (code, "authorization failed" in said) == (0, False), said
    code, said = ended("viewer", "pipeline", "delete", "orders")
    assert (code, "authorization failed" in said.lower()) == (1, True), said
    code, said = ended("operator", "pipeline", "delete", "orders")
    assert (code, said.splitlines()[-1:]) == (0, ["deleted: orders"]), said
    sidecar.check()
    assert IN_REDIS_REFUSED not in sidecar.output()
