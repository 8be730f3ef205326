"""From wheels to a pipeline on a cluster that outlives its driver's machine, and to the dashboards about it.

A team has an empty environment and a database. It installs the wheels, writes a pipeline, tests and packs it.
A standalone cluster runs it with its checkpoint in object storage. Then the driver's machine is lost, and
the pipeline is started elsewhere, from the archive, with nothing but the object store and Kafka.
The certifier judges every document against the committed states of the database. A Prometheus has scraped it
all, and is asked every query of the dashboards. Only the judges are of this repository's environment.

How it was seen to fail: without the control plane, whose metrics the dashboard of the fleet asks for; with
wheels whose runs begin a batch before the one that the output's progress names, and publish it again.
"""

import json
import math
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import psycopg
import pytest

from slackwater.dev import DevStack
from slackwater.dev.server import LOOPBACK, free_port
from slackwater_certify import Connections, Mode, certify, load_specification
from slackwater_lab.database.statements import current_lsn
from slackwater_lab.programs import Product
from slackwater_lab.servers.spark_cluster import SECONDS, DriverMachine, SparkCluster, shipped_pythons
from slackwater_lab.servers.storage import ObjectStore

# Its parts in CI: test_wheels.py, tests/chaos/test_faults.py (a killed run is started again),
# packages/slackwater/tests/pipeline/test_s3a.py (a checkpoint in object storage),
# tests/infra/test_dashboards.py.
pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

DASHBOARDS = Path(__file__).parents[2] / "infra" / "dashboards"
CERTIFICATE = """\
[output]
kind = "topic"
name = "revenue.revenue"
commits = "revenue.revenue.commits"
lsn_header = "slackwater-commit-lsn"
[source]
name = "inv"
schema = "schema.sql"
[view]
sql = "views/revenue.sql"
key = ["customer"]
"""


_ASK_SECONDS = 60.0
_SCRAPE = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: slackwater
    static_configs:
      - targets: {targets}
"""


class Prometheus:
    """A real one, which scrapes pages once a second, and is asked as Grafana asks it.

    Args:
        program: Where it is installed.
        folder: Its data and log; created.
        targets: ``HOST:PORT`` of each page; they need not answer yet.
    """

    def __init__(self, program: str, folder: Path, targets: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._address = f"{LOOPBACK}:{free_port()}"
        config = folder / "prometheus.yml"
        config.write_text(_SCRAPE.format(targets=json.dumps(list(targets))))
        self.command = (
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._address}",
        )
        """Starts it; it ends with SIGTERM."""

    def answers(self, query: str) -> list[float]:
        """Asks for the values that a query has now; none while Prometheus does not answer yet.

        A quotient or a quantile of nothing is no value.

        Raises:
            ValueError: it refuses the query.
        """
        parameters = urlencode({"query": query})
        try:
            with urlopen(f"http://{self._address}/api/v1/query?{parameters}", timeout=_ASK_SECONDS) as page:
                answer: dict[str, Any] = json.load(page)
        except URLError as error:
            if getattr(error, "code", None) is not None:
                raise ValueError(f"{query}: {error}") from error
            return []
        values = [float(series["value"][1]) for series in answer["data"]["result"]]
        return [value for value in values if not math.isnan(value)]


class Cashier:
    """Writes invoices, pays and deletes them, each in a transaction of its own, until it is stopped."""

    def __init__(self, dsn: str) -> None:
        self._dsn, self._stop = dsn, threading.Event()
        self._thread = threading.Thread(target=self._write, name="writes invoices")
        self._rng, self._id = random.Random(7), 0

    def __enter__(self) -> "Cashier":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def transaction(self, connection: psycopg.Connection) -> None:
        """Two new invoices, and one of the earlier ones that changes."""
        old = self._rng.randint(1, self._id + 1)
        change = self._rng.choice(["UPDATE public.invoice SET paid = NOT paid", "DELETE FROM public.invoice"])
        with connection.transaction():
            for _ in range(2):
                self._id += 1
                row = (self._id, f"customer {self._rng.randrange(9)}", self._rng.randrange(99_999), False)
                connection.execute("INSERT INTO public.invoice VALUES (%s, %s, %s / 100.0, %s)", row)
            connection.execute(f"{change} WHERE id = %s".encode(), (old,))

    def _write(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(0.1):
                self.transaction(connection)


class Journey:
    """The team's machine, with what the wheels have brought; a stack of servers, and a cluster."""

    def __init__(
        self, folder: Path, commands: Path, ran: Callable[..., str], stack: DevStack, store: ObjectStore
    ) -> None:
        self.folder, self.commands, self.stack = folder, commands, stack
        self.pipeline, self.archive = folder / "revenue", folder / "revenue.tar.gz"
        self.pages = [f"{LOOPBACK}:{free_port()}" for _ in range(3)]
        self._ran, self._store = ran, store

    def slackwater(self, *words: str | Path) -> str:
        """Runs a command of the team's to its end."""
        return self._ran(self.commands / "slackwater", *words)

    def conf(self, cluster: SparkCluster) -> dict[str, str]:
        """What an administrator has written into ``spark-defaults.conf``."""
        return {
            "spark.master": cluster.master.address,
            "spark.executor.memory": "512m",
            "spark.cores.max": "1",  # one executor, on either of the workers
            "spark.pyspark.python": "./environment/bin/python",
            "spark.archives": "revenue.tar.gz#environment",
            **self._store.spark_conf(),
        }

    def run_options(self) -> Sequence[str]:
        servers = ("--bootstrap", self.stack.kafka.bootstrap, "--redis-url", self.stack.redis.url)
        checkpoint = f"s3a://{self._store.bucket}/journey"
        known = ("--connect-url", self.stack.connect.address)
        return (*servers, *known, "--checkpoint", checkpoint, "--http", self.pages[0])


@pytest.fixture
def journey(
    dev_stack: Callable[..., DevStack],
    object_store: ObjectStore,
    install: Callable[[str], Path],
    ran: Callable[..., str],
    tmp_path: Path,
) -> Journey:
    """A team that has installed the wheels."""
    stack = dev_stack(prefix="inv", partitions=2)
    return Journey(tmp_path, install("slackwater[control,spark]"), ran, stack, object_store)


def test_a_pipeline_from_wheels_outlives_its_driver_s_machine_and_its_dashboards_answer(
    journey: Journey, subtests: pytest.Subtests
) -> None:
    assert "slackwater test" in journey.slackwater("new", journey.pipeline)
    assert "2 passed, 0 failed" in journey.slackwater("test", journey.pipeline)
    assert "revenue==0.1.0" in journey.slackwater("package", journey.pipeline, "-o", journey.archive)
    dsn = journey.stack.postgres.dsn()
    cashier = Cashier(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((journey.pipeline / "schema.sql").read_text().encode())
        cashier.transaction(connection)
    journey.stack.start_connector(["public.invoice"])
    journey.stack.wait_until_streaming()

    with ExitStack() as running:
        product = running.enter_context(
            Product(
                journey.stack,
                journey.folder / "product",
                command=lambda *words: (str(journey.commands / "slackwater"), *words),
            )
        )
        prometheus = start_prometheus(product, journey)
        product.start_sidecar("--http", journey.pages[1], "--control", journey.pages[2])
        product.wait_for_cut_log(SECONDS)
        cluster = running.enter_context(SparkCluster(journey.folder / "cluster"))
        workers = cluster.start_workers("worker")
        visible = product.watch(journey.pipeline)

        first = DriverMachine(journey.folder / "first", journey.conf(cluster), journey.commands)
        shutil.copytree(journey.pipeline, first.folder / "revenue")
        shutil.copy(journey.archive, first.folder)
        driver = first.start("slackwater", "run", "revenue", *journey.run_options())
        with cashier:
            first.wait_until(lambda: len(visible.seen) > 5, driver)
            assert shipped_pythons(workers), "tasks run on the cluster, with the Python that was shipped"
            first.lose(driver)

            second = DriverMachine(journey.folder / "second", journey.conf(cluster), Path("/usr/bin"))
            shutil.copy(journey.archive, second.folder)
            python = second.python_of(journey.archive)
            driver = second.start(
                *python, "-m", "slackwater", "run", "revenue==0.1.0", *journey.run_options()
            )
            running.callback(driver.wait, SECONDS)
            running.callback(driver.terminate)
            before = current_lsn(dsn)
            second.wait_until(lambda: visible.newest_lsn > before, driver)
            with subtests.test("dashboards"):
                check_dashboards(prometheus, lambda seen: second.wait_until(seen, driver))
        before = current_lsn(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            cashier.transaction(connection)
        second.wait_until(lambda: visible.newest_lsn > before, driver)
    check_documents(journey, dsn)


def start_prometheus(product: Product, journey: Journey) -> Prometheus | None:
    """Starts one that scrapes what the product serves, if this machine has it."""
    installed = shutil.which("prometheus")
    if installed is None:
        return None
    prometheus = Prometheus(installed, journey.folder / "prometheus", journey.pages)
    product.start("prometheus", prometheus.command)
    return prometheus


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    """The queries of a dashboard as Grafana asks them when all is chosen."""
    chosen = {"$__rate_interval": "5m"}
    chosen |= {f"${each['name']}": ".*" for each in dashboard["templating"]["list"]}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in chosen.items():
                query = query.replace(name, value)
            yield query


def check_dashboards(prometheus: Prometheus | None, wait_until: Callable[[Callable[[], bool]], None]) -> None:
    """Asks every query of every dashboard until it has an answer; where nothing went wrong, that is 0."""
    if prometheus is None:
        pytest.skip("Prometheus is not installed: the dashboards' queries are not asked")
    asked = [query for path in DASHBOARDS.glob("*.json") for query in queries(json.loads(path.read_text()))]
    assert len(asked) > 40
    open_questions = set(asked)

    def all_are_answered() -> bool:
        open_questions.difference_update([q for q in open_questions if prometheus.answers(q)])
        return not open_questions

    try:
        wait_until(all_are_answered)
    finally:
        assert not open_questions


def check_documents(journey: Journey, dsn: str) -> None:
    """Judges all that readers have seen, and what they see at the end."""
    (journey.pipeline / "certify.toml").write_text(CERTIFICATE)
    connections = Connections(bootstrap=journey.stack.kafka.bootstrap, dsn=dsn)
    specification = load_specification(journey.pipeline / "certify.toml")
    certificate = certify(specification, connections, mode=Mode.ORACLE)
    assert certificate.examples == {}
    assert certificate.is_clean
    assert certificate.final_differences == 0
