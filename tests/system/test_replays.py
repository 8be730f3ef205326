"""A real connector, killed inside long transactions, numbers rows again and counts too few of them.

The first test shows that this happened in the run, the next ones that nothing came of it. What is true comes
from the database: its own log (``test_decoding``) and its final state. The last test switches off the rules
of the frontier for numberings and reads the topics of the same run again: cuts then come too early.

The long transactions write orders; short ones commit while they are open. Each leaves entries in a journal,
too, a table without key: its repeated rows may be in any partition.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from itertools import cycle
from pathlib import Path

import msgspec
import psycopg
import pytest
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType, TimestampType

from slackwater.cdc import completeness
from slackwater.cdc.transaction import Transaction
from slackwater.dev import ConnectMode
from slackwater.pipeline.source.data_source import ROW_SCHEMA, SlackwaterBatchReader
from slackwater.pipeline.source.options import SourceOptions
from slackwater.protocol import Cut, SystemClock, format_position
from slackwater_certify import Certificate, Connections, Mode, certify, load_specification
from slackwater_lab.database.statements import current_lsn
from slackwater_lab.debezium.recording import Recording, RowIdentity, follow
from slackwater_lab.errors import RunFailedError
from slackwater_lab.programs import Product
from slackwater_lab.servers.database_log import DatabaseLog
from slackwater_lab.servers.stack import LabStack
from slackwater_lab.topics import TopicRecorder
from slackwater_lab.watching import Visibility, read_cuts, wait_until
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = [pytest.mark.system, pytest.mark.slow]

_LONG = 8
"""Long transactions of one backlog; all are open at once."""
_ORDERS = (100, 1_000)
"""Least and most orders of a long transaction; each has two lines."""
_SHORT = 5
"""Short transactions before and after the commit of each long one."""
_SHARED_ORDERS = 50
"""What the short ones change."""
JOURNAL = "inventory.journal"
_CREATE_JOURNAL = "CREATE TABLE inventory.journal (entry text NOT NULL)"
_CREATE_ORDERS = """
    INSERT INTO inventory.orders (id, customer, status, line_count, total, created_at)
    SELECT i, 'c' || i, 'new', 2, 2 * (1 + i %% 9), '2026-01-02 03:04:05.678Z'
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) i
"""
_CREATE_LINES = """
    INSERT INTO inventory.order_lines (id, order_id, product, quantity, price)
    SELECT 2 * i + line, i, 'p' || line, 1, 1 + i %% 9
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) i, generate_series(0, 1) line
"""
_CHANGE_LINES = "UPDATE inventory.order_lines SET quantity = quantity %% 9 + 1 WHERE order_id = %(id)s"
_CHANGE_ORDER = """
    UPDATE inventory.orders
    SET total = (SELECT sum(quantity * price) FROM inventory.order_lines WHERE order_id = %(id)s)
    WHERE id = %(id)s
"""
_WRITE_JOURNAL = """
    INSERT INTO inventory.journal
    SELECT 'orders ' || i %% 7 FROM generate_series(%(first)s::bigint, %(last)s::bigint) i
"""
_WRITE_ENTRY = "INSERT INTO inventory.journal VALUES ('order ' || %(id)s %% 5)"
_SOURCE = "inv"
_TABLES = ("inventory.orders", "inventory.order_lines", JOURNAL)
_ROUTE = "connect"
STACK: Mapping[str, object] = {
    "prefix": _SOURCE,
    "offset_flush_interval": timedelta(milliseconds=300),
    "kafka_routes": (_ROUTE,),
    "worker_overrides": {"producer.batch.size": "16384", "producer.compression.type": "none"},
}
"""Fields of LabStackSettings."""
_DELAY = timedelta(milliseconds=12)
"""Of the connector's network, so that writing a long transaction takes longer than storing the position."""
_MOMENT_RECORDS = (200, 2_000)
"""A kill comes when a number of new records between these two can be read."""
_PATIENCE_SECONDS = 20.0
"""Then the kill comes anyway: the connector may have nothing more to write."""
_LOOK_SECONDS = 0.02
_CATCH_UP_SECONDS = 120.0
_TYPES: dict[str, type[DataType]] = {
    "STRING": StringType,
    "BIGINT": LongType,
    "INT": IntegerType,
    "TIMESTAMP": TimestampType,
}


class Killed(Enum):
    """The processes that a round kills."""

    CONNECT = "Connect"
    POSTGRES = "PostgreSQL"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Everything that is left when all is written, read and published."""

    kills: tuple[Killed, ...]
    recording: Recording
    truth: Mapping[int, Sequence[RowIdentity]]
    """By xid the rows of every commit, from the database's own log."""
    cuts: tuple[Cut, ...]
    certificate: Certificate
    entries: Counter[str]
    """The rows of the table without key, by text."""
    entries_read: Counter[str]
    """What the source reads of it."""


class ReplayRun:
    """One run on a stack made of :data:`STACK`; used once, by one thread.

    Args:
        stack: Started; without tables.
        folder: For the product's data and logs.
        seed: Of moments and sizes. What happens in them is up to the servers.
        say: Told in lines what happens.
    """

    def __init__(self, stack: LabStack, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._stack = stack
        self._folder = folder
        self._rng = random.Random(seed)
        self._say = say
        self._clock = SystemClock()
        self._log = DatabaseLog(stack.postgres.dsn())
        self._writer = _BacklogWriter(stack.postgres.dsn(), self._rng)
        self._pipeline = repository_pipeline("orders")

    def run(self, rounds: Sequence[Killed], seconds: float) -> ReplayResult:
        """At least these rounds, more until a transaction was undercounted, for at most this many seconds.

        Raises:
            RunFailedError: the connector does not write what is committed, or the output does not arrive at
                the last commit.
        """
        with ExitStack() as running:
            recorder = running.enter_context(TopicRecorder(self._stack.kafka.bootstrap, _SOURCE))
            self._create_tables()
            product = running.enter_context(Product(self._stack, self._folder))
            product.start_sidecar()
            product.start_pipeline(self._pipeline, "--master", "local[2]", local=self._folder)
            visible = product.watch(self._pipeline)
            self._begin(recorder)
            kills = self._carry_out(rounds, recorder, seconds)
            self._finish(product, visible)
            return ReplayResult(
                kills=tuple(kills),
                recording=recorder.read_to_end(),
                truth=self._truth(),
                cuts=tuple(seen.cut for seen in read_cuts(self._stack.kafka.bootstrap, _SOURCE)),
                certificate=self._judge(),
                entries=_committed_entries(self._stack.postgres.dsn()),
                entries_read=_read_entries(self._stack.kafka.bootstrap, _SOURCE),
            )

    def _create_tables(self) -> None:
        with psycopg.connect(self._stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA inventory")
            connection.execute((self._pipeline / "schema.sql").read_text().encode())
            connection.execute(_CREATE_JOURNAL)
        self._writer.write_first()
        self._log.begin()

    def _begin(self, recorder: TopicRecorder) -> None:
        """Snapshot and a first streamed transaction, so that all topics are there; then Connect ends."""
        self._stack.start_connector(_TABLES)
        self._stack.wait_until_streaming()

        def write_more() -> None:
            self._writer.touch()
            recorder.read()

        has_ends = recorder.recording.ends_of_transactions
        if not wait_until(lambda: bool(has_ends()), _CATCH_UP_SECONDS, check=write_more):
            raise RunFailedError(
                "the connector",
                f"wrote no transaction in {_CATCH_UP_SECONDS:g} s; log: {self._stack.connect.log_path}",
            )
        self._stack.connect.stop()

    def _carry_out(self, rounds: Sequence[Killed], recorder: TopicRecorder, seconds: float) -> list[Killed]:
        kills: list[Killed] = []
        deadline = self._clock.monotonic() + seconds
        with self._slow_network():
            for killed in cycle(rounds):
                found = recorder.recording.undercounted()
                if (found and len(kills) >= len(rounds)) or self._clock.monotonic() > deadline:
                    break
                if not self._is_behind(recorder):
                    self._writer.write()
                self._round(killed, recorder)
                kills.append(killed)
                self._say(f"{killed.value} killed; undercounted so far: {found}")
        return kills

    def _round(self, killed: Killed, recorder: TopicRecorder) -> None:
        stack = self._stack
        recorder.read_to_end()
        stack.connect.start()
        wanted = self._rng.randint(*_MOMENT_RECORDS)
        deadline = self._clock.monotonic() + _PATIENCE_SECONDS
        while wanted > 0 and self._clock.monotonic() < deadline:
            wanted -= recorder.read(_LOOK_SECONDS)
        if killed is not Killed.POSTGRES:
            stack.connect.kill()
        if killed is not Killed.CONNECT:
            stack.postgres.kill()
            stack.postgres.start()
        stack.connect.stop()  # where it is still alive, its connection is not
        recorder.read_to_end()

    def _is_behind(self, recorder: TopicRecorder) -> bool:
        """Says whether the connector has not yet written the newest commit."""
        ends = recorder.recording.ends_of_transactions()
        transactions = self._log.transactions()
        return bool(transactions) and transactions[-1].xid not in ends

    @contextmanager
    def _slow_network(self) -> Iterator[None]:
        proxy = self._stack.kafka.proxy(_ROUTE)
        proxy.delay(_DELAY)
        try:
            yield
        finally:
            proxy.delay(timedelta())

    def _finish(self, product: Product, visible: Visibility) -> None:
        """Returns when everything that was committed is visible in the output."""
        self._stack.connect.start()
        last = current_lsn(self._stack.postgres.dsn())
        self._writer.touch()
        if not product.wait_until(lambda: visible.newest_lsn > last, _CATCH_UP_SECONDS):
            raise RunFailedError(
                "the output",
                f"ends at {format_position(visible.newest_lsn)}, expected a commit above "
                f"{format_position(last)}; logs in {self._folder}; the sidecar's last words: "
                f"{product.programs['sidecar'].last_words()}",
            )

    def _truth(self) -> dict[int, list[RowIdentity]]:
        return {
            transaction.xid: [(c.lsn, c.table, c.op, c.key) for c in transaction.changes]
            for transaction in self._log.transactions()
        }

    def _judge(self) -> Certificate:
        connections = Connections(bootstrap=self._stack.kafka.bootstrap, dsn=self._stack.postgres.dsn())
        return certify(load_specification(self._pipeline / "certify.toml"), connections, mode=Mode.BOTH)


class _BacklogWriter:
    """Writes orders that keep the invariants of the orders pipeline.

    Args:
        dsn: The database.
        rng: Sizes of transactions and which orders change.
    """

    def __init__(self, dsn: str, rng: random.Random) -> None:
        self._dsn = dsn
        self._rng = rng
        self._next_order = 1

    def write_first(self) -> None:
        """The orders that short transactions change."""
        with psycopg.connect(self._dsn) as connection:
            orders = self._take(_SHARED_ORDERS)
            connection.execute(_CREATE_ORDERS, orders)
            connection.execute(_CREATE_LINES, orders)

    def touch(self) -> None:
        """One short transaction."""
        with psycopg.connect(self._dsn) as connection:
            self._change(connection)

    def write(self) -> None:
        """A backlog: the rows of all long transactions; then each of them commits between short ones.

        So its rows lie before all these commits in the log: a connector that continues inside it, from a
        position that the database has not heard of, gets the short ones again first and loses count.
        """
        connections = [psycopg.connect(self._dsn) for _ in range(_LONG)]
        try:
            orders = [self._take(self._rng.randint(*_ORDERS)) for _ in connections]
            for connection, share in zip(connections, orders, strict=True):
                connection.execute(_CREATE_ORDERS, share)
                connection.execute(_WRITE_JOURNAL, share)
                connection.execute(_CREATE_LINES, share)
            with psycopg.connect(self._dsn) as short:
                for connection in connections:
                    self._write_short(short)
                    connection.commit()
                    self._write_short(short)
        finally:
            for connection in connections:
                connection.close()

    def _write_short(self, connection: psycopg.Connection) -> None:
        for _ in range(_SHORT):
            self._change(connection)
            connection.commit()

    def _change(self, connection: psycopg.Connection) -> None:
        order = {"id": self._rng.randint(1, _SHARED_ORDERS)}
        connection.execute(_CHANGE_LINES, order)
        connection.execute(_CHANGE_ORDER, order)
        connection.execute(_WRITE_ENTRY, order)

    def _take(self, count: int) -> dict[str, int]:
        first, self._next_order = self._next_order, self._next_order + count
        return {"first": first, "last": self._next_order - 1}


def _committed_entries(dsn: str) -> Counter[str]:
    """Reads the rows of the journal, by text."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT entry, count(*) FROM inventory.journal GROUP BY entry").fetchall()
    return Counter({str(entry): int(count) for entry, count in found})


def _read_entries(bootstrap: str, source: str) -> Counter[str]:
    """Reads the entries that a batch query over everything up to the newest cut finds.

    Raises:
        BadInputError: among others, when equal rows cannot be told apart.
    """
    options = SourceOptions.parse(
        {
            "source": source,
            "bootstrap": bootstrap,
            "tables": JOURNAL,
            "parallelism": "4",
            "min_task_events": "1",
            "kafka.log_level": "0",  # the consumer is kept, and would tell that the broker has gone
        }
    )
    reader = SlackwaterBatchReader(options, _schema())
    found: Counter[str] = Counter()
    for task in reader.partitions():
        for batch in reader.read(task):
            found.update(msgspec.json.decode(row)["entry"] for row in batch.column("after").to_pylist())
    return found


def _schema() -> StructType:
    schema = StructType()
    for column in ROW_SCHEMA.split(", "):
        name, kind = column.split()
        schema.add(name.strip("`"), _TYPES[kind]())
    return schema


SEED = 5
ROUNDS = [Killed.BOTH, Killed.CONNECT, Killed.BOTH, Killed.CONNECT, Killed.POSTGRES]
"""Once more and again, until a transaction was undercounted."""
MANY_ROUNDS = [*[Killed.CONNECT] * 5, *ROUNDS * 4]
SECONDS = 600.0
READINGS = 6


def has_as_many_rows_as_counted(transaction: Transaction) -> bool:
    """The rule that one would write who does not know connectors: the numbers of the rows do not matter."""
    end = transaction.end
    tracks = [track for rows in transaction.runs for track in rows.tracks.values()]
    read = sum(len(track) - track.count(0) for track in tracks)
    return end is not None and read >= sum(end.counts.values())


def say(line: str) -> None:
    """Shown when a test fails."""
    sys.stdout.write(f"{line}\n")


@dataclass(frozen=True)
class Variant:
    rounds: Sequence[Killed]
    seconds: float
    connect: ConnectMode = ConnectMode.STANDALONE


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Variant(ROUNDS, SECONDS), id="some rounds"),
        pytest.param(Variant(MANY_ROUNDS, SECONDS), id="many rounds"),
        pytest.param(Variant(ROUNDS * 2, SECONDS, ConnectMode.EXACTLY_ONCE), id="exactly once"),
    ],
)
def outcome(
    request: pytest.FixtureRequest,
    dev_stack: Callable[..., LabStack],
    tmp_path_factory: pytest.TempPathFactory,
) -> ReplayResult:
    """One run of the whole product; everything below looks at what it left behind."""
    variant: Variant = request.param
    folder: Path = tmp_path_factory.mktemp("replays")
    say(f"seed {SEED}")
    stack = dev_stack(**STACK, connect_mode=variant.connect)
    try:
        return ReplayRun(stack, folder, SEED, say).run(variant.rounds, variant.seconds)
    finally:
        stack.stop()


def test_the_connector_was_killed_and_counted_too_few_rows(outcome: ReplayResult) -> None:
    assert len(outcome.kills) >= 5
    assert set(outcome.kills) == set(Killed)
    found = outcome.recording.undercounted()
    assert found, "no transaction was undercounted: seconds are too few, or this connector does it no more"
    for xid, (count, rows) in found.items():
        assert count < rows == len(outcome.truth[xid])


def test_the_topics_hold_every_row_of_every_commit_and_no_other(outcome: ReplayResult) -> None:
    streamed: dict[int, set[object]] = {}
    for row in outcome.recording.rows():
        streamed.setdefault(row.xid, set()).add(row.identity)
    assert streamed == {xid: set(rows) for xid, rows in outcome.truth.items()}


def test_every_commit_is_in_one_cut_with_all_its_rows(outcome: ReplayResult) -> None:
    assert outcome.recording.oracle(outcome.truth).complaints(outcome.cuts) == []


def test_every_document_is_the_one_the_database_had(outcome: ReplayResult) -> None:
    certificate = outcome.certificate
    assert certificate.examples == {}
    assert certificate.is_clean
    assert certificate.final_differences == 0
    assert certificate.documents > 1_000


def test_rows_of_a_table_without_key_are_read_once_wherever_they_were_repeated(
    outcome: ReplayResult, request: pytest.FixtureRequest
) -> None:
    written = [row for row in outcome.recording.rows() if row.identity[1] == JOURNAL]
    is_exactly_once = "exactly once" in request.node.name
    assert is_exactly_once or len(written) > sum(outcome.entries.values()), "no row was repeated"
    assert outcome.entries_read == outcome.entries


def test_the_same_topics_give_right_cuts_in_any_order_of_reading(outcome: ReplayResult) -> None:
    recording = outcome.recording
    oracle = recording.oracle(outcome.truth)
    for seed in range(READINGS):
        cuts = follow(recording, random.Random(seed), transactions_first=seed % 2 == 0)

        assert oracle.complaints(cuts) == [], f"reading {seed}"
        assert cuts[-1].lsn == oracle.commits[-1][0], f"reading {seed}"


def test_a_frontier_that_counts_rows_makes_cuts_too_early(
    outcome: ReplayResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = outcome.recording
    oracle = recording.oracle(outcome.truth)
    never = property(lambda _: False, lambda _transaction, _value: None)
    monkeypatch.setattr(Transaction, "is_renumbered", never)
    monkeypatch.setattr(completeness, "counts_are_complete", has_as_many_rows_as_counted)

    complaints = [
        complaint
        for seed in range(READINGS)
        for complaint in oracle.complaints(follow(recording, random.Random(seed), transactions_first=True))
    ]

    assert any("is not in cut" in complaint for complaint in complaints)
