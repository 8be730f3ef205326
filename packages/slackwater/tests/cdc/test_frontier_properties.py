"""Random histories of a model connector, read in random orders, judged by an oracle that knows every row."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slackwater.cdc import Frontier, Partition, completeness
from slackwater.cdc.commits import Commits
from slackwater.cdc.partition_queues import PartitionQueue
from slackwater.cdc.transaction import Transaction
from slackwater.protocol import CommittedTransaction, Cut
from slackwater.protocol.keys import data_topic, transaction_topic
from slackwater_lab.debezium.recording import Oracle
from slackwater_lab.debezium.records import begin_value, change_value, end_value, partition_of

SOURCE = "s"
TABLES = ("inv.a", "inv.b")
Target = tuple[str, int]
Spot = tuple[int, int]
TRANSACTION_TOPIC = ("", 0)
BARRIER_INTERVAL_MS = 1000


@dataclass(frozen=True, slots=True)
class SimulatedTransaction:
    """A committed transaction: its rows as (table, key)."""

    xid: int
    first_lsn: int
    rows: tuple[tuple[str, int], ...]

    @property
    def commit_lsn(self) -> int:
        """The LSN in the END record."""
        return self.first_lsn + 10 * len(self.rows) + 5

    @property
    def commit_ts_ms(self) -> int:
        """The commit time; some lie a little before that of the commit before."""
        return self.first_lsn * 2 // 5 - 30 * (self.xid % 3)


@dataclass(frozen=True, slots=True)
class Emitted:
    """A record as the connector handed it to the producer."""

    target: tuple[str, int]
    """Table and partition; :data:`TRANSACTION_TOPIC` for BEGIN and END."""
    value: bytes
    place: tuple[int, int]
    """Index of the transaction and of the row; -1 for BEGIN, number of rows for END."""
    run: str


@dataclass(frozen=True, slots=True)
class Loss:
    """How a run ends: killed after a number of records, with some of the last ones of each target lost."""

    after: int
    lost: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the connector."""

    name: str
    start: tuple[int, int]
    """The stored offset: transaction and number of its rows that need not come again."""
    renumbers: bool = False
    """Whether the counters of an open transaction start again."""
    replays: int = 0
    """Of how many finished transactions BEGIN and END (count 0) come again first; needs ``renumbers``."""


class SimulatedConnector:
    """Writes transactions to tables.

    Args:
        transactions: In commit order.
        partitions: Number of partitions of every table.
        keyless: Where rows without keys go; None: rows have keys and a key always goes to the same partition.
    """

    def __init__(
        self,
        transactions: Sequence[SimulatedTransaction],
        partitions: int,
        keyless: random.Random | None = None,
    ) -> None:
        self.transactions = transactions
        self.partitions = partitions
        self.keyless = keyless

    def emit(self, run: Run) -> Iterator[Emitted]:
        """Everything a run writes if nothing stops it."""
        first, done = run.start
        if run.renumbers:
            for index in range(max(0, first - run.replays), first):
                yield self._begin(index, run)
                yield self._end(index, run, {})
        for index in range(first, len(self.transactions)):
            yield from self._transaction(index, done if index == first else 0, run)

    def survivors(self, run: Run, loss: Loss | None) -> tuple[list[Emitted], tuple[int, int]]:
        """What a run leaves in Kafka, and the last place from which the next run may start."""
        records = list(self.emit(run))
        if loss is None:
            return records, (len(self.transactions), 0)
        records = records[: loss.after]
        limit = records[-1].place if records else (run.start[0], run.start[1] - 1)
        kept, lost = [], dict(loss.lost)
        for record in reversed(records):
            if lost.get(record.target, 0) > 0:
                lost[record.target] -= 1
                before = record.place[0], record.place[1] - 1
                limit = min(limit, before)
            else:
                kept.append(record)
        kept.reverse()
        return kept, max(run.start, (limit[0], max(0, limit[1] + 1)))

    def _transaction(self, index: int, done: int, run: Run) -> Iterator[Emitted]:
        transaction = self.transactions[index]
        starts_again = run.renumbers or done == 0
        if starts_again:
            yield self._begin(index, run)
        counts: dict[str, int] = {}
        total = 0
        for number, (table, key) in enumerate(transaction.rows):
            if number < done and starts_again:
                continue
            counts[table] = counts.get(table, 0) + 1
            total += 1
            if number < done:
                continue
            position = transaction.xid, transaction.first_lsn + 10 * number
            value = change_value(
                table, "c", position=position, orders=(counts[table], total), after={"id": key}
            )
            yield Emitted((table, self._partition(key)), value, (index, number), run.name)
        yield self._end(index, run, counts)

    def _partition(self, key: int) -> int:
        if self.keyless is not None:
            return self.keyless.randrange(self.partitions)
        return partition_of(str(key).encode(), self.partitions)

    def _begin(self, index: int, run: Run) -> Emitted:
        transaction = self.transactions[index]
        value = begin_value(transaction.xid, transaction.first_lsn)
        return Emitted(TRANSACTION_TOPIC, value, (index, -1), run.name)

    def _end(self, index: int, run: Run, counts: dict[str, int]) -> Emitted:
        transaction = self.transactions[index]
        value = end_value(transaction.xid, transaction.commit_lsn, counts, ts_ms=transaction.commit_ts_ms)
        return Emitted(TRANSACTION_TOPIC, value, (index, len(transaction.rows)), run.name)


def seeded(seed: float) -> random.Random:
    return random.Random(seed)


@dataclass
class History:
    """What Kafka contains at the end; after each run of the connector, how far each partition had come."""

    partitions: int
    logs: dict[Target, list[tuple[bytes, str, int]]] = field(default_factory=lambda: defaultdict(list))
    fences: list[dict[Target, int]] = field(default_factory=list)
    oracle: Oracle = field(default_factory=Oracle)
    true_events: int = 0
    clock_ms: int = 0
    transactions: Sequence[SimulatedTransaction] = ()

    def append(self, records: list[Emitted], connector: SimulatedConnector) -> None:
        for record in records:
            log = self.logs[record.target]
            if record.target != TRANSACTION_TOPIC:
                table, number = record.target
                commit_lsn = connector.transactions[record.place[0]].commit_lsn
                place = data_topic(SOURCE, table), number, len(log)
                self.oracle.add_row(commit_lsn, record.place[1], place)
            self.clock_ms += 1
            log.append((record.value, record.run, self.clock_ms))
        self.fences.append({target: len(log) for target, log in self.logs.items()})


def random_history(rng: random.Random, *, may_renumber: bool, is_keyless: bool = False) -> History:
    """Up to six runs; the last one ends with a transaction that has rows in every partition."""
    connector = SimulatedConnector(
        random_transactions(rng), rng.randint(1, 4), seeded(rng.random()) if is_keyless else None
    )
    result = History(connector.partitions, transactions=connector.transactions)
    for transaction in connector.transactions:
        result.true_events += len(transaction.rows)
        if transaction.rows:
            result.oracle.add_commit(transaction.xid, transaction.commit_lsn)
    targets = [TRANSACTION_TOPIC, *((t, p) for t in TABLES for p in range(connector.partitions))]
    start = (0, 0)
    for number in range(rng.randint(0, 5)):
        run = Run(f"run{number}", start, may_renumber and rng.random() < 0.5, rng.randint(0, 2))
        length = sum(1 for _ in connector.emit(run))
        loss = Loss(rng.randint(0, max(0, length - 81)), {t: rng.choice((0, 0, 1, 3)) for t in targets})
        records, limit = connector.survivors(run, loss)
        result.append(records, connector)
        start = spot_between(rng, connector, start, limit)
    last = Run("run9", start, may_renumber and rng.random() < 0.5, rng.randint(0, 2))
    result.append(list(connector.emit(last)), connector)
    return result


def random_transactions(rng: random.Random) -> list[SimulatedTransaction]:
    transactions = [
        SimulatedTransaction(
            700 + index,
            1000 * (index + 1),
            tuple((rng.choice(TABLES), rng.randint(0, 9)) for _ in range(rng.choice((0, 1, 2, 3, 4, 12)))),
        )
        for index in range(rng.randint(1, 8))
    ]
    everywhere = tuple((table, key) for key in range(40) for table in TABLES)
    return [*transactions, SimulatedTransaction(900, 100_000, everywhere)]


def spot_between(rng: random.Random, connector: SimulatedConnector, low: Spot, high: Spot) -> Spot:
    """Where the next run starts: mostly near the last place that was acknowledged."""
    spots = [
        (index, done)
        for index, transaction in enumerate(connector.transactions)
        for done in range(len(transaction.rows) + 1)
        if low <= (index, done) <= high
    ]
    return rng.choice(spots[-rng.choice((3, 8, 100)) :]) if spots else low


class Reader:
    """Reads a history in a random order while it becomes readable, with a frontier."""

    def __init__(
        self, past: History, rng: random.Random, start: Cut | None = None, *, has_headers: bool = True
    ) -> None:
        self.past = past
        self.has_headers = has_headers
        self.rng = rng
        done: tuple[CommittedTransaction, ...] = ()
        if start is not None:
            done = tuple(
                CommittedTransaction(xid, lsn, 0) for lsn, xid in past.oracle.commits if lsn <= start.lsn
            )
        self.frontier = Frontier(
            SOURCE,
            start=start,
            done=done,
            barrier_interval_ms=BARRIER_INTERVAL_MS,
            complete_tables=frozenset(TABLES),
        )
        self.targets: list[Target] = [(t, p) for t in TABLES for p in range(past.partitions)]
        self.positions: dict[Target, int] = {TRANSACTION_TOPIC: start.transaction_offset if start else 0}
        self.readable: dict[Target, int] = dict(self.positions)
        self.parts: dict[Target, Partition] = {}
        for table, number in self.targets:
            topic = data_topic(SOURCE, table)
            first = start.end_offsets[topic][number] if start else 0
            self.positions[table, number] = self.readable[table, number] = first
            self.parts[table, number] = self.frontier.add_partition(topic, number, first)
        self.targets.append(TRANSACTION_TOPIC)
        self.is_keyless = False
        self.cuts: list[Cut] = []
        self.run = 0

    def read_everything(self) -> list[Cut]:
        while not self.is_at_end():
            self.step()
        for _ in range(10):
            self.think(patience=1)
        return self.cuts

    def step(self) -> None:
        self.reveal()
        self.read(self.rng.choice(self.targets), self.rng.choice((1, 2, 5, 50)))
        if self.rng.random() < 0.5:
            self.think(patience=0.5)

    def reveal(self) -> None:
        """Partitions become readable independently, but those of a run only after all of the run before."""
        fence = self.past.fences[min(self.run, len(self.past.fences) - 1)]
        behind = [t for t in self.targets if self.readable[t] < fence.get(t, 0)]
        if not behind:
            self.run += 1
            return
        target = self.rng.choice(behind)
        more = self.rng.choice((1, 2, 5, 50))
        self.readable[target] = min(fence[target], self.readable[target] + more)

    def begin_in(self, run: int) -> None:
        """Begins while a run of the connector writes: what earlier ones wrote is readable."""
        self.run = run
        for target, end in (self.past.fences[run - 1] if run else {}).items():
            self.readable[target] = max(self.readable[target], end)

    def read(self, target: Target, count: int) -> None:
        first = self.positions[target]
        last = min(first + count, self.readable[target])
        records = list(enumerate(self.past.logs[target][first:last], first))
        self.positions[target] = max(first, last)
        if target == TRANSACTION_TOPIC:
            self.frontier.read_transactions((o, r[0], r[2]) for o, r in records)
            return
        for run, group in groupby(records, key=lambda r: r[1][1]):
            written = list(group)
            newest = written[-1][1][2]
            self.parts[target].read(
                ((o, r[0]) for o, r in written),
                run if self.has_headers else "",
                timestamp_ms=newest,
                is_keyless=self.is_keyless,
            )

    def think(self, patience: float) -> None:
        self.frontier.advance()
        if self.frontier.end_offsets_wanted and self.rng.random() < patience:
            ends = {(data_topic(SOURCE, t), p): self.readable[t, p] for t, p in self.parts}
            ends[transaction_topic(SOURCE), 0] = self.readable[TRANSACTION_TOPIC]
            self.frontier.end_offsets(ends)
        if self.rng.random() < 0.5:
            self.cuts += self.frontier.cuts()

    def is_at_end(self) -> bool:
        return all(self.positions[t] == len(self.past.logs[t]) for t in self.targets)


def read(seed: int, *, may_renumber: bool) -> tuple[History, list[Cut]]:
    rng = seeded(seed)
    past = random_history(rng, may_renumber=may_renumber)
    reader = Reader(past, rng)
    reader.read_everything()
    reader.cuts += reader.frontier.cuts()
    return past, reader.cuts


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_cuts_are_right_whatever_the_connector_repeats(seed: int) -> None:
    past, cuts = read(seed, may_renumber=False)

    assert past.oracle.complaints(cuts) == []
    assert cuts[-1].lsn == 100_805
    assert cuts[-1].event_count == past.true_events


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_cuts_are_right_when_the_connector_numbers_rows_again(seed: int) -> None:
    past, cuts = read(seed, may_renumber=True)

    assert past.oracle.complaints(cuts) == []
    assert cuts[-1].lsn == 100_805


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_going_on_from_any_cut_gives_the_same_commits(seed: int) -> None:
    past, cuts = read(seed, may_renumber=True)
    rng = seeded(seed + 1)
    start = rng.choice(cuts)

    reader = Reader(past, rng, start)
    reader.begin_in(rng.randint(0, len(past.fences) - 1))
    reader.read_everything()
    rest = reader.cuts + reader.frontier.cuts()

    assert past.oracle.complaints(rest, start) == []
    assert [t for c in rest for t in c.transactions] == [
        t for c in cuts if c.lsn > start.lsn for t in c.transactions
    ]


def barriers(past: History) -> list[int]:
    """The last commit of each second, by the transactions alone; those that are not over are left out."""
    return [
        before.commit_lsn
        for before, after in pairwise(past.transactions)
        if after.commit_ts_ms // 1000 > max(t.commit_ts_ms for t in _up_to(past, before)) // 1000
    ]


def _up_to(past: History, last: SimulatedTransaction) -> list[SimulatedTransaction]:
    return [t for t in past.transactions if t.commit_lsn <= last.commit_lsn]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_all_sidecars_end_cuts_at_the_last_commit_of_each_second(seed: int) -> None:
    rng = seeded(seed)
    past = random_history(rng, may_renumber=True)
    chosen = barriers(past)

    for _ in range(2):
        reader = Reader(past, rng)
        cuts = reader.read_everything() + reader.frontier.cuts()

        assert {cut.barrier_lsn for cut in cuts} <= {0, *chosen}
        assert set(chosen) <= {cut.lsn for cut in cuts}
        for cut in cuts:
            known = [lsn for lsn in chosen if lsn < cut.lsn]
            assert cut.barrier_lsn in (max(known, default=0), cut.lsn)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_going_on_from_any_cut_leaves_no_barrier_out(seed: int) -> None:
    past, cuts = read(seed, may_renumber=True)
    rng = seeded(seed + 1)
    start = rng.choice(cuts)

    reader = Reader(past, rng, start)
    reader.begin_in(rng.randint(0, len(past.fences) - 1))
    rest = reader.read_everything() + reader.frontier.cuts()

    later = [lsn for lsn in barriers(past) if lsn >= start.lsn]
    assert set(later) <= {start.lsn, *(cut.lsn for cut in rest)}
    for cut in rest:
        known = [lsn for lsn in later if lsn < cut.lsn]
        assert cut.barrier_lsn >= max(known, default=0)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=472)
def test_cuts_are_right_without_run_headers(seed: int) -> None:
    rng = seeded(seed)
    past = random_history(rng, may_renumber=True)
    reader = Reader(past, rng, has_headers=False)

    cuts = reader.read_everything() + reader.frontier.cuts()

    assert past.oracle.complaints(cuts) == []


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=32052063)
def test_cuts_are_right_for_tables_without_keys(seed: int) -> None:
    rng = seeded(seed)
    past = random_history(rng, may_renumber=True, is_keyless=True)
    reader = Reader(past, rng)
    reader.is_keyless = True

    cuts = reader.read_everything() + reader.frontier.cuts()

    assert past.oracle.complaints(cuts) == []


def is_complained_about(*, may_renumber: bool, seeds: int = 300) -> bool:
    histories = (read(seed, may_renumber=may_renumber) for seed in range(seeds))
    return any(past.oracle.complaints(cuts) for past, cuts in histories)


@pytest.mark.parametrize(
    ("broken", "may_renumber"),
    [
        ("counts", False),
        ("original numbering", True),
        ("last numbering", True),
        ("overtaken", True),
        ("detection", True),
        ("queue of firsts", False),
        ("repeats", False),
    ],
)
def test_the_oracle_complains_when_a_rule_is_taken_out(
    broken: str, may_renumber: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(*_: object) -> bool:
        return True

    breakages: dict[str, tuple[object, str, Callable[..., object]]] = {
        "counts": (completeness, "counts_are_complete", lambda t: t.end is not None),
        "original numbering": (
            completeness,
            "_original_numbering_is_complete",
            completeness.counts_are_complete,
        ),
        "last numbering": (completeness, "_last_numbering_is_complete", always),
        "overtaken": (completeness.Completeness, "_is_overtaken", always),
        "detection": (
            completeness.Completeness,
            "_renumbered_is_complete",
            lambda _, t: completeness.counts_are_complete(t),
        ),
        "queue of firsts": (PartitionQueue, "end_offset", lambda p: p.position),
        "repeats": (Commits, "_close", close_without_repeats),
    }
    where, name, replacement = breakages[broken]
    monkeypatch.setattr(where, name, replacement)

    assert is_complained_about(may_renumber=may_renumber)


def close_without_repeats(self: Commits, transaction: Transaction, commit_lsn: int) -> None:
    transaction.is_done = True
    del self.open[transaction.xid]
    self._done.add(transaction.xid, commit_lsn)
