"""A chain of pipelines: the second reads the first one's output, the third the second's, each by a sidecar.

The certifier judges all three outputs against the committed states of the database, at the database's commit
LSNs, while pipelines and sidecars are killed. How it was seen to fail: with updates that leave out the row
before, the second pipeline stops, since nobody can tell it which group a row has left; with ENDs that count
one event less than there are, its sidecar waits for ever, since the events beyond could be another run's.
"""

import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from slackwater.api import open_views
from slackwater.cdc.envelope import End, decode_transaction
from slackwater.cli.pipelines import read_topology
from slackwater.client import (
    PipelineOutput,
    StateNotKeptError,
    TopicOutput,
    ViewSnapshot,
    end_lease,
    open_leases,
    read_views,
    take_lease,
)
from slackwater.client.lake_views import LakeOutput
from slackwater.control import ComponentKind, DelayCause, Delays, Topology, measure_delays
from slackwater.dev import DevStack
from slackwater.outputs.lake.delta import DeltaLake
from slackwater.protocol import (
    CommitRecord,
    KafkaSettings,
    LakeSettings,
    Lease,
    SlackwaterError,
    SystemClock,
    decode_commit_record,
)
from slackwater.protocol.keys import commit_topic, transaction_topic
from slackwater.settings.model import KafkaSection, Settings
from slackwater_certify import Certificate, Connections, Mode, certify, load_specification
from slackwater_lab.database.statements import create_tables, current_lsn, write_first, write_last
from slackwater_lab.database.writers import Writers
from slackwater_lab.programs import Product, Program, slackwater_command, write_run_settings
from slackwater_lab.topics import read_to_end
from slackwater_lab.watching import Visibility
from slackwater_lab.workloads import WORKLOADS
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = [pytest.mark.system, pytest.mark.spark]

SEED = 3
SOURCE = "inv"
TABLES = ("inventory.orders", "inventory.order_lines")
WORKLOAD = WORKLOADS["orders"](SEED, 60)
SECONDS = 900.0

THIRD = {
    "pipeline.toml": """
name = "order_crowds"
source = "order_sizes"
emit = "transactions"
[output]
topic = "order_crowds"
partitions = 2
""",
    "schema.sql": """
CREATE TABLE public.order_sizes (
    size bigint PRIMARY KEY, orders bigint, total numeric(38, 2), lines numeric(38, 0)
);
ALTER TABLE public.order_sizes REPLICA IDENTITY FULL;
""",
    "views/order_crowds.sql": """
SELECT TRANSACTIONALLY s.orders, count(*) AS sizes, sum(s.total) AS total, max(s.size) AS largest
FROM public.order_sizes s GROUP BY s.orders
""",
    "certified.sql": """
WITH order_totals AS (
    SELECT o.id, count(l.id) AS line_count, coalesce(sum(l.quantity * l.price), 0) AS total
    FROM inventory.orders o LEFT JOIN inventory.order_lines l ON l.order_id = o.id GROUP BY o.id
), order_sizes AS (
    SELECT t.line_count AS size, count(*) AS orders, sum(t.total) AS total
    FROM order_totals t GROUP BY t.line_count
)
SELECT s.orders, count(*) AS sizes, sum(s.total) AS total, max(s.size) AS largest
FROM order_sizes s GROUP BY s.orders
""",
    "certify.toml": """
[output]
kind = "topic"
name = "order_crowds"
commits = "order_crowds.commits"
lsn_header = "slackwater-commit-lsn"
[source]
name = "inv"
schema = "tables.sql"
[view]
sql = "certified.sql"
key = ["orders"]
""",
}
"""The third pipeline: how many sizes have this many orders. No table of the database is in it."""
IN_LAKE = {
    **THIRD,
    "pipeline.toml": """
name = "order_crowds"
source = "order_sizes"
emit = "latest"
[output]
kind = "delta"
table = "crowds.order_crowds"
""",
}
"""The same in a lake, whose states are removed unless they are held."""
AT_ONE_COMMIT = """
WITH totals AS (
    SELECT CAST(after ->> 'line_count' AS BIGINT) AS size, count(*) AS orders
    FROM order_totals WHERE after IS NOT NULL GROUP BY ALL
), sizes AS (
    SELECT CAST(after ->> 'size' AS BIGINT) AS size, CAST(after ->> 'orders' AS BIGINT) AS orders
    FROM order_sizes WHERE after IS NOT NULL
),
crowds AS (SELECT orders, count(*) AS sizes FROM sizes GROUP BY ALL),
shown AS (SELECT orders, sizes FROM order_crowds)
SELECT
    (SELECT count(*) FROM (FROM totals EXCEPT FROM sizes)),
    (SELECT count(*) FROM (FROM sizes EXCEPT FROM totals)),
    (SELECT count(*) FROM (FROM crowds EXCEPT FROM shown)),
    (SELECT count(*) FROM (FROM shown EXCEPT FROM crowds)),
    (SELECT count(*) > 0 FROM shown)
"""
"""How many rows of one pipeline contradict those of the next one, over topics and a lake."""


@dataclass(frozen=True, slots=True)
class Link:
    """A pipeline of the chain."""

    folder: Path
    source: str
    """The prefix of what it reads."""
    topic: str

    @property
    def name(self) -> str:
        """Of its programs."""
        return self.folder.name


def links(folder: Path, third: Mapping[str, str]) -> tuple[Link, Link, Link]:
    for name, text in third.items():
        path = folder / "order_crowds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    first, second = repository_pipeline("order_totals"), repository_pipeline("order_sizes")
    shutil.copyfile(first / "schema.sql", folder / "order_crowds" / "tables.sql")
    return (
        Link(first, SOURCE, "order_totals.public.order_totals"),
        Link(second, "order_totals", "order_sizes.public.order_sizes"),
        Link(folder / "order_crowds", "order_sizes", "order_crowds"),
    )


Blame = tuple[ComponentKind, str, set[str]]
"""Who is late, and the pipelines whose views wait for it."""


class Chain:
    """The database with its connector, and a sidecar and a pipeline for each link."""

    def __init__(
        self, stack: DevStack, folder: Path, running: ExitStack, third: Mapping[str, str] = THIRD
    ) -> None:
        self.stack = stack
        self.links = links(folder, third)
        self.lake = folder / "lake"
        self._product = running.enter_context(Product(stack, folder / "product"))
        create_tables(self.dsn, WORKLOAD)
        write_first(self.dsn, WORKLOAD)
        stack.start_connector(TABLES)
        stack.wait_until_streaming()
        for link in self.links:
            self._start(link)
        last = self.links[-1 if third is THIRD else -2]
        self.visible = Visibility(stack.kafka.bootstrap, last.topic, SystemClock())
        self.visible.start()
        running.callback(self.visible.stop)

    @property
    def dsn(self) -> str:
        return self.stack.postgres.dsn()

    def kill_some(self, rng: random.Random) -> str:
        """Kills a pipeline, or it and a sidecar, without a warning, and starts them again."""
        link = rng.choice(self.links)
        names = [f"pipeline-{link.name}", *([f"sidecar-{rng.choice(self.links).name}"] * rng.randint(0, 1))]
        for name in names:
            self._product.programs[name].kill()
        for name in names:
            self._product.programs[name].start(folder=self._product.folder)
        return " and ".join(names)

    @property
    def programs(self) -> Sequence[str]:
        return list(self._product.programs)

    def kill(self, name: str) -> None:
        self._product.programs[name].kill()

    def start(self, name: str) -> None:
        self._product.programs[name].start(folder=self._product.folder)

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        words = (program.last_words() for program in self._product.programs.values())
        assert self._product.wait_until(is_done, SECONDS), "\n".join(words)

    def wait_until_visible(self, lsn: int) -> None:
        """At the end of the chain; if that is a lake, in the topic before it."""
        words = (program.last_words() for program in self._product.programs.values())
        assert self._product.wait_until(lambda: self.visible.newest_lsn >= lsn, SECONDS), "\n".join(words)

    def judge(self, link: Link) -> Certificate:
        connections = Connections(bootstrap=self.stack.kafka.bootstrap, dsn=self.dsn)
        return certify(load_specification(link.folder / "certify.toml"), connections, mode=Mode.BOTH)

    def wait_until_blamed(self, name: str, expected: Blame) -> None:
        """Pauses a program while rows change, until one is blamed as expected, and nobody else.

        Then all continues, and nobody is late. On a busy machine others may be late for a while, too.
        """
        program = self._product.programs[name]
        program.pause()
        try:
            assert self._product.wait_until(
                lambda: bool(write_last(self.dsn, TABLES[0])) and self.blames() == [expected], SECONDS
            ), self.blames()
        finally:
            program.resume()
        self.wait_until_nobody_is_late()

    def blames(self) -> list[Blame]:
        return [
            (each.kind, each.name, {view.partition("/")[0] for view in each.views}) for each in self.causes()
        ]

    def wait_until_nobody_is_late(self) -> None:
        assert self._product.wait_until(lambda: not self.causes(), SECONDS), self.causes()

    def causes(self) -> list[DelayCause]:
        return list(self.delays().causes)

    def delays(self) -> Delays:
        return measure_delays(self.topology())

    def topology(self) -> Topology:
        kafka = KafkaSection(bootstrap=self.stack.kafka.bootstrap)
        return read_topology(Settings(kafka=kafka), SOURCE)

    def commits(self, link: Link) -> list[CommitRecord]:
        messages = read_to_end(self.stack.kafka.bootstrap, commit_topic(link.topic))
        return [decode_commit_record(message.value() or b"") for message in messages]

    def ends(self, source: str) -> dict[int, End]:
        """The transactions of a source, by commit LSN."""
        messages = read_to_end(self.stack.kafka.bootstrap, transaction_topic(source))
        records = [decode_transaction(message.value() or b"") for message in messages]
        return {record.commit_lsn: record for record in records if isinstance(record, End)}

    def _start(self, link: Link) -> None:
        servers = ("--bootstrap", self.stack.kafka.bootstrap, "--redis-url", self.stack.redis.url)
        self._program("sidecar", link, "--config", "/dev/null", "sidecar", "--source", link.source, *servers)
        local = self._product.folder / link.name
        local.mkdir()
        lake = f'[delta]\nlocation = "{self.lake}"\nkeep = 5\nmaintain_every = 1\n'
        settings = write_run_settings(self._product.folder / f"{link.name}.toml", local, lake)
        run = ("--config", str(settings), "run", str(link.folder), *servers, "--master", "local[1]")
        # The one before may not have made its topic yet.
        more = ("--checkpoint", str(local / "checkpoint"), "--allow-missing-tables")
        self._program("pipeline", link, *run, *more, "--connect-url", self.stack.connect.address)

    def _program(self, kind: str, link: Link, *arguments: str) -> Program:
        return self._product.start(f"{kind}-{link.name}", slackwater_command(*arguments))


@pytest.fixture
def chain(dev_stack: Callable[..., DevStack], tmp_path: Path) -> Iterator[Chain]:
    stack = dev_stack(prefix=SOURCE, partitions=3)
    with ExitStack() as running:
        running.callback(stack.stop)
        yield Chain(stack, tmp_path, running)


@pytest.mark.parametrize(
    "kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(12, marks=pytest.mark.slow)]
)
def test_each_pipeline_of_a_chain_publishes_the_states_of_the_database_at_its_commits(
    chain: Chain, kills: int
) -> None:
    rng = random.Random(SEED)
    sys.stdout.write(f"seed {SEED}\n")
    chain.wait_until_visible(1)
    writers = Writers(chain.dsn, WORKLOAD, count=2, changes_per_second=40.0, clock=SystemClock())
    writers.start()
    try:
        for _ in range(kills):
            sys.stdout.write(f"killed: {chain.kill_some(rng)}\n")
            chain.wait_until_visible(current_lsn(chain.dsn))
    finally:
        writers.stop()
    chain.wait_until_visible(write_last(chain.dsn, TABLES[0]))

    certificates = {link.name: chain.judge(link) for link in chain.links}
    for name, certificate in certificates.items():
        assert certificate.examples == {}, name
        assert certificate.is_clean, name
        assert certificate.final_differences == 0, name
    database = chain.ends(SOURCE)
    for link in chain.links:
        commits = chain.commits(link)
        told = {record.commit_lsn: record for record in commits if record.xid}
        assert told
        assert {lsn: record.xid for lsn, record in told.items()} == {lsn: database[lsn].xid for lsn in told}
        assert {lsn: record.commit_ts_ms for lsn, record in told.items()} == {
            lsn: database[lsn].commit_ts_ms for lsn in told
        }
    topology = chain.topology()
    assert [(link.pipeline, link.read_by) for link in topology.links] == [
        ("order_sizes", "order_crowds"),
        ("order_totals", "order_sizes"),
    ]
    assert [source.name for source in topology.sources] == [link.source for link in chain.links]
    assert {pipeline.state for pipeline in topology.pipelines} == {"running"}
    first, *later = ([r.commit_lsn for r in chain.commits(link) if r.xid == 0] for link in chain.links)
    assert len(first) == 1, "the initial snapshot"
    assert later == [first, first]
    for link, after in zip(chain.links, chain.links[1:], strict=False):
        with_documents = {r.commit_lsn for r in chain.commits(link) if r.xid and r.record_count}
        assert with_documents == {r.commit_lsn for r in chain.commits(after) if r.xid}


@pytest.mark.slow
def test_a_lease_over_a_chain_shows_one_state_again_whoever_is_killed(
    dev_stack: Callable[..., DevStack], tmp_path: Path
) -> None:
    """How it was seen to fail: with pipelines left out that show no view yet, the lease lacks the last."""
    rng = random.Random(SEED)
    with ExitStack() as running:
        stack = dev_stack(prefix=SOURCE, partitions=3)
        running.callback(stack.stop)
        chain = Chain(stack, tmp_path, running, IN_LAKE)
        kafka = KafkaSettings(stack.kafka.bootstrap)
        lake = LakeOutput(DeltaLake(LakeSettings(place=str(chain.lake))), "order_crowds")
        topics = [running.enter_context(closing(TopicOutput(kafka, link.name))) for link in chain.links[:2]]
        outputs: list[PipelineOutput] = [*topics, lake]
        log = running.enter_context(open_leases(kafka))
        writers = Writers(chain.dsn, WORKLOAD, count=2, changes_per_second=40.0, clock=SystemClock())
        writers.start()
        running.callback(writers.stop)
        found: list[Lease] = []

        def is_held() -> bool:
            with suppress(SlackwaterError):  # some have not begun yet
                found.append(take_lease(log, outputs, duration=timedelta(hours=5), holder="a report"))
            return bool(found)

        chain.wait_until(is_held)
        (lease,) = found
        assert (lease.source, lease.pipelines) == (SOURCE, ("order_crowds", "order_sizes", "order_totals"))
        first = state(read_views(outputs, at=lease))
        for name in rng.sample(chain.programs, len(chain.programs)):
            chain.kill(name)
            assert state(read_views(outputs, at=lease)) == first, f"without {name}"
            chain.start(name)
            chain.wait_until_visible(current_lsn(chain.dsn))
            assert state(read_views(outputs, at=lease)) == first, f"with {name} again"
        with open_views(outputs, at=lease) as database:
            assert database.sql(AT_ONE_COMMIT).fetchall() == [(0, 0, 0, 0, True)]
        chain.kill("pipeline-order_sizes")
        with pytest.raises(StateNotKeptError, match="'order_sizes' did not answer"):
            take_lease(log, outputs, duration=timedelta(hours=1), holder="t", timeout=timedelta(seconds=20))
        assert [each.id for each in log.read() if isinstance(each, Lease)] == [lease.id]
        chain.start("pipeline-order_sizes")
        end_lease(log, lease.id)

        def is_gone() -> bool:
            try:
                read_views([lake], at=lease.position)
            except StateNotKeptError:
                return True
            return False

        chain.wait_until(is_gone)


def state(snapshot: ViewSnapshot) -> dict[str, list[bytes]]:
    return {view: sorted(documents) for view, documents in snapshot.documents.items()}


@pytest.mark.slow
def test_whoever_stands_still_in_a_chain_is_blamed_for_all_that_comes_behind(chain: Chain) -> None:
    chain.wait_until_visible(1)
    chain.wait_until_visible(write_last(chain.dsn, TABLES[0]))
    chain.wait_until_nobody_is_late()
    (arrival,) = chain.delays().arrivals
    assert arrival.source == SOURCE
    assert arrival.connector_ms is not None, "the cut says when its END was in Kafka"
    assert arrival.sidecar_ms is not None, "the cut log says when the cut was written"
    first, second, third = (link.name for link in chain.links)
    for name, kind, waiting in (
        (first, ComponentKind.PIPELINE, {first, second, third}),
        (second, ComponentKind.PIPELINE, {second, third}),
        (second, ComponentKind.SIDECAR, {second, third}),
    ):
        blamed = (
            name if kind is ComponentKind.PIPELINE else first
        )  # the source that the first one's output is
        chain.wait_until_blamed(f"{kind}-{name}", (kind, blamed, waiting))
