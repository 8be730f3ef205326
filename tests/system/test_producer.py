"""A pipeline over the topics of a service that writes to Kafka itself, while the service is killed.

Real Kafka, Redis, sidecar and Spark; the service is the example of the documentation. Each state of the view
is compared with what the service did, at every commit. How it was seen to fail: with ENDs that count one
event less than there are, the sidecar waits for ever.
"""

import json
import runpy
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from slackwater.client import OutputTopics, TransactionalConsumer
from slackwater.dev import KafkaBroker, RedisServer
from slackwater.protocol import KafkaSettings, SystemClock, decode_commit_record
from slackwater.protocol.keys import commit_topic
from slackwater_lab.programs import Program, slackwater_command, write_run_settings
from slackwater_lab.topics import read_to_end

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

SECONDS = 600.0
CLOCK = SystemClock()
PAYMENTS = 1200
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "transactional_service.py"
SERVICE = runpy.run_path(str(SCRIPT))
SCHEMA = """
CREATE TABLE bank.account (id bigint PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE bank.payment (
    id bigint PRIMARY KEY, payer bigint NOT NULL, receiver bigint NOT NULL, amount bigint NOT NULL
);
"""
VIEW = """
SELECT TRANSACTIONALLY a.id, a.balance, count(p.id) AS payments, coalesce(sum(p.amount), 0) AS received
FROM bank.account a LEFT JOIN bank.payment p ON p.receiver = a.id GROUP BY a.id
"""
Documents = dict[int, tuple[int, int, int]]
"""Balance, payments and sum that were received, by account."""


def expected() -> Iterator[Documents]:
    """The view after each commit, by what the service does."""
    received: dict[int, list[int]] = {}
    for number, balance in enumerate(islice(SERVICE["balances"](), PAYMENTS), 1):
        if number > 1:
            _, receiver, amount = SERVICE["payment"](number)
            received.setdefault(receiver, []).append(amount)
        yield {
            account: (balance[account], len(received.get(account, [])), sum(received.get(account, [])))
            for account in balance
        }


class Bank:
    """The service, a sidecar for its source, and a pipeline."""

    def __init__(self, bootstrap: str, redis_url: str, folder: Path, running: ExitStack) -> None:
        self.source = f"bank{uuid.uuid4().hex[:8]}"
        self.kafka = KafkaSettings(bootstrap)
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._folder, self._running = folder, running
        pipeline = folder / "balances"
        (pipeline / "views").mkdir(parents=True)
        (pipeline / "schema.sql").write_text(SCHEMA)
        (pipeline / "views" / "balances.sql").write_text(VIEW)
        self.output = f"{self.source}-balances"
        (pipeline / "pipeline.toml").write_text(
            f'name = "{self.output}"\nsource = "{self.source}"\nemit = "transactions"\n'
            f'[output]\ntopic = "{self.output}"\npartitions = 2\n'
        )
        servers = ("--bootstrap", bootstrap, "--redis-url", redis_url)
        self.start(
            "sidecar",
            *slackwater_command("--config", "/dev/null", "sidecar", "--source", self.source, *servers),
        )
        settings = write_run_settings(folder / "run.toml", folder)
        run = ("--config", str(settings), "run", str(pipeline), *servers, "--master", "local[1]")
        self.start("pipeline", *slackwater_command(*run, "--checkpoint", str(folder / "checkpoint")))

    def start(self, name: str, *command: str) -> Program:
        program = Program(name, lambda: command, self._folder)
        program.start(folder=self._folder)
        self._running.callback(program.stop)
        return program

    def serve(self, name: str) -> Program:
        """Starts an instance of the service."""
        return self.start(name, sys.executable, str(SCRIPT), self.kafka.bootstrap, self.source, str(PAYMENTS))

    def committed(self) -> list[int]:
        """The numbers of the payments in the topic with the service's commits."""
        messages = read_to_end(self.kafka.bootstrap, commit_topic(self.source))
        return [decode_commit_record(message.value() or b"").commit_lsn for message in messages]

    def wait_until_committed(self, number: int, service: Program) -> None:
        deadline = CLOCK.monotonic() + SECONDS
        while max(self.committed() if self.is_there() else [0], default=0) < number:
            assert CLOCK.monotonic() < deadline, service.last_words()

    def is_there(self) -> bool:
        """Whether the service has made its topics."""
        return commit_topic(self.source) in self._admin.list_topics(timeout=60).topics

    def states(self) -> Iterator[tuple[int, Documents]]:
        """The view after each commit, as the output has it."""
        state: Documents = {}
        with self._consumer(OutputTopics(self.output)) as consumer:
            deadline = CLOCK.monotonic() + SECONDS
            lsn = 0
            while lsn < PAYMENTS:
                assert CLOCK.monotonic() < deadline, f"visible up to {lsn}"
                transaction = consumer.poll(timedelta(seconds=1))
                if transaction is None:
                    continue
                for record in transaction:
                    found = json.loads(record.value() or b"")
                    state[found["id"]] = found["balance"], found["payments"], found["received"]
                lsn = transaction.commit.lsn
                yield lsn, dict(state)

    def _consumer(self, inputs: OutputTopics) -> TransactionalConsumer:
        return TransactionalConsumer(self.kafka, inputs, group=uuid.uuid4().hex)


@pytest.fixture
def bank(kafka_broker: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> Iterator[Bank]:
    with ExitStack() as running:
        yield Bank(kafka_broker.bootstrap, redis_server.url, tmp_path, running)


def test_a_view_shows_what_a_service_did_at_every_commit_though_it_is_killed_and_doubled(bank: Bank) -> None:
    for number in (1, 200, 400, 600):
        service = bank.serve(f"service-{number}")
        bank.wait_until_committed(number, service)
        service.kill()
    zombie = bank.serve("zombie")
    bank.wait_until_committed(800, zombie)
    zombie.pause()
    service = bank.serve("last")
    bank.wait_until_committed(1000, service)
    zombie.resume()
    assert zombie.wait(SECONDS) != 0, "it is fenced, or comes too late for its own transaction"
    assert service.wait(SECONDS) == 0, service.last_words()

    assert bank.committed() == list(range(1, PAYMENTS + 1)), "each payment once, in order"
    wanted = dict(enumerate(expected(), 1))
    seen = dict(bank.states())
    assert seen == wanted
