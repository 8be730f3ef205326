"""A pipeline over a service's topics and a database's: both of one producer, at the database's commits.

Real PostgreSQL, Debezium, Kafka, Redis, sidecars and Spark; the service is the example of the documentation,
and is killed. The certifier judges the view against the committed states of the database: a message that a
reader sees always belongs to the row beside it.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from slackwater.dev import DevStack
from slackwater.protocol import SystemClock, decode_commit_record
from slackwater.protocol.keys import commit_topic, cut_log_topic
from slackwater_certify import Connections, Mode, certify, load_specification
from slackwater_lab.database.statements import create_tables, current_lsn, write_first, write_last
from slackwater_lab.database.writers import Writers
from slackwater_lab.programs import Product, Program, slackwater_command, write_run_settings
from slackwater_lab.topics import read_to_end
from slackwater_lab.watching import Visibility
from slackwater_lab.workloads import WORKLOADS
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

SEED = 5
DATABASE, SOURCE, OUTPUT = "inv", "told", "order_mails"
TABLES = ("inventory.orders", "inventory.order_lines")
WORKLOAD = WORKLOADS["orders"](SEED, 60)
SECONDS = 900.0
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "service_beside_its_database.py"
VIEW = """
SELECT TRANSACTIONALLY o.id, o.status, count(l.id) AS lines, max(m.status) AS mailed
FROM inventory.orders o
JOIN service.mail m ON m.id = o.id
LEFT JOIN inventory.order_lines l ON l.order_id = o.id
GROUP BY o.id
"""
FOLDER = {
    "pipeline.toml": f"""
name = "{OUTPUT}"
source = "{SOURCE}"
emit = "transactions"
[output]
topic = "{OUTPUT}"
partitions = 2
""",
    "views/order_mails.sql": VIEW,
    "certified.sql": """
SELECT o.id, o.status, count(l.id) AS lines, o.status AS mailed
FROM inventory.orders o LEFT JOIN inventory.order_lines l ON l.order_id = o.id GROUP BY o.id, o.status
""",
    "certify.toml": f"""
[output]
kind = "topic"
name = "{OUTPUT}"
commits = "{OUTPUT}.commits"
lsn_header = "slackwater-commit-lsn"
[source]
name = "{DATABASE}"
schema = "tables.sql"
[view]
sql = "certified.sql"
key = ["id"]
""",
}


class Service:
    """The database with its connector, the service, sidecars for both sources, and a pipeline."""

    def __init__(self, stack: DevStack, folder: Path, running: ExitStack) -> None:
        self.stack = stack
        self.pipeline = folder / OUTPUT
        for name, text in FOLDER.items():
            path = self.pipeline / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        shutil.copyfile(repository_pipeline("order_totals") / "schema.sql", self.pipeline / "tables.sql")
        schema = (self.pipeline / "tables.sql").read_text()
        mails = "CREATE TABLE service.mail (id bigint PRIMARY KEY, status text NOT NULL);\n"
        (self.pipeline / "schema.sql").write_text(schema + mails)
        self._product = running.enter_context(Product(stack, folder / "product"))
        create_tables(self.dsn, WORKLOAD)
        write_first(self.dsn, WORKLOAD)
        stack.start_connector(TABLES)
        stack.wait_until_streaming()
        servers = ("--bootstrap", stack.kafka.bootstrap, "--redis-url", stack.redis.url)
        for source in (DATABASE, SOURCE):
            sidecar = ("--config", "/dev/null", "sidecar", "--source", source, *servers)
            self._product.start(f"sidecar-{source}", slackwater_command(*sidecar))
        self._wait_for_cuts()
        self.start("service")
        settings = write_run_settings(folder / "run.toml", folder)
        known = ("--connect-url", stack.connect.address)
        run = ("--config", str(settings), "run", str(self.pipeline), *servers, *known, "--master", "local[1]")
        self._product.start("pipeline", slackwater_command(*run, "--checkpoint", str(folder / "checkpoint")))
        self.visible = Visibility(stack.kafka.bootstrap, OUTPUT, SystemClock())
        self.visible.start()
        running.callback(self.visible.stop)

    @property
    def dsn(self) -> str:
        return self.stack.postgres.dsn()

    def start(self, name: str) -> Program:
        """Starts an instance of the service."""
        return self._product.start(
            name, (sys.executable, str(SCRIPT), self.stack.kafka.bootstrap, DATABASE, SOURCE)
        )

    def kill(self, name: str) -> None:
        self._product.programs.pop(name).kill()

    def pause(self, name: str) -> Program:
        program = self._product.programs[name]
        program.pause()
        return program

    def _wait_for_cuts(self) -> None:
        """The topic that the service reads is made by the sidecar."""
        admin = AdminClient({"bootstrap.servers": self.stack.kafka.bootstrap})
        cuts = cut_log_topic(DATABASE)
        assert self._product.wait_until(lambda: cuts in admin.list_topics(timeout=60).topics, SECONDS)

    def wait_until_visible(self, lsn: int) -> None:
        words = (program.last_words() for program in self._product.programs.values())
        assert self._product.wait_until(lambda: self.visible.newest_lsn >= lsn, SECONDS), "\n".join(words)


@pytest.fixture
def service(dev_stack: Callable[..., DevStack], tmp_path: Path) -> Iterator[Service]:
    stack = dev_stack(prefix=DATABASE, partitions=3)
    with ExitStack() as running:
        running.callback(stack.stop)
        yield Service(stack, tmp_path, running)


def test_messages_and_rows_of_one_producer_are_of_one_commit_for_a_pipeline_that_joins_them(
    service: Service,
) -> None:
    service.wait_until_visible(1)
    writers = Writers(service.dsn, WORKLOAD, count=2, changes_per_second=40.0, clock=SystemClock())
    writers.start()
    try:
        for number in range(3):
            service.kill("service")
            service.start("service")
            sys.stdout.write(f"killed: {number}\n")
            service.wait_until_visible(current_lsn(service.dsn))
        zombie = service.pause("service")
        service.start("newer")
        service.wait_until_visible(current_lsn(service.dsn))
        zombie.resume()
        assert zombie.wait(SECONDS) != 0, "fenced, thrown out of its group, or late: it writes no more"
    finally:
        writers.stop()
    service.wait_until_visible(write_last(service.dsn, TABLES[0]))

    connections = Connections(bootstrap=service.stack.kafka.bootstrap, dsn=service.dsn)
    certificate = certify(load_specification(service.pipeline / "certify.toml"), connections, mode=Mode.BOTH)
    assert certificate.examples == {}
    assert certificate.is_clean
    assert certificate.final_differences == 0
    messages = read_to_end(service.stack.kafka.bootstrap, commit_topic(SOURCE))
    records = [decode_commit_record(message.value() or b"") for message in messages]
    lsns = [record.commit_lsn for record in records]
    assert lsns == sorted(set(lsns)), "each commit of the database once, in order"
