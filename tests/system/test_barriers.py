"""Two pipelines of one source publish batches, each at its own pace, and are read together while rows change.

A real database, Debezium, a sidecar and two runs of ``slackwater run`` with ``emit = "latest"``. Each
transaction writes one number into a row of two tables; each pipeline has the view of one of them. So the
views show the same numbers in every state that the database ever had. How it was seen to fail: with
``sidecar.barrier_interval`` 0 batches of the two end at one commit by chance alone, and at no barrier; at
level ``uncommitted`` the numbers differ.
"""

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from slackwater.client import (
    ReadLevel,
    StateNotKeptError,
    TopicOutput,
    ViewSnapshot,
    end_lease,
    open_leases,
    read_views,
    take_lease,
    wait_visible,
)
from slackwater.dev import DevStack
from slackwater.protocol import CommitPosition, KafkaSettings, SlackwaterError
from slackwater_lab.database.statements import current_lsn
from slackwater_lab.programs import Product, slackwater_command, write_run_settings
from slackwater_lab.watching import read_cuts

pytestmark = [pytest.mark.system, pytest.mark.spark]

SECONDS = timedelta(seconds=300)
SIDES = ("left", "right")
TABLES = tuple(f"pair.{side}_side" for side in SIDES)
SCHEMA = "CREATE SCHEMA pair;" + "".join(
    f"CREATE TABLE {table} (id bigint PRIMARY KEY, value bigint); ALTER TABLE {table} REPLICA IDENTITY FULL;"
    for table in TABLES
)
ROWS = 20
READS = 12

VIEWS = {
    "left": "SELECT TRANSACTIONALLY p.id, p.value FROM pair.left_side p",
    "right": (
        "SELECT TRANSACTIONALLY p.id, max(p.value) AS value, count(*) AS rows "
        "FROM pair.right_side p GROUP BY p.id"
    ),
}


def make_pipeline(folder: Path, side: str) -> Path:
    for name, text in {
        "pipeline.toml": f'name = "{side}"\nsource = "inv"\nemit = "latest"\n[output]\ntopic = "{side}"\n',
        "schema.sql": SCHEMA.removeprefix("CREATE SCHEMA pair;"),
        f"views/{side}.sql": VIEWS[side],
    }.items():
        path = folder / side / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / side


class Writing:
    """Writes transactions that change a row of both tables alike, until it is stopped."""

    def __init__(self, dsn: str) -> None:
        self._dsn, self._stop = dsn, threading.Event()
        self._thread = threading.Thread(target=self._write, name="writes pairs")

    def __enter__(self) -> "Writing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        rng = random.Random(7)
        value = ROWS
        with psycopg.connect(self._dsn, autocommit=True) as database:
            while not self._stop.wait(0.01):
                value += 1
                write_pair(database, rng.randrange(ROWS), value)


def write_pair(database: psycopg.Connection, row: int, value: int) -> None:
    with database.transaction():
        for table in TABLES:
            database.execute(
                f"INSERT INTO {table} VALUES (%s, %s) "  # noqa: S608 - names of this module
                "ON CONFLICT (id) DO UPDATE SET value = excluded.value",
                [row, value],
            )


@pytest.fixture
def stack(dev_stack: Callable[..., DevStack]) -> DevStack:
    stack = dev_stack(prefix="inv", partitions=3)
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as database:
        database.execute(SCHEMA)
        for row in range(ROWS):
            write_pair(database, row, row)
    stack.start_connector(TABLES)
    stack.wait_until_streaming()
    return stack


class Pair:
    """A sidecar, and a pipeline for each of the two tables."""

    def __init__(self, stack: DevStack, product: Product, folder: Path, running: ExitStack) -> None:
        self.stack, self.product = stack, product
        self.commands: dict[str, Sequence[str]] = {}
        product.start_sidecar()
        servers = ("--bootstrap", stack.kafka.bootstrap, "--redis-url", stack.redis.url)
        for side in SIDES:
            pipeline = make_pipeline(folder, side)
            local = product.folder / side
            local.mkdir()
            settings = write_run_settings(product.folder / f"{side}.toml", local)
            known = ("--connect-url", stack.connect.address)
            run = ("--config", str(settings), "run", str(pipeline), *servers, *known, "--master", "local[1]")
            self.commands[side] = slackwater_command(*run, "--checkpoint", str(local / "checkpoint"))
            self.start(side)
        kafka = KafkaSettings(stack.kafka.bootstrap)
        self.outputs = [running.enter_context(closing(TopicOutput(kafka, side))) for side in SIDES]

    def start(self, side: str) -> None:
        self.product.start(side, self.commands[side])

    @property
    def dsn(self) -> str:
        return self.stack.postgres.dsn()

    def now(self) -> CommitPosition:
        return CommitPosition(1, current_lsn(self.dsn))

    def wait_for_first_batches(self) -> None:
        def is_there() -> bool:
            try:
                return all(output.newest() is not None for output in self.outputs)
            except SlackwaterError:  # nobody has made the topics yet
                return False

        assert self.product.wait_until(is_there, SECONDS.total_seconds())


@pytest.fixture
def pair(stack: DevStack, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as running:
        product = running.enter_context(Product(stack, tmp_path / "product"))
        pair = Pair(stack, product, tmp_path, running)
        pair.wait_for_first_batches()
        yield pair


def values(snapshot: ViewSnapshot, side: str) -> dict[int, int]:
    documents = [json.loads(document) for document in snapshot.documents[side]]
    return {document["id"]: document["value"] for document in documents}


def rows_of_right(snapshot: ViewSnapshot) -> set[int]:
    return {json.loads(document)["rows"] for document in snapshot.documents["right"]}


@pytest.mark.slow  # leases in CI: packages/slackwater/tests/cli/test_read_integration.py
def test_a_lease_shows_one_state_again_and_again_while_weaker_levels_go_on(pair: Pair) -> None:
    """What each level allows and the next one forbids, over the join of two views of two pipelines.

    How it was seen to fail: ``TopicGuard.hold`` raises nothing.
    """
    kafka = KafkaSettings(pair.stack.kafka.bootstrap)
    committed: list[CommitPosition] = []
    with Writing(pair.dsn), open_leases(kafka) as log:
        lease = take_lease(log, pair.outputs, duration=timedelta(hours=1), holder="a report", timeout=SECONDS)
        first = read_views(pair.outputs, at=lease)
        while len(set(committed)) < 3:
            committed.append(read_views(pair.outputs, timeout=SECONDS).position)
            again = read_views(pair.outputs, at=lease)
            assert again.position == first.position == lease.position
            assert {side: values(again, side) for side in SIDES} == {
                side: values(first, side) for side in SIDES
            }
        assert max(committed) > lease.position
        assert values(first, "left") == values(first, "right"), "one state of both"
        assert all(lag > KEPT_MS for lag in compaction_lags(kafka)), "compaction keeps away from it"

        killed = pair.product.programs["left"]
        killed.kill()
        assert values(read_views(pair.outputs, at=lease), "left") == values(first, "left")
        pair.start("left")
        end_lease(log, lease.id)
        assert pair.product.wait_until(
            lambda: compaction_lags(kafka) == [KEPT_MS] * 2, SECONDS.total_seconds()
        ), "the next run lets it go"
        assert log.read() == []
        with pytest.raises(StateNotKeptError, match="'nobody' did not answer"):
            take_lease(
                log,
                [*pair.outputs[1:], Renamed(pair.outputs[0])],
                duration=timedelta(hours=1),
                holder="a report",
                timeout=timedelta(seconds=2),
            )


KEPT_MS = 600_000
"""As ``kafka.keep`` says by default."""


def compaction_lags(kafka: KafkaSettings) -> list[int]:
    admin = AdminClient({**kafka.client_config})
    resources = [ConfigResource(ResourceType.TOPIC, side) for side in SIDES]
    found = admin.describe_configs(resources).values()
    return [int(each.result(60)["min.compaction.lag.ms"].value) for each in found]


class Renamed(TopicOutput):
    """An output whose pipeline has a name that no run has."""

    def __init__(self, output: TopicOutput) -> None:
        self.__dict__.update(output.__dict__)
        self.pipeline = "nobody"


@pytest.mark.slow
def test_every_committed_read_of_two_pipelines_shows_one_state_of_the_database(pair: Pair) -> None:
    left, right = pair.outputs
    committed, apart = [], 0
    with Writing(pair.dsn):
        for _ in range(READS):
            at = pair.now()
            snapshot = read_views(pair.outputs, timeout=SECONDS)
            assert snapshot.is_consistent
            assert values(snapshot, "left") == values(snapshot, "right"), snapshot.position
            assert len(values(snapshot, "left")) == ROWS
            assert rows_of_right(snapshot) == {1}
            committed.append(snapshot.position)

            loose = read_views(pair.outputs, level=ReadLevel.UNCOMMITTED)
            if values(loose, "left") != values(loose, "right"):
                assert not loose.is_consistent, "views of one commit never differ"
                apart += 1
            wait_visible(pair.outputs, at, timeout=SECONDS)
        pair.product.programs["left"].kill()
        wait_visible([right], pair.now(), timeout=SECONDS)
        alone, both = read_views([right]), read_views(pair.outputs, timeout=SECONDS)

    stopped = left.newest()
    assert stopped is not None
    assert both.position <= stopped.position < alone.position, "who does not ask for it does not wait for it"
    assert values(both, "left") == values(both, "right")
    assert committed == sorted(committed)
    barriers = {seen.cut.barrier_lsn for seen in read_cuts(pair.stack.kafka.bootstrap, "inv")}
    assert barriers.intersection(position.lsn for position in committed)
    assert len(set(committed)) > READS // 2, "what is read continues with what is written"
    sys.stdout.write(f"{READS} committed reads of {len(set(committed))} states; {apart} uncommitted apart\n")
